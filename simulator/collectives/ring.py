"""Ring: in every round each rank sends one chunk to the next rank; N-1 rounds reduce-scatter, N-1 rounds all-gather.

In the reduce-scatter, chunk c starts at the rank after c on the ring and ends at rank c. The sum is therefore added in
ring order, and rank c adds its own part last.

Example with N = 3: chunk that each rank sends to the next rank.

    round                  0 -> 1   1 -> 2   2 -> 0
    1  add                 2        0        1
    2  add                 1        2        0        now rank c holds the sum of chunk c
    3  copy                0        1        2
    4  copy                2        0        1

References
----------
.. [1] Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Ints
from simulator.collectives.algorithm import Algorithm, CollectiveRequest, ElementSizes, always, least_volume, ring_steps
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule

# Most steps of a search for a ring over links: some tenths of a second.
_MOST_TRIED: Final = 100_000


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a ring all-reduce: reduce-scatter, then gather; 2(N-1) rounds with N transfers each."""
    return side_by_side(request, 1, lambda: [request.order])


def reduce_scatter(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a ring reduce-scatter: rank c gets the sum of chunk c; N-1 rounds with N transfers."""
    return side_by_side(request, 1, lambda: [request.order])


def all_gather(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a ring all-gather: every rank gets each rank's chunk; N-1 rounds with N transfers."""
    return side_by_side(request, 1, lambda: [request.order])


def side_by_side(
    request: CollectiveRequest, rings: int, in_order: Callable[[], Sequence[Sequence[int]]], algorithm: str = "ring"
) -> Schedule:
    """Return a schedule for rings running at once; each ring carries a share from every rank's part.

    Parameters
    ----------
    rings : int
        Number of rings.
    in_order : callable () -> sequence of sequence of int
        Returns the rank order of each ring; ring j carries the j-th of `rings` pieces of each part.

    Returns
    -------
    Schedule
        N-1 rounds (2(N-1) for all_reduce) of N transfers in each ring; one channel for each ring and source.
    """
    n = request.world_size
    steps = n - 1
    reducing, copying = request.operation != "all_gather", request.operation != "reduce_scatter"
    phases = [(True, 0)] * reducing + [(False, steps)] * copying

    # The orders for many rings are large: compute them when the schedule is first read, and only once.
    @cache
    def travel() -> Ints:
        return np.array(in_order())

    def parts() -> Iterator[Round | Repeat]:
        orders = travel()
        src, dst = orders.ravel(), np.roll(orders, -1, axis=1).ravel()
        ring, place = np.divmod(np.arange(n * rings), n)
        # Index in the round: transfer from the previous rank on the ring, which brings the chunk to be sent next.
        behind = ring * n + (place - 1) % n
        ones = np.ones(n * rings, np.int64)
        # Row i, column j: chunk on ring j from the part owned by the rank at place i.
        table = (orders.T * rings + np.arange(rings)).ravel()

        def transfers(start: int, number: int, *, reduce: bool) -> Round:
            # In step k of the reduce-scatter, the rank at place i sends the chunk that started at place i - k and will
            # end at place i - k - 1. The gather continues this pattern from step N - 1 on.
            waits = np.where(number > 0, number - n * rings + behind, -1)
            first = ((place - start - 1) % n) * rings + ring
            return Round(src, dst, first, ones, np.full(n * rings, reduce), ring * n + place, waits[:, None])

        number = 0
        for reduce, start in phases:
            # The very first round waits for no transfer and is therefore separate from the repeated round.
            first = 1 if number == 0 else 0
            if first:
                yield Repeat(transfers(start, 0, reduce=reduce), 1, -rings, table)
            if steps > first:
                yield Repeat(
                    transfers(start + first, number + first * n * rings, reduce=reduce), steps - first, -rings, table
                )
            number += steps * n * rings

    rows = n * rings * (len(phases) + (steps > 1))
    # Each phase is a single repeated record for any N; the first round adds another record.
    return Schedule(
        request.operation, algorithm, n, 0, n * rings, ReductionOrder.IN_SEQUENCE, parts, pieces=rings, rows=rows
    )


def widest_order(bandwidth: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the order of ranks 0 .. N - 1 in the ring over links whose slowest link is the fastest.

    Parameters
    ----------
    bandwidth : sequence of sequences, shape (N, N)
        In row i, column j: bandwidth of the link from rank i to rank j [B/s]; 0 without a link.

    Returns
    -------
    tuple of int
        From rank 0 on, and lexicographically first of several; empty if no ring over links visits all N ranks, or if a
        search of limited length finds none.

    Examples
    --------
    The links 0-2, 2-1, 1-3 and 3-0 are twice as wide as the others.

    >>> widest_order([[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 0, 1], [2, 2, 1, 0]])
    (0, 2, 1, 3)
    """
    # Without a ring, a dense graph has (N - 1)! paths. A rank with a single link is in no ring.
    steps = iter(range(_MOST_TRIED))
    for least in sorted({width for row in bandwidth for width in row if width}, reverse=True):
        neighbours = [[to for to, width in enumerate(row) if width >= least] for row in bandwidth]
        paths = [[0]] if min(map(len, neighbours)) > 1 else []
        while paths and next(steps, None) is not None:
            path = paths.pop()
            if len(path) == len(neighbours) and 0 in neighbours[path[-1]]:
                return tuple(path)
            paths += [[*path, place] for place in reversed(neighbours[path[-1]]) if place not in path]
    return ()


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return a ring's time on an idle network: (N-1)(alpha + ceil(n/N) e / beta) [s], twice for all_reduce; or None.

    The largest chunk bounds each step [1]_. The result is None if the ring's hops differ or share links.
    """
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
    summary="each rank sends chunks to the next rank; N-1 rounds add, N-1 rounds gather",
    plans={"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather},
    volume=least_volume,
    minimal=always,
    in_libraries=always,
    closed_form=closed_form,
    options=("rank_order",),
    steps=ring_steps,
)
