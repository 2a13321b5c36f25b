"""How long a step's kernels take on a GPU, alone and while a collective in flight takes SMs and HBM bandwidth."""
