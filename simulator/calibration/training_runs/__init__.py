"""Played training steps against measured ones: how far off, where, and by which constants."""
