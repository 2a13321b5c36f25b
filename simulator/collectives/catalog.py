"""Which algorithms exist: one module of this folder each, found by itself.

Rule: a module is an algorithm if it has an ALGORITHM; its name is the algorithm's name in scenario files.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import simulator.collectives
from simulator.collectives.algorithm import OPERATIONS, Algorithm
from simulator.errors import UnknownNameError

__all__ = ["OPERATIONS", "find", "names", "operations", "pairs"]


@cache
def _algorithms() -> dict[str, Algorithm]:
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(simulator.collectives.__path__):
        loaded = importlib.import_module(f"simulator.collectives.{module.name}")
        if isinstance(getattr(loaded, "ALGORITHM", None), Algorithm):
            found[module.name] = loaded.ALGORITHM
    return found


def names() -> tuple[str, ...]:
    """Every algorithm, sorted."""
    return tuple(sorted(_algorithms()))


def find(name: str) -> Algorithm:
    """The algorithm of a name; UnknownNameError with "did you mean" otherwise."""
    if name not in _algorithms():
        raise UnknownNameError("algorithm", name, names())
    return _algorithms()[name]


def operations(name: str) -> tuple[str, ...]:
    """Operations that an algorithm can carry out, in the order of OPERATIONS."""
    plans = find(name).plans
    return tuple(operation for operation in OPERATIONS if operation in plans)


def pairs() -> tuple[tuple[str, str], ...]:
    """Every (algorithm, operation) that exists."""
    return tuple((name, operation) for name in names() for operation in operations(name))
