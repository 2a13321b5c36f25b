"""Plots for collectives and training steps: a module per plot, named after the file."""
