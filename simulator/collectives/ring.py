"""Ring: in every round each rank sends one chunk to the next rank; N-1 rounds reduce-scatter, N-1 rounds all-gather.

In the reduce-scatter chunk c starts at the rank after c on the ring and ends at rank c. Its sum is therefore added in
the order of travel, and rank c adds its own part last.

References
----------
.. [1] Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from simulator.basics.arrays import Ints
from simulator.collectives.algorithm import Algorithm, Request, Sizes, always, least_volume, ring_steps
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule


def all_reduce(request: Request) -> Schedule:
    """Sum one array over all ranks: a reduce-scatter, then an all-gather; 2(N-1) rounds of N transfers."""
    return side_by_side(request, 1, lambda: [request.order])


def reduce_scatter(request: Request) -> Schedule:
    """Reduce chunk c to rank c; N-1 rounds of N transfers."""
    return side_by_side(request, 1, lambda: [request.order])


def all_gather(request: Request) -> Schedule:
    """Send chunk r of every rank r to all ranks; N-1 rounds of N transfers."""
    return side_by_side(request, 1, lambda: [request.order])


def side_by_side(
    request: Request, rings: int, in_order: Callable[[], Sequence[Sequence[int]]], algorithm: str = "ring"
) -> Schedule:
    """Plan rings that run at once, each with its own share of every rank's part.

    Parameters
    ----------
    request : Request
    rings : int
    in_order : callable () -> sequence of sequence of int
        The ranks of each ring in its order of travel; ring j carries the j-th of `rings` pieces of each part.
    algorithm : str

    Returns
    -------
    Schedule
        N-1 rounds (2(N-1) for all_reduce) of N transfers in each ring; one channel for each ring and source.
    """
    n = request.world_size
    steps = n - 1
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    phases = [(True, 0)] * reducing + [(False, steps)] * copying

    @cache
    def travel() -> Ints:
        return np.array(in_order())

    def parts() -> Iterator[Round | Repeat]:
        orders = travel()
        src, dst = orders.ravel(), np.roll(orders, -1, axis=1).ravel()
        ring, place = np.divmod(np.arange(n * rings), n)
        behind = ring * n + (place - 1) % n
        ones = np.ones(n * rings, np.int64)
        # Row i, column j: the chunk that ring j carries of the part of the rank at its place i.
        table = (orders.T * rings + np.arange(rings)).ravel()

        def transfers(start: int, number: int, *, reduce: bool) -> Round:
            # In step k of the reduce-scatter the rank at place i sends the chunk that started at place i - k and will
            # end at place i - k - 1; the all-gather continues this rule from step N - 1.
            waits = np.where(number > 0, number - n * rings + behind, -1)
            first = ((place - start - 1) % n) * rings + ring
            return Round(src, dst, first, ones, np.full(n * rings, reduce), ring * n + place, waits[:, None])

        number = 0
        for reduce, start in phases:
            # The very first round waits for no transfer, so it is not part of the repeated round.
            alone = 1 if number == 0 else 0
            if alone:
                yield Repeat(transfers(start, 0, reduce=reduce), 1, -rings, table)
            if steps > alone:
                yield Repeat(
                    transfers(start + alone, number + alone * n * rings, reduce=reduce), steps - alone, -rings, table
                )
            number += steps * n * rings

    rows = n * rings * (len(phases) + (steps > 1))
    return Schedule(
        request.operation, algorithm, n, 0, n * rings, ReductionOrder.IN_SEQUENCE, parts, pieces=rings, rows=rows
    )


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """(N-1)(alpha + ceil(n/N) e / beta), twice for all_reduce: the largest chunk sets the time of a step [1]_."""
    link = network.neighbours(request.order)
    if link is None:
        return None
    n = request.world_size
    largest = -(-request.elements // n)
    time = network.startup
    if request.operation != "all_gather":
        if not network.hbm_bears(link.rate(1)):
            return None
        time += (n - 1) * (link.latency + largest * sizes.reduced / link.rate(1))
    if request.operation != "reduce_scatter":
        time += (n - 1) * (link.latency + largest * sizes.copied / link.rate(1))
    return time


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather},
    volume=least_volume,
    minimal=always,
    in_libraries=always,
    closed_form=closed_form,
    options=("rank_order",),
    steps=ring_steps,
)
