"""Plots for collectives: a module per plot, named after the file."""
