"""Topology builders: one file each, and the file's name is the builder's name in YAML.

A builder is a function of numbers that returns a graph. Its keyword parameters are the options in a topology file. Each
file also has `limits`, which computes the TopologyLimits from the same options without building, and `size`, which
computes the GraphSize.
"""
