"""Topology builders: one file each, and the file's name is the builder's name in YAML.

Rule: a builder is a function of numbers that returns a graph; its keyword parameters are the options of the topology
file. Beside it stands `limits`, which tells from the same options what can be known without building.
"""
