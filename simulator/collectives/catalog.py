"""Lists the existing algorithms: every module in this folder that declares an ALGORITHM.

There is no registration: each module is imported and searched for ALGORITHM, and the module's name is the algorithm's
name in scenario files.
"""

from __future__ import annotations

from functools import cache

import simulator.collectives
from simulator.basics.errors import UnknownNameError
from simulator.basics.registry import declared
from simulator.collectives.algorithm import OPERATIONS, Algorithm

__all__ = ["OPERATIONS", "find", "names", "operations", "pairs"]


@cache
def _algorithms() -> dict[str, Algorithm]:
    return declared(simulator.collectives, "ALGORITHM", Algorithm)


def names() -> tuple[str, ...]:
    """Return the names of the algorithms, sorted."""
    return tuple(sorted(_algorithms()))


def find(name: str) -> Algorithm:
    """Return the algorithm with this name; raise UnknownNameError with "did you mean" for an unknown name."""
    if name not in _algorithms():
        raise UnknownNameError("algorithm", name, names())
    return _algorithms()[name]


def operations(name: str) -> tuple[str, ...]:
    """Return the operations that an algorithm can carry out, in the order of OPERATIONS."""
    plans = find(name).plans
    return tuple(operation for operation in OPERATIONS if operation in plans)


def pairs() -> tuple[tuple[str, str], ...]:
    """Return every existing (algorithm, operation)."""
    return tuple((name, operation) for name in names() for operation in operations(name))
