"""Topology builders: one file each, and the file's name is the builder's name in YAML.

Rule: a builder is a function of numbers that returns a graph; its keyword parameters are the options of the topology
file. Each file also has `limits`, which computes the TopologyLimits from the same options without building.
"""
