"""Which plots may a scenario name? The file names in report/plots/: those of collectives, of training steps, of both.

The folders are listed and nothing is imported, so that reading a scenario does not load a plotting library.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from simulator.basics.registry import module_names

_FOLDERS: Final = {"collective": ("both", "collective"), "training": ("both", "training")}


@cache
def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of the plots of a "collective" or a "training" step, sorted."""
    return tuple(sorted(name for folder in _FOLDERS[kind] for name in module_names(f"simulator.report.plots.{folder}")))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all plots, sorted; a name that both kinds have is listed once."""
    return tuple(sorted({name for kind in _FOLDERS for name in names_of(kind)}))
