"""How far are played training steps from measured ones, where, and which constants stand behind them?"""
