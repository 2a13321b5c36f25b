"""Fitting a machine: its start-up and its rate against size, from a sweep that somebody measured.

Rule: measured times in, a section of a topology file out; the last word has the played simulation. Like tuning a piano:
listen, turn a few pegs, listen again.
"""

from __future__ import annotations

from simulator.calibration.machines.fitting import fit, fit_sweep
from simulator.calibration.machines.records import Fit, FitRow, Tried
from simulator.calibration.machines.sweep import Sweep, read_sweep
from simulator.calibration.machines.words import to_yaml, told

__all__ = ["Fit", "FitRow", "Sweep", "Tried", "fit", "fit_sweep", "read_sweep", "to_yaml", "told"]
