"""Which start-up and which rate caps make a machine's collectives as fast as an nccl-tests sweep measured them?

Rule: measured times in, a section of a topology file out. What is reported of a fit was played by the engine, not
predicted by the fit.
"""

from __future__ import annotations

from simulator.calibration.machines.fit_writing import fit_text, to_yaml
from simulator.calibration.machines.fitting import fit, fit_sweep
from simulator.calibration.machines.records import Fit, FitRow, TrialSummary
from simulator.calibration.machines.sweep import Sweep, read_sweep

__all__ = ["Fit", "FitRow", "Sweep", "TrialSummary", "fit", "fit_sweep", "fit_text", "read_sweep", "to_yaml"]
