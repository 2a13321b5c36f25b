"""Chain: the ranks form a line, and the array travels along the line in pieces: every link carries data at once.

Each rank forwards a piece upon arrival, while the next piece arrives.

Example: a broadcast of 2 pieces over 3 ranks from rank 0.

    0 -> 1   piece 0   piece 1
    1 -> 2             piece 0   piece 1
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulator.collectives.algorithm import Algorithm, CollectiveRequest, ElementSizes, always, least_volume
from simulator.collectives.example import in_pieces
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept

# Enough pieces that filling the pipeline costs little (N - 2 of N - 2 + k pieces), few enough that latencies do not
# dominate. The best number, sqrt((N - 2) S / (alpha beta)), depends on the network, which a schedule does not know.
PIECES = 16


def broadcast(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a chain broadcast: the root's array travels along a line of ranks, piece by piece."""
    return _schedule(request, reduce=False)


def reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a chain reduce: sums travel along a line of ranks to the root, piece by piece.

    The root adds its own part last.
    """
    return _schedule(request, reduce=True)


def _line(request: CollectiveRequest) -> list[int]:
    """Return the ranks' places in the order of travel: away from the root, or towards the root for a reduce."""
    order = list(request.order)
    # The line begins at the root and wraps round the end of the rank order.
    at = order.index(request.root)
    away = order[at:] + order[:at]
    return away[::-1] if request.operation == "reduce" else away


def pieces(request: CollectiveRequest) -> int:
    """Return the number of pieces for the array: the requested number, else at most 16, without empty pieces."""
    return request.chunks or max(1, min(PIECES, request.elements))


def _schedule(request: CollectiveRequest, *, reduce: bool) -> Schedule:
    n, cut = request.world_size, pieces(request)

    def parts() -> Iterator[Round | Repeat]:
        builder, hops = ScheduleBuilder(), list(pairwise(_line(request)))
        for piece in range(cut):
            arrived: int | None = None
            for src, dst in hops:
                # A link carries the pieces in order, because pieces of a source queue in the same channel.
                arrived = builder.send(src, dst, piece, 1, reduce=reduce, channel=src, after=[arrived])
            builder.end_round()
        return builder.parts()

    rows = cut * (n - 1)
    return Schedule(
        request.operation, "chain", n, 0, cut, ReductionOrder.IN_SEQUENCE, kept(parts), request.root, rows=rows
    )


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return a chain's time on an idle network: (N-1) alpha + (N-2+k) S / (k beta) [s], for k pieces with k | n.

    Later pieces' latencies overlap earlier pieces. The result is None if the formula is not exact.
    """
    link = network.line(_line(request))
    n, k = request.world_size, pieces(request)
    if link is None or request.elements % k:
        return None
    reducing = request.operation == "reduce"
    if reducing and not network.hbm_bears(link.rate(1)):
        return None
    piece = request.elements // k * (sizes.reduced if reducing else sizes.copied)
    return network.startup + (n - 1) * link.latency + (n - 2 + k) * piece / link.rate(1)


ALGORITHM = Algorithm(
    summary="ranks form a line, along which the array travels in pieces",
    plans={"broadcast": broadcast, "reduce": reduce},
    volume=least_volume,
    minimal=always,
    in_libraries=always,
    closed_form=closed_form,
    options=("rank_order", "chunks"),
    chooses_chunks=True,
    examples=in_pieces,
)
