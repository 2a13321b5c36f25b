"""Direct: every part goes straight from the rank that has it to the rank that needs it.

Like everybody writing to everybody: one hop each, as many letters as pairs. Parts that are to be added are buffered and
added in rank order, the receiver's own in its place, so the result does not depend on who was first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simulator.collectives.algorithm import MOST_TO_ONE, Algorithm, Request, Sizes, always, least_volume
from simulator.collectives.idle import IdleNetwork
from simulator.records.schedule import Bools, Ints, Round, Schedule


def all_reduce(request: Request) -> Schedule:
    """Reduce-scatter, then all-gather, each in one hop: 2 N(N-1) transfers."""
    n = request.world_size
    src, dst = _pairs(n)

    def parts() -> Iterator[Round]:
        yield _round(src, dst, dst, reduce=True, channel=src * n + dst)
        into = np.array([np.flatnonzero(dst == rank) for rank in range(n)])
        yield _round(src, dst, src, reduce=False, channel=src * n + dst, after=into, gate=src)

    return _schedule(request, n, parts)


def reduce_scatter(request: Request) -> Schedule:
    """Chunk c of every rank goes to rank c."""
    src, dst = _pairs(request.world_size)
    return _one_round(request, src, dst, dst, request.world_size, reduce=True)


def all_gather(request: Request) -> Schedule:
    """Every rank sends its chunk to all others."""
    src, dst = _pairs(request.world_size)
    return _one_round(request, src, dst, src, request.world_size, reduce=False)


def all_to_all(request: Request) -> Schedule:
    """Rank i sends its j-th part to rank j; that is chunk i N + j."""
    n = request.world_size
    src, dst = _pairs(n)
    return _one_round(request, src, dst, src * n + dst, n * n, reduce=False)


def broadcast(request: Request) -> Schedule:
    """The root sends the whole array to all others."""
    others = _others(request)
    return _one_round(request, np.full_like(others, request.root), others, np.zeros_like(others), 1, reduce=False)


def reduce(request: Request) -> Schedule:
    """All others send the whole array to the root."""
    others = _others(request)
    return _one_round(request, others, np.full_like(others, request.root), np.zeros_like(others), 1, reduce=True)


def scatter(request: Request) -> Schedule:
    """The root sends each rank its chunk."""
    others = _others(request)
    root = np.full_like(others, request.root)
    return _one_round(request, root, others, others, request.world_size, reduce=False)


def gather(request: Request) -> Schedule:
    """Every rank sends its chunk to the root."""
    others = _others(request)
    root = np.full_like(others, request.root)
    return _one_round(request, others, root, others, request.world_size, reduce=False)


def _pairs(n: int) -> tuple[Ints, Ints]:
    src, dst = np.divmod(np.arange(n * n), n)
    apart = src != dst
    return src[apart], dst[apart]


def _others(request: Request) -> Ints:
    ranks = np.arange(request.world_size, dtype=np.int64)
    others: Ints = ranks[ranks != request.root]
    return others


def _round(
    src: Ints,
    dst: Ints,
    first: Ints,
    *,
    reduce: bool,
    channel: Ints,
    after: Ints | None = None,
    gate: Ints | None = None,
) -> Round:
    flags: Bools = np.full(len(src), reduce)
    waits = np.full((len(src), 1), -1) if after is None else after
    return Round(src, dst, first, np.ones_like(src), flags, channel, waits, gate=gate)


def _one_round(request: Request, src: Ints, dst: Ints, first: Ints, chunks: int, *, reduce: bool) -> Schedule:
    channel = src * request.world_size + dst

    def parts() -> Iterator[Round]:
        yield _round(src, dst, first, reduce=reduce, channel=channel)

    return _schedule(request, chunks, parts)


def _schedule(request: Request, chunks: int, parts: Callable[[], Iterator[Round]]) -> Schedule:
    return Schedule(request.operation, "direct", request.world_size, 0, chunks, "held", parts, request.root)


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """One phase: alpha + (N-1) m/beta on a star, alpha + m/beta with dedicated links, for messages of m bytes.

    all_reduce is two phases. Even chunks only.
    """
    n = request.world_size
    link = network.port or network.mesh
    whole = request.operation in ("broadcast", "reduce")
    if link is None or (request.elements % n and not whole):
        return None
    phases = 2 if request.operation == "all_reduce" else 1
    rate = link.rate(n - 1 if network.port else 1)
    if request.operation in ("all_reduce", "reduce_scatter", "reduce") and not network.hbm_bears((n - 1) * rate):
        return None
    message = (request.elements if whole else request.elements // n) * sizes.copied
    return network.startup + phases * (link.latency + message / rate)


ALGORITHM = Algorithm(
    plans={
        "all_reduce": all_reduce,
        "reduce_scatter": reduce_scatter,
        "all_gather": all_gather,
        "broadcast": broadcast,
        "reduce": reduce,
        "scatter": scatter,
        "gather": gather,
        "all_to_all": all_to_all,
    },
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    most_by_choice=MOST_TO_ONE,
)
