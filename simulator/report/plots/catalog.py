"""Which plots exist? A module per plot in the folders collective/, training/ and both/, named by its file.

A plot's module declares a PLOT (`plot.py`). Figures of other commands (a topology, a fit) are not plots of a scenario.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from simulator.basics.registry import declared
from simulator.report.plots.plot import Plot


@cache
def of(kind: str) -> dict[str, Plot]:
    """Return the plots of a "collective" or a "training" step by name, sorted."""
    packages = [import_module(f"simulator.report.plots.{folder}") for folder in ("both", kind)]
    plots = [one for package in packages for one in declared(package, "PLOT", Plot).items()]
    return dict(sorted(plots))
