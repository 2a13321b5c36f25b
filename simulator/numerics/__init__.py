"""The arithmetic of a small GPT in numpy on a single rank: passes, number formats, optimizers, loss scaling, attention.

This package knows neither GPUs nor a clock nor a cost model (step/ does), nor other ranks (learning/ exchanges arrays).
"""
