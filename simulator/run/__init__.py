"""Simulates a point (a collective or a training step) from its plan to its report; several jobs; days with failures."""
