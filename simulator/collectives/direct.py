"""Direct: every rank sends each part straight to the rank that needs the part, in a single hop.

A receiver buffers the parts to be added and adds them in rank order, including its own part. The result does not
depend on the arrival order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simulator.basics.arrays import Bools, Ints
from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    Flows,
    always,
    direct_steps,
    least_volume,
    sent_by_each,
)
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule

Pairs = tuple[Ints, Ints]
First = Callable[[Ints, Ints], Ints]


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct all-reduce: reduce-scatter, then gather, a round each; 2 N(N-1) transfers."""
    n = request.world_size

    def parts() -> Iterator[Round]:
        src, dst = _pairs(request)
        yield _round(src, dst, dst, reduce=True, channel=src * n + dst)
        # A rank sends its sum on when all parts have arrived. N - 1 transfers share the same waits (`gate`): separate
        # rows of waits would take N^3 numbers.
        into = np.array([np.flatnonzero(dst == rank) for rank in range(n)])
        yield _round(src, dst, src, reduce=False, channel=src * n + dst, after=into, gate=src)

    return _schedule(request, n, parts, 2 * n * (n - 1))


def reduce_scatter(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct reduce-scatter: every rank sends chunk c to rank c, which adds."""
    return _among_all(request, lambda src, dst: dst, request.world_size, reduce=True)


def all_gather(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct all-gather: every rank sends its chunk to every other rank."""
    return _among_all(request, lambda src, dst: src, request.world_size)


def all_to_all(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct all-to-all: rank i sends part j, chunk i N + j, to rank j."""
    n = request.world_size
    return _among_all(request, lambda src, dst: src * n + dst, n * n)


def broadcast(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct broadcast: the root sends the whole array to every other rank."""
    return _from_root(request, lambda src, dst: np.zeros_like(dst), 1)


def reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct reduce: every other rank sends the whole array to the root, and the root adds."""
    return _to_root(request, lambda src, dst: np.zeros_like(src), 1, reduce=True)


def scatter(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct scatter: the root sends each rank its chunk."""
    return _from_root(request, lambda src, dst: dst, request.world_size)


def gather(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a direct gather: every rank sends its chunk to the root."""
    return _to_root(request, lambda src, dst: src, request.world_size)


def _pairs(request: CollectiveRequest) -> Pairs:
    n = request.world_size
    src, dst = np.divmod(np.arange(n * n), n)
    mask = src != dst
    return src[mask], dst[mask]


def _out(request: CollectiveRequest) -> Pairs:
    ranks = np.arange(request.world_size, dtype=np.int64)
    others = ranks[ranks != request.root]
    return np.full_like(others, request.root), others


def _among_all(request: CollectiveRequest, first: First, chunks: int, *, reduce: bool = False) -> Schedule:
    n = request.world_size
    return _one_round(request, lambda: _pairs(request), first, chunks, n * (n - 1), reduce=reduce)


def _from_root(request: CollectiveRequest, first: First, chunks: int) -> Schedule:
    return _one_round(request, lambda: _out(request), first, chunks, request.world_size - 1, reduce=False)


def _to_root(request: CollectiveRequest, first: First, chunks: int, *, reduce: bool = False) -> Schedule:
    return _one_round(request, lambda: _out(request)[::-1], first, chunks, request.world_size - 1, reduce=reduce)


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


def _one_round(
    request: CollectiveRequest, ends: Callable[[], Pairs], first: First, chunks: int, rows: int, *, reduce: bool
) -> Schedule:
    """Return a schedule with a single round; `ends` gives senders and receivers, `first` each transfer's chunk."""

    def parts() -> Iterator[Round]:
        src, dst = ends()
        yield _round(src, dst, first(src, dst), reduce=reduce, channel=src * request.world_size + dst)

    return _schedule(request, chunks, parts, rows)


def _schedule(request: CollectiveRequest, chunks: int, parts: Callable[[], Iterator[Round]], rows: int) -> Schedule:
    n, root = request.world_size, request.root
    return Schedule(request.operation, "direct", n, 0, chunks, ReductionOrder.BUFFERED, parts, root, rows=rows)


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time for a direct collective on an idle network [s]; None if no formula is exact.

    For messages of m bytes, a phase takes alpha + (N-1) m/beta on a star, and alpha + m/beta with dedicated links.
    all_reduce has two phases. Chunks must have equal sizes.
    """
    n = request.world_size
    link = network.port or network.mesh
    uncut = request.operation in ("broadcast", "reduce")
    if link is None or (request.elements % n and not uncut):
        return None
    phases = 2 if request.operation == "all_reduce" else 1
    rate = link.rate(n - 1 if network.port else 1)
    if request.operation in ("all_reduce", "reduce_scatter", "reduce") and not network.hbm_bears((n - 1) * rate):
        return None
    # `copied` for adds too: with buffered adds, ranks send their inputs, and no partial sums in a wider dtype.
    message = (request.elements if uncut else request.elements // n) * sizes.copied
    return network.startup + phases * (link.latency + message / rate)


def flows(request: CollectiveRequest) -> Flows:
    """Return how many flows a rank sends at once: to ranks in the same node, and to other nodes."""
    n = request.world_size
    most, least = max(map(len, request.nodes), default=n), min(map(len, request.nodes), default=n)
    return Flows(max(1, most - 1), max(1, n - least))


ALGORITHM = Algorithm(
    summary="each rank sends each part straight to the rank that needs the part",
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
    flows=flows,
    # RCCL runs as many rings over a full mesh as a GPU has links.
    in_libraries=lambda request: sent_by_each(request) or (request.mesh and len(request.nodes) < 2),
    steps=direct_steps,
)
