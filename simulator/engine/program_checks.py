"""Does a program contradict itself, and what does an operation wait for? Both engines share these checks and texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.basics.errors import DeadlockError, few
from simulator.cluster.changes import RateChange
from simulator.cluster.cluster import Cluster
from simulator.records.operation import Collective, Op
from simulator.records.program import Program


def check_program(program: Program, cluster: Cluster) -> None:
    """Raise ValueError if a cluster cannot run a program.

    Checks: too many ranks, duplicate or unknown names, and a rank with a collective whose groups do not contain it.
    """
    ranks = len(program.ranks)
    if ranks > cluster.world_size:
        raise ValueError(f"the program has {ranks} ranks, the cluster {cluster.world_size}")
    lists = program.lists
    # Arrays instead of loops: a program may have a hundred thousand groups.
    of_kind = [np.concatenate([np.array(op.group, np.int64) for op in members]) for members in lists.kinds]
    for members, groups in zip(lists.kinds, of_kind, strict=True):
        if groups.min() < 0 or groups.max() >= ranks:
            outside = next(op for op in members if min(op.group) < 0 or max(op.group) >= ranks)
            raise ValueError(f"{outside.name!r} names ranks {list(outside.group)}; the program has 0 .. {ranks - 1}")
    list_of = np.array(lists.list_of, np.int64)
    for number, ops in enumerate(lists.lists):
        _check_list(lists.list_of.index(number), ops)
        ranks_of_list, checked = np.flatnonzero(list_of == number), set[int]()
        for op, family in zip(ops, lists.family_at[number], strict=True):
            if family < 0 or lists.kind_of[family] in checked:
                continue
            # Families in a kind have equal groups: check each kind once per list.
            checked.add(lists.kind_of[family])
            # A family's list names a collective once; each rank with the list must be in some group of the kind.
            outside_all = ranks_of_list[~np.isin(ranks_of_list, of_kind[lists.kind_of[family]])]
            if len(outside_all):
                raise ValueError(f"rank {outside_all[0]} has {op.name!r}, but is in no group that carries it out")


def changes_of(program: Program, cluster: Cluster) -> tuple[RateChange, ...]:
    """Return the moments of change of a cluster, without GPUs of ranks that the program does not have."""
    place = {rank: rank for rank in range(len(program.ranks))}
    return tuple(change.part(place, len(cluster.router.bandwidth)) for change in cluster.changes)


def never_ends(time: float, collective: str) -> DeadlockError:
    """Return the error for a collective whose ranks have gone on while its last transfers wait for good: the write of a
    checkpoint behind the step; `time` is the time of the last event [s].

    >>> str(never_ends(2.5, "save"))
    "deadlock at 2.5 s: collective 'save' waits for a link that is down for good"
    """
    return DeadlockError(time, {f"collective {collective!r}": "a link that is down for good"})


def _check_list(rank: int, ops: Sequence[Op]) -> None:
    """Raise ValueError if a rank's operations have duplicate names, or wait for unknown names."""
    names = {op.name for op in ops}
    if len(names) != len(ops):
        raise ValueError(f"rank {rank} has two operations of one name")
    for op in ops:
        for name in op.after:
            if name not in names:
                raise ValueError(f"rank {rank}: {op.name!r} waits for {name!r}, which is not there")


def waiting_text(op: Op, awaited: str | None, missing: Sequence[int]) -> str:
    """Return the operation or ranks for which a stream waits, in words.

    Parameters
    ----------
    op : Op
        The stream's present operation.
    awaited : str or None
        Operation of the same rank that must end first.
    missing : sequence of int
        Ranks that have not reached the collective.
    """
    if awaited is not None:
        return f"its own {awaited!r}"
    if isinstance(op, Collective):
        # Eight ranks suffice for a message.
        if missing:
            ranks = few(list(map(str, missing)), 8)
            return f"{op.name!r}, which rank {ranks} has not reached"
        return f"{op.name!r}, whose transfers wait for each other"
    return f"{op.name!r}"
