"""Turns a timeline into output for people: figures, traces and tables."""
