"""The arithmetic of a small GPT in numpy: passes, number formats, optimizers, loss scaling, attention, all on one rank.

It knows no GPU, no clock and no cost model (step/ has them), and no other rank (learning/ exchanges arrays).
"""
