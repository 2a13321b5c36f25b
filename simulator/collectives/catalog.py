"""Which algorithms exist: one module of this folder each, found by itself.

Rule: a module is an algorithm if it has an ALGORITHM; its name is the algorithm's name in scenario files.
"""

from __future__ import annotations

from functools import cache

import simulator.collectives
from simulator.basics.registry import declared
from simulator.collectives.algorithm import OPERATIONS, Algorithm
from simulator.errors import UnknownNameError

__all__ = ["OPERATIONS", "find", "names", "operations", "pairs"]


@cache
def _algorithms() -> dict[str, Algorithm]:
    return declared(simulator.collectives, "ALGORITHM", Algorithm)


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
