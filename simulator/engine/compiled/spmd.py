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
class SpmdOp:
    """What all ranks do at one place.

    Attributes
    ----------
    index : int
        In every rank's list.
    op : Op
        Rank 0's.
    after : tuple of int
        Places that must have ended.
    alone, contended : float array, shape (ranks,) or (1,)
        Durations of kernels, one number where they are the same for all [s]; empty for other operations.
    collectives : tuple of Collective
        Each group's operation, once.
    """

    index: int
    op: Op
    after: tuple[int, ...]
    alone: Floats
    contended: Floats
    collectives: tuple[Collective, ...] = ()


def spmd_template(program: Program) -> tuple[SpmdOp, ...]:
    """Lay all ranks' lists on each other.

    Raises
    ------
    DeclinedError
        Ranks do different things.
    """
    lists = program.ranks
    if isinstance(lists, SameForAll):
        after = _predecessors(lists.ops)
        collectives = [lists.groups(index) if isinstance(op, Collective) else () for index, op in enumerate(lists.ops)]
        busy = active_ranks(program)
        return tuple(
            _spmd_op(index, [op], busy, after[index], collectives[index]) for index, op in enumerate(lists.ops)
        )
    busy = active_ranks(program)
    if not busy:
        return ()
    first = lists[busy[0]]
    after = _predecessors(first)
    seen = {id(first)}
    for rank in busy:
        if id(lists[rank]) not in seen:
            seen.add(id(lists[rank]))
            _compare(rank, lists[rank], first, after)
    # Kernels of ranks that do nothing take as long as anybody's; nobody looks at them.
    every = [first] if len(seen) == 1 else [ops or first for ops in lists]
    at = [[ops[index] for ops in every] for index in range(len(first))]
    return tuple(_spmd_op(index, own, busy, after[index], _collectives(own)) for index, own in enumerate(at))


def active_ranks(program: Program) -> list[int]:
    """Ranks that do anything."""
    if isinstance(program.ranks, SameForAll):
        return list(range(len(program.ranks)))
    return [rank for rank, ops in enumerate(program.ranks) if ops]


def _predecessors(ops: tuple[Op, ...]) -> list[tuple[int, ...]]:
    """By place what an operation waits for, as places."""
    index_of = {op.name: index for index, op in enumerate(ops)}
    if len(index_of) != len(ops):
        raise DeclinedError("two operations of a rank have one name")
    try:
        return [tuple(sorted(index_of[name] for name in op.after)) for op in ops]
    except KeyError as error:
        raise DeclinedError(f"an operation waits for {error}, which is not there") from None


def _compare(rank: int, ops: tuple[Op, ...], first: tuple[Op, ...], after: list[tuple[int, ...]]) -> None:
    """DeclinedError where a rank does something else than rank 0, or after something else."""
    if len(ops) != len(first):
        raise DeclinedError("ranks have lists of unlike length")
    if _predecessors(ops) != after:
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


def _collectives(own: Sequence[Op]) -> tuple[Collective, ...]:
    return tuple({op.name: op for op in own if isinstance(op, Collective)}.values())


def _spmd_op(
    index: int, own: Sequence[Op], busy: list[int], after: tuple[int, ...], collectives: tuple[Collective, ...]
) -> SpmdOp:
    """One line from the operations of all ranks at its place, or from the one that all have."""
    if isinstance(own[0], Compute):
        times = [
            (o.duration, o.duration if o.contended is None else o.contended) for o in own if isinstance(o, Compute)
        ]
        alone, contended = np.array(times).T
        return SpmdOp(index, own[0], after, alone, contended)
    if collectives and sorted(chain.from_iterable(op.group for op in collectives)) != busy:
        raise DeclinedError(f"{collectives[0].name!r} is not done by every rank once")
    return SpmdOp(index, own[0], after, _NONE, _NONE, collectives)
