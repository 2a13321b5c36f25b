"""Collectives: one file an algorithm -> Schedule; and the proof that it keeps its promise, without a clock."""
