"""Clusters: GPUs, links, topology builders and loaders, routing."""
