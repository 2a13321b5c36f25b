"""Plots for training steps: a module per plot, named after the file."""
