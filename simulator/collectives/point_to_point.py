"""A send from one rank to another as a single transfer; and a ring shift: every rank sends to the next rank at once.

The machine's caps come from measured sends or, without any, from other collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Cluster, Steps
from simulator.collectives.constants import as_library, source_of
from simulator.records.operation import Collective, ElementSizes, RateCaps
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule

# Operations whose constants may be used for a send, in order of preference: pure data movement is nearest.
_LIKE: Final = ("send", "all_gather", "broadcast", "all_reduce")


@cache
def _schedule() -> Schedule:
    def parts() -> Iterator[Round]:
        zeros, ones = np.zeros(1, np.int64), np.ones(1, np.int64)
        yield Round(zeros, ones, zeros, ones, zeros.astype(np.bool_), zeros, -ones[:, None])

    return Schedule("send", "send", 2, 0, 1, ReductionOrder.IN_SEQUENCE, parts, rows=1)


def point_to_point(cluster: Cluster, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
    """Return a point-to-point send of `elements` elements from the first to the second rank of a group."""
    op = _sent(cluster, elements, dtype, group, _schedule())
    # The receiver arrives early and waits. The SM use of a single transfer is not modelled.
    return replace(op, takes_sms=False, rendezvous=True)


@cache
def _shift(ranks: int) -> Schedule:
    def parts() -> Iterator[Round]:
        src = np.arange(ranks)
        ones, zeros = np.ones(ranks, np.int64), np.zeros(ranks, np.int64)
        yield Round(src, (src + 1) % ranks, src, ones, zeros.astype(np.bool_), src, -ones[:, None])

    return Schedule("ring_shift", "send", ranks, 0, ranks, ReductionOrder.IN_SEQUENCE, parts, rows=ranks)


def ring_shift(cluster: Cluster, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
    """Return a ring shift: each rank of a group sends `elements` elements to the next rank, the last to the first."""
    return _sent(cluster, elements, dtype, group, _shift(len(group)))


def _step(cluster: Cluster, group: tuple[int, ...]) -> Steps:
    """Return one step, between nodes if the group's ranks are on several nodes, otherwise inside a node."""
    node_of = cluster.node_of()
    return Steps(inside=1) if len({node_of.get(rank) for rank in group}) == 1 else Steps(across=1)


def _sent(cluster: Cluster, elements: int, dtype: str, group: tuple[int, ...], schedule: Schedule) -> Collective:
    machine = next(filter(None, (cluster.machine(name, group) for name in _LIKE)), None)
    itemsize = find(dtype).itemsize
    factor = machine.factor(elements * itemsize) if machine else 1.0
    op = Collective(
        name=schedule.operation,
        group=group,
        schedule=schedule,
        elements=elements,
        sizes=ElementSizes(itemsize, itemsize),
        dtype=dtype,
        startup=machine.latency(_step(cluster, group)) if machine else 0.0,
        caps=RateCaps(machine.rate_cap * factor, machine.cross_rate_cap * factor, source_of(cluster, machine))
        if machine
        else RateCaps(),
        why="every rank sends one message",
    )
    return as_library(cluster, op, _step(cluster, group))
