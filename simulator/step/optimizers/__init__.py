"""Optimizers: one file each, with the memory and the kernels of its update."""
