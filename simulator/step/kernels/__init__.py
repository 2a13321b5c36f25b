"""How long a step's kernels take on a GPU, alone and beside communication."""
