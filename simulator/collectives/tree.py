"""Binomial tree: in each round of a broadcast the number of ranks with the data doubles; a reduce is the reverse.

Ranks are numbered from the root. In round j of a reduce, every rank with lowest set bit j sends to the rank whose
number is smaller by 2^j. A broadcast runs these rounds backwards, so the farthest rank receives first.

Example with N = 4 and root 0:

    reduce       round 0   1 -> 0, 3 -> 2        broadcast    round 0   0 -> 2
                 round 1   2 -> 0                             round 1   0 -> 1, 2 -> 3

References
----------
.. [1] Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    least_volume,
    one_a_node,
    own_part,
    tree_steps,
)
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


def reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a binomial-tree reduce: sums travel towards the root in ceil(log2 N) rounds."""
    return _schedule(request, lambda builder: _up(builder, request, uncut=True, add=True), 1)


def broadcast(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a binomial-tree broadcast: every rank gets the root's array in ceil(log2 N) rounds."""
    return _schedule(request, lambda builder: _down(builder, request, None, uncut=True), 1)


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for an all-reduce: a binomial-tree reduce to rank 0, then a broadcast from rank 0."""

    def there_and_back(builder: ScheduleBuilder) -> None:
        _down(builder, request, _up(builder, request, uncut=True, add=True), uncut=True)

    return _schedule(request, there_and_back, 1, phases=2)


def scatter(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a binomial-tree scatter: each rank passes on the parts for the ranks below."""
    return _schedule(request, lambda builder: _down(builder, request, None, uncut=False), request.world_size)


def gather(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a binomial-tree gather: each rank sends the rank's own part and the parts from below."""
    return _schedule(request, lambda builder: _up(builder, request, uncut=False, add=False), request.world_size)


def _schedule(
    request: CollectiveRequest, go: Callable[[ScheduleBuilder], object], chunks: int, phases: int = 1
) -> Schedule:
    n, root = request.world_size, request.root

    def parts() -> Iterator[Round | Repeat]:
        builder = ScheduleBuilder()
        go(builder)
        return builder.parts()

    # Both directions have one transfer for each rank except the root.
    rows = phases * (n - 1)
    return Schedule(request.operation, "tree", n, 0, chunks, ReductionOrder.IN_SEQUENCE, kept(parts), root, rows=rows)


def _rounds(n: int) -> range:
    return range((n - 1).bit_length())


def _part(request: CollectiveRequest, virtual: int, j: int, *, uncut: bool) -> tuple[int, int]:
    """Return first chunk and number of chunks of the subtree below rank `virtual` at level j (0 and 1 if `uncut`).

    Ranks are counted from the root. The run of chunks may wrap round the end.
    """
    if uncut:
        return 0, 1
    # Chunks are numbered by rank, and virtual ranks by distance from the root, so chunks start at `root`. With
    # N = 4 and root 1, virtual rank 2 passes on chunks 3 and 0.
    return (virtual + request.root) % request.world_size, min(1 << j, request.world_size - virtual)


def _up(builder: ScheduleBuilder, request: CollectiveRequest, *, uncut: bool, add: bool) -> int | None:
    """Add the tree's rounds towards the root to a schedule; return the number of the last transfer into the root.

    `uncut`: transfers carry the whole array, otherwise parts; `add`: receivers add, otherwise collect.
    """
    n, root = request.world_size, request.root
    arrived: dict[int, list[int]] = {virtual: [] for virtual in range(n)}
    for j in _rounds(n):
        # Virtual ranks with lowest set bit j: 2^j, 3 x 2^j, 5 x 2^j, ...
        for virtual in range(1 << j, n, 2 << j):
            above = virtual - (1 << j)
            first, count = _part(request, virtual, j, uncut=uncut)
            # Adds into a chunk wait for each other: waiting for the last add is enough. Gathered parts are
            # different chunks, and the transfer waits for each part.
            after = arrived[virtual][-1:] + arrived[above][-1:] if add else arrived[virtual]
            src, dst = (virtual + root) % n, (above + root) % n
            arrived[above].append(builder.send(src, dst, first, count, reduce=add, channel=src, after=after))
        builder.end_round()
    return arrived[0][-1]


def _down(builder: ScheduleBuilder, request: CollectiveRequest, ready: int | None, *, uncut: bool) -> None:
    """Add the tree's rounds away from the root to a schedule, after transfer `ready`; the farthest rank receives first.

    `uncut`: transfers carry the whole array, otherwise parts.
    """
    n, root = request.world_size, request.root
    arrived: dict[int, int | None] = {0: ready}
    for j in reversed(_rounds(n)):
        for virtual in range(1 << j, n, 2 << j):
            above = virtual - (1 << j)
            first, count = _part(request, virtual, j, uncut=uncut)
            src, dst = (above + root) % n, (virtual + root) % n
            arrived[virtual] = builder.send(src, dst, first, count, reduce=False, channel=src, after=[arrived[above]])
        builder.end_round()


def volume(request: CollectiveRequest) -> int:
    """Return the elements on the wire of a tree collective: (N-1) S for each direction.

    Scatter and gather send each part once on each level that the part passes.
    """
    if request.operation not in ("scatter", "gather"):
        return least_volume(request)
    n, root = request.world_size, request.root
    # Virtual rank v is as many levels from the root as v has bits set: rank 5 = 0b101 sends over rank 4 to rank 0.
    return sum(own_part(request, (v + root) % n) * v.bit_count() for v in range(n))


def minimal(request: CollectiveRequest) -> bool:
    """Return True if the tree's volume is the least possible: False for scatter and gather over 4 or more ranks."""
    return request.operation not in ("scatter", "gather") or request.world_size < 4


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time for a tree collective on a star or full mesh [s], with L = ceil(log2 N); None if inexact.

    reduce: L(alpha + S/beta). broadcast: L S/beta + (L - u) alpha, where u = 1 unless N is a power of two.
    scatter and gather, for N = 2^L dividing n: L alpha + (N-1)/N S/beta [1]_.
    """
    link = network.port or network.mesh
    if link is None:
        return None
    n, levels = request.world_size, len(_rounds(request.world_size))
    uneven = n != 1 << levels
    rate, alpha = link.rate(1), link.latency
    if request.operation in ("scatter", "gather"):
        if uneven or request.elements % n:
            return None
        return network.startup + levels * alpha + (n - 1) * (request.elements // n) * sizes.copied / rate
    if request.operation != "broadcast" and not network.hbm_bears(rate):
        return None
    up = levels * (alpha + request.elements * sizes.reduced / rate)
    down = levels * request.elements * sizes.copied / rate + (levels - uneven) * alpha
    return network.startup + {"reduce": up, "broadcast": down, "all_reduce": up + down}[request.operation]


ALGORITHM = Algorithm(
    summary="binomial tree: the number of ranks with the data doubles in each round",
    plans={
        "all_reduce": all_reduce,
        "broadcast": broadcast,
        "reduce": reduce,
        "scatter": scatter,
        "gather": gather,
    },
    # MPI libraries, whose ranks are nodes of their own: Thakur, Rabenseifner & Gropp 2005.
    in_libraries=one_a_node,
    volume=volume,
    minimal=minimal,
    closed_form=closed_form,
    steps=tree_steps,
)
