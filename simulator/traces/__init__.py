"""Traces of other programs: profiles compared with a simulation, execution traces, dumps of hanging jobs."""
