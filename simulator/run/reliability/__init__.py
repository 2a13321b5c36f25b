"""Trainings that last for days: failures, checkpoints, restarts, spare nodes, and what is left of the time."""
