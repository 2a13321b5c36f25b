"""One list of operations for all ranks: what every rank does at the same place of its program.

Rule: ranks may differ in durations and in the groups that they are in, never in what comes after what. Like a form that
everybody fills in: the same lines, other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled.declined import DeclinedError
from simulator.program import Allocate, Collective, Compute, Free, Op, Program

Floats = npt.NDArray[np.float64]
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
    alone, slowed : float array, shape (ranks,)
        Durations of kernels [s]; empty for other operations.
    groups : tuple of Collective
        Each group's operation, once.
    """

    place: int
    op: Op
    after: tuple[int, ...]
    alone: Floats
    slowed: Floats
    groups: tuple[Collective, ...] = ()


def template(program: Program) -> tuple[Line, ...]:
    """Lay all ranks' lists on each other.

    Raises
    ------
    DeclinedError
        Ranks do different things.
    """
    lists = program.ranks
    alike = all(ops is lists[0] for ops in lists)
    if not alike and len({len(ops) for ops in lists}) > 1:
        raise DeclinedError("ranks have lists of unlike length")
    after = _places(lists[0])
    if not alike:
        seen = {id(lists[0])}
        for rank, ops in enumerate(lists):
            if id(ops) not in seen:
                seen.add(id(ops))
                _compare(rank, ops, lists[0], after)
    return tuple(_line(place, lists, after[place], alike=alike) for place in range(len(lists[0])))


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


def _line(place: int, lists: tuple[tuple[Op, ...], ...], after: tuple[int, ...], *, alike: bool) -> Line:
    op = lists[0][place]
    if isinstance(op, Compute):
        own = [op] if alike else [ops[place] for ops in lists]
        times = [(o.duration, o.duration if o.slowed is None else o.slowed) for o in own if isinstance(o, Compute)]
        alone, slowed = np.broadcast_to(np.array(times), (len(lists), 2)).T
        return Line(place, op, after, alone, slowed)
    if isinstance(op, Collective):
        found: dict[str, Collective] = {}
        for ops in [lists[0]] if alike else lists:
            other = ops[place]
            if isinstance(other, Collective):
                found.setdefault(other.name, other)
        return Line(place, op, after, _NONE, _NONE, _covering(tuple(found.values()), len(lists)))
    return Line(place, op, after, _NONE, _NONE)


def _covering(groups: tuple[Collective, ...], ranks: int) -> tuple[Collective, ...]:
    """Every rank is in just one of the groups."""
    members = sorted(rank for op in groups for rank in op.group)
    if members != list(range(ranks)):
        raise DeclinedError(f"{groups[0].name!r} is not done by every rank once")
    return groups
