"""Plays many points: outcomes, journal, cache and tables; worker processes and Dask clusters.

Rule: a point's outcome depends on the point alone, so neither order nor place nor number of processes changes it.
"""
