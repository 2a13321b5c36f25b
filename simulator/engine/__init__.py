"""Engines: play a Program on a Cluster. The only place with a clock."""
