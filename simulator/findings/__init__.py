"""Which answers do a scenario's points give: differences from a baseline, winners, thresholds, memory fits, costs?

Reports go in; sentences and the numbers behind them come out. Only `Comparison.further` simulates, at points between
the scenario's.
"""
