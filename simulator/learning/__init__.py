"""Real training on the simulated clock: follows a simulated step's operations and carries arrays through them.

This package computes no times (step/ and engine/ do) and has no arithmetic of its own (numerics/ does).
"""
