"""Which plots exist? One module of this folder each, found by its file name.

Rule: a module is a plot of scenarios if it has a PLOT. Two modules may share a name if one is of collectives and one of
training steps; figures of other commands (a topology, a fit) have none.
"""

from __future__ import annotations

from functools import cache

import simulator.report.plots
from simulator.basics.registry import declared
from simulator.report.plots.plot import Plot


@cache
def _plots() -> tuple[Plot, ...]:
    plots = declared(simulator.report.plots, "PLOT", Plot)
    return tuple(sorted(plots.values(), key=lambda plot: plot.name))


def names() -> tuple[str, ...]:
    """Every plot's name, sorted."""
    return tuple(dict.fromkeys(plot.name for plot in _plots()))


def names_of(kind: str) -> tuple[str, ...]:
    """Names of a kind's plots: of "collective" or "training"."""
    return tuple(plot.name for plot in of(kind))


def of(kind: str) -> tuple[Plot, ...]:
    """Plots of a kind of scenario, by name."""
    return tuple(plot for plot in _plots() if kind in plot.of)
