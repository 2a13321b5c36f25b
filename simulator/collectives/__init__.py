"""Collective operations: an algorithm plans a Schedule; other modules choose, predict, verify, carry arrays."""
