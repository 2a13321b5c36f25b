"""Which residuals do simulated training steps have against measurements, and which constants are involved?"""
