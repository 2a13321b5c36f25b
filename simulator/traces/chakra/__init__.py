"""Chakra execution traces: read, and simulated on a cluster."""
