"""Which plots may a scenario name? The modules in report/plots/: for collectives, for training steps, and for both.

Folders are listed without importing a module, therefore reading a scenario loads no plotting library.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from simulator.basics.registry import module_names

# Folders in report/plots for each kind of scenario.
_FOLDERS: Final = {"collective": ("both", "collective"), "training": ("both", "training")}


@cache
def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of the plots for "collective" or "training" scenarios, sorted.

    >>> "scaling" in names_of("collective"), "scaling" in names_of("training")
    (True, True)
    """
    return tuple(sorted(name for folder in _FOLDERS[kind] for name in module_names(f"simulator.report.plots.{folder}")))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all plots, each once, sorted."""
    return tuple(sorted({name for kind in _FOLDERS for name in names_of(kind)}))
