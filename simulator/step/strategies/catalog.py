"""Which sharding strategies exist: one module of this folder each.

Rule: a module is a strategy if it has a STRATEGY; its name is the strategy's name in scenario files.
"""

from __future__ import annotations

from functools import cache

import simulator.step.strategies
from simulator.basics.errors import UnknownNameError
from simulator.basics.registry import declared
from simulator.step.strategies.strategy import Strategy


@cache
def _strategies() -> dict[str, Strategy]:
    return declared(simulator.step.strategies, "STRATEGY", Strategy)


def names() -> tuple[str, ...]:
    """Every strategy, sorted."""
    return tuple(sorted(_strategies()))


def find(name: str) -> Strategy:
    """The strategy of a name; UnknownNameError with "did you mean" otherwise."""
    if name not in _strategies():
        raise UnknownNameError("strategy", name, names())
    return _strategies()[name]


def listening(option: str) -> tuple[str, ...]:
    """Strategies that an option of Sharding makes a difference to."""
    return tuple(name for name in names() if option in find(name).options)
