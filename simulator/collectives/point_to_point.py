"""A send from one rank to another, as one transfer; and all ranks of a ring sending to their next at once.

Rule: the machine's caps are those of its measured sends, or, where nobody has measured any, of its other collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Cluster, Steps
from simulator.collectives.constants import source_of
from simulator.records.operation import Collective
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule

# Whose constants stand for a send's, the first that there is: what only moves data is nearest.
_LIKE: Final = ("send", "all_gather", "broadcast", "all_reduce")


@cache
def _schedule() -> Schedule:
    def parts() -> Iterator[Round]:
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        yield Round(zero, one, zero, one, zero.astype(np.bool_), zero, -one[:, None])

    return Schedule("send", "send", 2, 0, 1, ReductionOrder.IN_SEQUENCE, parts, rows=1)


def point_to_point(cluster: Cluster, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
    """So many elements from the first rank of a group to its second."""
    op = _sent(cluster, elements, dtype, group, _schedule())
    # A receiver is there early and waits; what a single transfer takes of the SMs is not modelled.
    return replace(op, takes_sms=False, rendezvous=True)


@cache
def _shift(ranks: int) -> Schedule:
    def parts() -> Iterator[Round]:
        src = np.arange(ranks)
        one, zero = np.ones(ranks, np.int64), np.zeros(ranks, np.int64)
        yield Round(src, (src + 1) % ranks, src, one, zero.astype(np.bool_), src, -one[:, None])

    return Schedule("ring_shift", "send", ranks, 0, ranks, ReductionOrder.IN_SEQUENCE, parts, rows=ranks)


def ring_shift(cluster: Cluster, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
    """Each rank's part of so many elements to the next rank; the last one's to the first."""
    return _sent(cluster, elements, dtype, group, _shift(len(group)))


def _step(cluster: Cluster, group: tuple[int, ...]) -> Steps:
    """Every rank sends once; where any of them sends to another node the others wait for it."""
    node_of = cluster.node_of()
    return Steps(inside=1) if len({node_of.get(rank) for rank in group}) == 1 else Steps(across=1)


def _sent(cluster: Cluster, elements: int, dtype: str, group: tuple[int, ...], schedule: Schedule) -> Collective:
    machine = next(filter(None, (cluster.machine(name, group) for name in _LIKE)), None)
    itemsize = find(dtype).itemsize
    factor = machine.factor(elements * itemsize) if machine else 1.0
    return Collective(
        name=schedule.operation,
        group=group,
        schedule=schedule,
        elements=elements,
        itemsize=itemsize,
        reduce_itemsize=itemsize,
        dtype=dtype,
        startup=machine.latency(_step(cluster, group)) if machine else 0.0,
        rate_cap=machine.rate_cap * factor if machine else float("inf"),
        cross_rate_cap=machine.cross_rate_cap * factor if machine else float("inf"),
        why="every rank sends once",
        constants=source_of(cluster, machine),
    )
