"""Ring: every rank hands a chunk to the next one, again and again.

Like passing plates round a table: once to fill them, once more to serve them.

Chunk c ends its reduce-scatter at rank c. It starts at the rank after c on the ring, so its sum is added up in the
order of travel, and rank c's own part comes last.

References
----------
.. [1] Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.collectives.algorithm import Algorithm, Request, Sizes, always, least_volume
from simulator.collectives.idle import IdleNetwork
from simulator.schedule import Repeat, Round, Schedule


def all_reduce(request: Request) -> Schedule:
    """Sum one array over all ranks: a reduce-scatter, then an all-gather; 2(N-1) rounds of N transfers."""
    return _schedule(request, reducing=request.world_size - 1, copying=request.world_size - 1)


def reduce_scatter(request: Request) -> Schedule:
    """Leave the sum of chunk c on rank c; N-1 rounds of N transfers."""
    return _schedule(request, reducing=request.world_size - 1, copying=0)


def all_gather(request: Request) -> Schedule:
    """Bring chunk r of every rank r to all; N-1 rounds of N transfers."""
    return _schedule(request, reducing=0, copying=request.world_size - 1)


def _schedule(request: Request, *, reducing: int, copying: int) -> Schedule:
    n = request.world_size
    order = np.array(request.order)
    place = np.arange(n)
    ones = np.ones(n, np.int64)

    def transfers(start: int, number: int, *, reduce: bool) -> Round:
        # The sender at place i hands on, in step k of the reduce-scatter, the chunk that started at place i - k and
        # will end at place i - k - 1; the all-gather goes on in the same way, from step N - 1.
        waits = np.where(number > 0, number - n + (place - 1) % n, -1)
        kind = np.full(n, reduce)
        return Round(order, np.roll(order, -1), (place - start - 1) % n, ones, kind, place, waits[:, None])

    def parts() -> Iterator[Round | Repeat]:
        number = 0
        for times, reduce, start in ((reducing, True, 0), (copying, False, n - 1)):
            if not times:
                continue
            # The first round of all waits for nothing, so it stands alone.
            alone = 1 if number == 0 else 0
            if alone:
                yield Repeat(transfers(start, 0, reduce=reduce), 1, -1, order)
            if times > alone:
                yield Repeat(transfers(start + alone, number + alone * n, reduce=reduce), times - alone, -1, order)
            number += times * n

    return Schedule(request.operation, "ring", n, 0, n, "in_sequence", parts)


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """(N-1)(alpha + ceil(n/N) e / beta), twice for all_reduce: the largest chunk rules every hop [1]_."""
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
    closed_form=closed_form,
    options=("rank_order",),
)
