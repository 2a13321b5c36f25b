"""Collective operations: each algorithm's module plans a Schedule; other modules choose, predict, verify. No clock."""
