"""The cost model of one training step: the program that every rank runs, with times of kernels and bytes of memory.

It holds no numbers (numerics/ computes them, learning/ carries them), and no clock (engine/ plays the program).
"""
