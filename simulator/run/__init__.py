"""Simulates a single point, a collective or a training step, from its plan to its report."""
