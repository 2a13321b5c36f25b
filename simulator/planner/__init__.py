"""Planner: which settings of a training step are the fastest on a cluster? Branch and bound with proven bounds."""
