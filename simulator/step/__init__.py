"""Cost model of a training step: every rank's program, with kernel durations and bytes of memory.

The package contains no arithmetic of training (numerics/ computes, learning/ carries arrays), and no clock (engine/
simulates the program).
"""
