"""One list of operations for all ranks: what every rank does at the same place of its program.

Rule: ranks may differ in durations and in the groups that they are in, never in what comes after what. Like a form that
everybody fills in: the same lines, other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.engine.compiled.declined import DeclinedError
from simulator.records.program import Allocate, Collective, Compute, Free, Op, Program, SameForAll

_NONE: Final[Floats] = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Line:
    """What all ranks do at one place.

    Attributes
    ----------
    place : int
        In every rank's list.
    op : Op
        Rank 0's.
    after : tuple of int
        Places that must have ended.
    alone, slowed : float array, shape (ranks,) or (1,)
        Durations of kernels, one number where they are the same for all [s]; empty for other operations.
    teams : tuple of Collective
        Each group's operation, once.
    """

    place: int
    op: Op
    after: tuple[int, ...]
    alone: Floats
    slowed: Floats
    teams: tuple[Collective, ...] = ()


def template(program: Program) -> tuple[Line, ...]:
    """Lay all ranks' lists on each other.

    Raises
    ------
    DeclinedError
        Ranks do different things.
    """
    lists = program.ranks
    if isinstance(lists, SameForAll):
        after = _places(lists.ops)
        teams = [lists.teams(place) if isinstance(op, Collective) else () for place, op in enumerate(lists.ops)]
        busy = active(program)
        return tuple(_line(place, [op], busy, after[place], teams[place]) for place, op in enumerate(lists.ops))
    busy = active(program)
    if not busy:
        return ()
    first = lists[busy[0]]
    after = _places(first)
    seen = {id(first)}
    for rank in busy:
        if id(lists[rank]) not in seen:
            seen.add(id(lists[rank]))
            _compare(rank, lists[rank], first, after)
    # Kernels of ranks that do nothing take as long as anybody's; nobody looks at them.
    every = [first] if len(seen) == 1 else [ops or first for ops in lists]
    at = [[ops[place] for ops in every] for place in range(len(first))]
    return tuple(_line(place, own, busy, after[place], _teams(own)) for place, own in enumerate(at))


def active(program: Program) -> list[int]:
    """Ranks that do anything."""
    if isinstance(program.ranks, SameForAll):
        return list(range(len(program.ranks)))
    return [rank for rank, ops in enumerate(program.ranks) if ops]


def _places(ops: tuple[Op, ...]) -> list[tuple[int, ...]]:
    """By place what an operation waits for, as places."""
    place_of = {op.name: place for place, op in enumerate(ops)}
    if len(place_of) != len(ops):
        raise DeclinedError("two operations of a rank have one name")
    try:
        return [tuple(sorted(place_of[name] for name in op.after)) for op in ops]
    except KeyError as error:
        raise DeclinedError(f"an operation waits for {error}, which is not there") from None


def _compare(rank: int, ops: tuple[Op, ...], first: tuple[Op, ...], after: list[tuple[int, ...]]) -> None:
    """DeclinedError where a rank does something else than rank 0, or after something else."""
    if len(ops) != len(first):
        raise DeclinedError("ranks have lists of unlike length")
    if _places(ops) != after:
        raise DeclinedError(f"rank {rank} waits for other operations than rank 0")
    for own, other in zip(ops, first, strict=True):
        if own is not other and _kind(own) != _kind(other):
            raise DeclinedError(f"rank {rank} does {own.name!r} where rank 0 does {other.name!r}")


def _kind(op: Op) -> tuple[object, ...]:
    """All that must be alike."""
    if isinstance(op, Compute):
        return Compute, op.stream, op.on_gpu
    if isinstance(op, Collective):
        return Collective, op.stream, op.takes_sms, op.together
    if isinstance(op, Allocate):
        return Allocate, op.stream, op.name, op.nbytes, op.category
    return Free, op.stream, op.allocation


def _teams(own: Sequence[Op]) -> tuple[Collective, ...]:
    return tuple({op.name: op for op in own if isinstance(op, Collective)}.values())


def _line(
    place: int, own: Sequence[Op], busy: list[int], after: tuple[int, ...], teams: tuple[Collective, ...]
) -> Line:
    """One line from the operations of all ranks at its place, or from the one that all have."""
    if isinstance(own[0], Compute):
        times = [(o.duration, o.duration if o.slowed is None else o.slowed) for o in own if isinstance(o, Compute)]
        alone, slowed = np.array(times).T
        return Line(place, own[0], after, alone, slowed)
    if teams and sorted(chain.from_iterable(op.group for op in teams)) != busy:
        raise DeclinedError(f"{teams[0].name!r} is not done by every rank once")
    return Line(place, own[0], after, _NONE, _NONE, teams)
