"""Whether all ranks run the same program on other data (SPMD), and this program as one list of operations.

Ranks may differ in the durations of kernels and in the process groups that they are in, but not in which operation
waits for which. Like a form that everybody fills in: the same lines, other numbers.
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
    """What all ranks do at one index of their lists of operations.

    Attributes
    ----------
    index : int
    op : Op
        That of the first rank that does anything, for what all ranks have in common.
    after : tuple of int
        Indices of the operations that must have ended.
    alone, contended : float array, shape (ranks,) or (1,)
        Durations of kernels without and beside communication, one number if they are the same on all ranks [s]; empty
        for other operations.
    collectives : tuple of Collective
        Each process group's collective, once.
    """

    index: int
    op: Op
    after: tuple[int, ...]
    alone: Floats
    contended: Floats
    collectives: tuple[Collective, ...] = ()


def spmd_template(program: Program) -> tuple[SpmdOp, ...]:
    """Merge the lists of all ranks into one.

    Raises
    ------
    DeclinedError
        Ranks do different things.
    """
    lists = program.ranks
    if isinstance(lists, SameForAll):
        after, busy = _predecessors(lists.ops), active_ranks(program)
        groups = [lists.groups(index) if isinstance(op, Collective) else () for index, op in enumerate(lists.ops)]
        return tuple(_spmd_op(index, [op], busy, after[index], groups[index]) for index, op in enumerate(lists.ops))
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
    # Arrays are over all ranks. An idle rank gets the first rank's durations, which nobody reads.
    every = [first] if len(seen) == 1 else [ops or first for ops in lists]
    by_index = [[ops[index] for ops in every] for index in range(len(first))]
    return tuple(_spmd_op(index, ops, busy, after[index], _collectives(ops)) for index, ops in enumerate(by_index))


def active_ranks(program: Program) -> list[int]:
    """Ranks that have any operations."""
    if isinstance(program.ranks, SameForAll):
        return list(range(len(program.ranks)))
    return [rank for rank, ops in enumerate(program.ranks) if ops]


def _predecessors(ops: tuple[Op, ...]) -> list[tuple[int, ...]]:
    """By index of an operation the indices of the operations that it waits for."""
    index_of = {op.name: index for index, op in enumerate(ops)}
    if len(index_of) != len(ops):
        raise DeclinedError("two operations of a rank have one name")
    try:
        return [tuple(sorted(index_of[name] for name in op.after)) for op in ops]
    except KeyError as error:
        raise DeclinedError(f"an operation waits for {error}, which is not there") from None


def _compare(rank: int, ops: tuple[Op, ...], first: tuple[Op, ...], after: list[tuple[int, ...]]) -> None:
    """Raise DeclinedError if a rank does something else than rank 0, or waits for something else."""
    if len(ops) != len(first):
        raise DeclinedError("ranks have lists of unlike length")
    if _predecessors(ops) != after:
        raise DeclinedError(f"rank {rank} waits for other operations than rank 0")
    for own, other in zip(ops, first, strict=True):
        if own is not other and _common(own) != _common(other):
            raise DeclinedError(f"rank {rank} does {own.name!r} where rank 0 does {other.name!r}")


def _common(op: Op) -> tuple[object, ...]:
    """Everything of an operation that must be the same on all ranks."""
    if isinstance(op, Compute):
        return Compute, op.stream, op.on_gpu
    if isinstance(op, Collective):
        return Collective, op.stream, op.takes_sms, op.together
    if isinstance(op, Allocate):
        return Allocate, op.stream, op.name, op.nbytes, op.category
    return Free, op.stream, op.allocation


def _collectives(ops: Sequence[Op]) -> tuple[Collective, ...]:
    return tuple({op.name: op for op in ops if isinstance(op, Collective)}.values())


def _spmd_op(
    index: int, ops: Sequence[Op], busy: list[int], after: tuple[int, ...], collectives: tuple[Collective, ...]
) -> SpmdOp:
    """Merge the operations of all ranks at one index, or take the one that they have in common."""
    if isinstance(ops[0], Compute):
        durations = [
            (o.duration, o.duration if o.contended is None else o.contended) for o in ops if isinstance(o, Compute)
        ]
        alone, contended = np.array(durations).T
        return SpmdOp(index, ops[0], after, alone, contended)
    if collectives and sorted(chain.from_iterable(op.group for op in collectives)) != busy:
        raise DeclinedError(f"{collectives[0].name!r} is not done by every rank once")
    return SpmdOp(index, ops[0], after, _NONE, _NONE, collectives)
