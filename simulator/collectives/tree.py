"""Binomial tree: in each round of a broadcast the number of ranks that have the data doubles; a reduce is the reverse.

Ranks are numbered from the root. In round j of a reduce every rank whose lowest set bit is j sends to the rank whose
number is smaller by 2^j; a broadcast runs these rounds backwards, so the farthest rank receives first.

References
----------
.. [1] Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.collectives.algorithm import Algorithm, Request, Sizes, least_volume, own_part, tree_steps
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


def reduce(request: Request) -> Schedule:
    """Add up towards the root in ceil(log2 N) rounds."""
    return _schedule(request, lambda builder: _up(builder, request, whole=True, add=True), 1)


def broadcast(request: Request) -> Schedule:
    """Send the root's array to all ranks in ceil(log2 N) rounds."""
    return _schedule(request, lambda builder: _down(builder, request, None, whole=True), 1)


def all_reduce(request: Request) -> Schedule:
    """A reduce to rank 0, then a broadcast from it."""

    def there_and_back(builder: ScheduleBuilder) -> None:
        _down(builder, request, _up(builder, request, whole=True, add=True), whole=True)

    return _schedule(request, there_and_back, 1, phases=2)


def scatter(request: Request) -> Schedule:
    """Send halves, quarters, ...: each rank passes on the parts of the ranks below it in the tree."""
    return _schedule(request, lambda builder: _down(builder, request, None, whole=False), request.world_size)


def gather(request: Request) -> Schedule:
    """Collect towards the root: each rank sends its own part and those of the ranks below it in the tree."""
    return _schedule(request, lambda builder: _up(builder, request, whole=False, add=False), request.world_size)


def _schedule(request: Request, go: Callable[[ScheduleBuilder], object], chunks: int, phases: int = 1) -> Schedule:
    n, root = request.world_size, request.root

    def parts() -> Iterator[Round | Repeat]:
        builder = ScheduleBuilder()
        go(builder)
        return builder.parts()

    rows = phases * (n - 1)
    return Schedule(request.operation, "tree", n, 0, chunks, ReductionOrder.IN_SEQUENCE, kept(parts), root, rows=rows)


def _rounds(n: int) -> range:
    return range((n - 1).bit_length())


def _part(request: Request, virtual: int, j: int, *, whole: bool) -> tuple[int, int]:
    """First chunk and count of the parts of a rank's subtree at level j; the range may wrap round the end."""
    if whole:
        return 0, 1
    return (virtual + request.root) % request.world_size, min(1 << j, request.world_size - virtual)


def _up(builder: ScheduleBuilder, request: Request, *, whole: bool, add: bool) -> int | None:
    """Add the rounds towards the root, and return the last transfer into it."""
    n, root = request.world_size, request.root
    arrived: dict[int, list[int]] = {virtual: [] for virtual in range(n)}
    for j in _rounds(n):
        for virtual in range(1 << j, n, 2 << j):
            above = virtual - (1 << j)
            first, count = _part(request, virtual, j, whole=whole)
            # Each add into a chunk waits for the add before, so waiting for the last add is enough; gathered parts are
            # different chunks, so the transfer waits for all of them.
            after = arrived[virtual][-1:] + arrived[above][-1:] if add else arrived[virtual]
            src, dst = (virtual + root) % n, (above + root) % n
            arrived[above].append(builder.send(src, dst, first, count, reduce=add, channel=src, after=after))
        builder.end_round()
    return arrived[0][-1]


def _down(builder: ScheduleBuilder, request: Request, ready: int | None, *, whole: bool) -> None:
    """Add the rounds away from the root, which starts after `ready`; the farthest rank receives first."""
    n, root = request.world_size, request.root
    arrived: dict[int, int | None] = {0: ready}
    for j in reversed(_rounds(n)):
        for virtual in range(1 << j, n, 2 << j):
            above = virtual - (1 << j)
            first, count = _part(request, virtual, j, whole=whole)
            src, dst = (above + root) % n, (virtual + root) % n
            arrived[virtual] = builder.send(src, dst, first, count, reduce=False, channel=src, after=[arrived[above]])
        builder.end_round()


def volume(request: Request) -> int:
    """(N-1) S in each direction; scatter and gather send each part once for each level that it passes."""
    if request.operation not in ("scatter", "gather"):
        return least_volume(request)
    n, root = request.world_size, request.root
    return sum(own_part(request, (v + root) % n) * v.bit_count() for v in range(n))


def minimal(request: Request) -> bool:
    """False for scatter and gather from 4 ranks on, because they send some parts more than once."""
    return request.operation not in ("scatter", "gather") or request.world_size < 4


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """Star or full mesh, L = ceil(log2 N): reduce L(alpha + S/beta), broadcast L S/beta + (L - u) alpha.

    u is 1 where N is no power of two. Scatter and gather, N = 2^L dividing n: L alpha + (N-1)/N S/beta [1]_.
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
    plans={
        "all_reduce": all_reduce,
        "broadcast": broadcast,
        "reduce": reduce,
        "scatter": scatter,
        "gather": gather,
    },
    volume=volume,
    minimal=minimal,
    closed_form=closed_form,
    steps=tree_steps,
)
