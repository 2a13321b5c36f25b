"""Sharding strategies: one file each, named as in scenario files; `plan(score, work)` notes one step."""
