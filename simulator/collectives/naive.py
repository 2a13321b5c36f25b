"""Naive: every rank sends its whole array to rank 0, which adds the arrays and sends the sum back to every rank.

Rank 0's port carries (N-1) S in each direction, so the time grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    always,
    direct_steps,
    least_volume,
)
from simulator.collectives.direct import flows
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a naive all-reduce: reduce to rank 0, then broadcast; two rounds with N-1 transfers."""
    m = request.world_size - 1

    def parts() -> Iterator[Round]:
        others = np.arange(1, m + 1)
        zeros, ones = np.zeros_like(others), np.ones_like(others)
        nothing = np.full((m, 1), -1)
        yield Round(others, zeros, zeros, ones, ones.astype(np.bool_), others - 1, nothing)
        # Every broadcast transfer waits for the whole reduce: a single shared row of waits, with `gate` 0 for each.
        all_in = np.arange(m)[None, :]
        yield Round(zeros, others, zeros, ones, zeros.astype(np.bool_), others - 1 + m, all_in, gate=zeros)

    return Schedule(request.operation, "naive", request.world_size, 0, 1, ReductionOrder.BUFFERED, parts, rows=2 * m)


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time for a naive all-reduce on an idle network [s]; None if no formula is exact.

    On a star, rank 0's port is the limit: 2(alpha + (N-1) S/beta). On dedicated links: 2(alpha + S/beta).
    """
    m = request.world_size - 1
    link = network.port or network.mesh
    if link is None:
        return None
    rate = link.rate(m if network.port else 1)
    if not network.hbm_bears(m * rate):
        return None
    # `copied` in both directions: adds are buffered, so ranks send their inputs, and no partial sums in a wider dtype.
    return network.startup + 2 * link.latency + request.elements * (sizes.copied + sizes.copied) / rate


ALGORITHM = Algorithm(
    summary="rank 0 receives every array, adds the arrays, and sends the sum to every rank",
    plans={"all_reduce": all_reduce},
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    flows=flows,
    steps=direct_steps,
)
