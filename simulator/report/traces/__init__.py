"""A timeline in the formats of other tools: Kineto traces, PyTorch's memory snapshots."""
