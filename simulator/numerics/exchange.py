"""What a pass asks of other ranks on its way: a pass is a generator that hands out arrays and goes on with what comes.

Rule: who the others are, and how arrays get there, is not known here. One that asks for nothing runs through.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from simulator.basics.arrays import Array

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One exchange, from the side of one rank.

    Attributes
    ----------
    name : str
        As `model.cut.Communication` has it: the exchange that was played must be that which the numbers need.
    array : array, shape (n,)
        What the rank brings.
    reduction : {"sum", "max"}
    later : bool
        Whether the pass goes on at once, and asks for what came when it needs it (`Came`).
    splits : tuple of int
        Where each rank gets a part of the array, how many elements; several entries a rank where it has several takers.
        What comes is then an array, and by source its splits, shape (ranks, takers of a rank).
    """

    name: str
    array: Array
    reduction: Literal["sum", "max"] = "sum"
    later: bool = False
    splits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Came:
    """What came of an exchange that was asked for earlier.

    Attributes
    ----------
    what : str
        What the pass was told when it asked.
    """

    what: str


# A pass: it hands out what it wants exchanged, is sent what came of it (flat array), or, for `later`, what to ask for,
# and returns its result.
Pass = Generator[Wanted | Came, Any, T]


def alone(run: Pass[T]) -> T:
    """Run a pass that asks nobody.

    Raises
    ------
    ValueError
        It asks for an exchange.
    """
    try:
        wanted = next(run)
    except StopIteration as end:
        result: T = end.value
        return result
    raise ValueError(f"a pass on one rank asks for {wanted!r}")


__all__ = ["Came", "Pass", "Wanted", "alone"]
