"""Collective operations: one module per algorithm plans a Schedule; others choose, predict and verify. No clock."""
