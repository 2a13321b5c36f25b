"""What do the points of a scenario answer: differences from a baseline, winners, thresholds, what fits, what it costs?

Rule: reports in, sentences and the numbers in them out; only `Comparison.further` plays, points between the scenario's.
"""
