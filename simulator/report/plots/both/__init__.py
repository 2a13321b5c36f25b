"""Plots of collectives and of training steps: each module is one plot, named by its file."""
