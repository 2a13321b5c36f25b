"""Real training on the simulated clock: follows a played step as its operations end, and carries arrays through them.

It computes no time (step/ and engine/ did), and no arithmetic of its own (numerics/ has it).
"""
