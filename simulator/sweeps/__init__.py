"""Simulates many points: outcomes, journal, cache and tables; worker processes and Dask clusters.

A point's outcome depends only on the point. Order, place and number of processes therefore change no outcome.
"""
