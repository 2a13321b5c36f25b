"""How long do a step's kernels take on a GPU, alone and while a collective takes SMs and HBM bandwidth?"""
