"""Plots of collectives: each module is one plot, named by its file."""
