"""Engines simulate a Program on a Cluster. No other package has a clock."""
