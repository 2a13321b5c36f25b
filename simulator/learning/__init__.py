"""Real training on the simulated clock: a played step's operations, followed with arrays in hand."""
