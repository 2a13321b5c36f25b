"""Which plots exist? A module per plot in the folders collective/, training/ and both/, named by its file.

A plot's module declares a PLOT (`plot.py`). Figures of other commands (a topology, a fit) are not plots of a scenario.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from simulator.basics.catalog import Catalog
from simulator.basics.errors import UnknownNameError
from simulator.basics.foreign_code import is_foreign
from simulator.report.plots.plot import Plot

# Plots of both kinds of scenario, and plots outside the package.
PLOTS: Final = Catalog("simulator.report.plots.both", "PLOT", Plot, "plot", listed_by="simulator list plots")


def named(kind: str, names: tuple[str, ...], base: Path, where: str = "plot") -> dict[str, Plot]:
    """Return the plots with these names, by the name of their pictures: shipped plots sorted, then own plots.

    `base` is the folder for the paths of own plots; the picture of `./idle.py` is called idle. A fault begins with
    `where`.
    """
    shipped = {name: plot for name, plot in of(kind).items() if name in names}
    paths = [name for name in names if name not in shipped]
    for name in paths:
        if not is_foreign(name):
            raise UnknownNameError(where, name, of(kind), listed_by="simulator list plots")
    return shipped | {Path(name).stem: PLOTS.find(name, base) for name in paths}


@cache
def of(kind: str) -> dict[str, Plot]:
    """Return the plots that exist for the kind "collective" or "training", by name, sorted."""
    catalog = Catalog(f"simulator.report.plots.{kind}", "PLOT", Plot, "plot")
    return dict(sorted({**catalog.by_name, **PLOTS.by_name}.items()))
