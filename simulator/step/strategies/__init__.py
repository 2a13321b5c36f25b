"""Sharding strategies: one file each, named as in scenario files; each declares a STRATEGY and plans a step."""
