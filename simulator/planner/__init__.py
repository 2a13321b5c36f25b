"""Which layout, on how many GPUs, at what cost: searches settings of a training step, and explains its choice."""
