"""Plots of training steps: each module is one plot, named by its file."""
