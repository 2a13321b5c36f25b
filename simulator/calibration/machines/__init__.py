"""Which start-up and rate caps make a machine's collectives as fast as measured by an nccl-tests sweep?

Input are measured times, output is a section for a topology file. Reported times come from the engine, with the fitted
constants, and not from the fit's prediction.
"""

from __future__ import annotations

from simulator.calibration.machines.fit_writing import fit_text, machine_text, to_yaml
from simulator.calibration.machines.fitting import fit, fit_sweep
from simulator.calibration.machines.measured_sweep import SweepTimes, read_sweep, read_sweeps
from simulator.calibration.machines.multi_sweep_fit import fit_all
from simulator.calibration.machines.records import Fit, FitRow, MachineFit, TrialSummary

__all__ = [
    "Fit",
    "FitRow",
    "MachineFit",
    "SweepTimes",
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
