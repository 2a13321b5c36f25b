"""Models: a transformer's shape, its parameters, and the kernels that one training step of it runs."""
