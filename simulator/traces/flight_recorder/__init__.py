"""Dumps of PyTorch's NCCL flight recorder: a timeline of collectives, late ranks and hangs."""
