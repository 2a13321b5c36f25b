"""Collectives: one file an algorithm, each giving a Schedule; and the proof that it keeps its promise, without a clock."""
