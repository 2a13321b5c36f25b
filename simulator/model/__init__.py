"""Models: a transformer's shape, its parameters, and the kernels of a training step."""
