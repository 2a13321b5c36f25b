"""Which start-up and which rate caps make a machine's collectives as fast as an nccl-tests sweep measured them?

Rule: measured times in, a section of a topology file out. What is reported of a fit was played by the engine, not
predicted by the fit.
"""

from __future__ import annotations

from simulator.calibration.machines.fit_writing import fit_text, machine_text, to_yaml
from simulator.calibration.machines.fitting import fit, fit_sweep
from simulator.calibration.machines.records import Fit, FitRow, MachineFit, TrialSummary
from simulator.calibration.machines.several import fit_all
from simulator.calibration.machines.sweep import Sweep, read_sweep, read_sweeps

__all__ = [
    "Fit",
    "FitRow",
    "MachineFit",
    "Sweep",
    "TrialSummary",
    "fit",
    "fit_all",
    "fit_sweep",
    "fit_text",
    "machine_text",
    "read_sweep",
    "read_sweeps",
    "to_yaml",
]
