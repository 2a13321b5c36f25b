"""Which plots exist? A module per plot in the folders collective/, training/ and both/, named by its file.

A plot's module declares a PLOT (`plot.py`). Figures of other commands (a topology, a fit) are not plots of a scenario.
"""

from __future__ import annotations

from functools import cache

from simulator.basics.catalog import Catalog
from simulator.report.plots.plot import Plot


@cache
def of(kind: str) -> dict[str, Plot]:
    """Return the plots that exist for the kind "collective" or "training", by name, sorted."""
    own, shared = (Catalog(f"simulator.report.plots.{folder}", "PLOT", Plot, "plot") for folder in (kind, "both"))
    return dict(sorted({**own.by_name, **shared.by_name}.items()))
