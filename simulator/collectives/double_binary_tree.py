"""Double binary tree: two trees, each for half of the array, so that every rank is a leaf in one of them.

Like two relay teams on the same track, each resting where the other one works. Halves are cut into pieces that follow
each other up and down.

References
----------
.. [1] Sanders, Speck & Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
   Computing 35, 2009.
.. [2] S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4", NVIDIA developer blog, 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.collectives.algorithm import Algorithm, Request, always, least_volume
from simulator.collectives.example import in_pieces
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule, kept

# Pieces in all; 32 a tree keep the filling of the pipeline below a tenth of the time for 32 ranks.
PIECES = 64


def parent(rank: int, n: int) -> int | None:
    """Parent in the tree in which leaves and inner ranks alternate; None for the root, rank 0.

    A rank whose lowest set bit is b hangs below the one with bit b cleared and the next one set, or, where that is
    beyond the last rank, below the one with b cleared [2]_.
    """
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < n else rank ^ bit


@dataclass(frozen=True, slots=True)
class _Tree:
    """Parents and children by rank, and the ranks from the leaves up."""

    parents: dict[int, int | None]
    children: dict[int, list[int]]
    upward: list[int]


def trees(n: int) -> tuple[_Tree, _Tree]:
    """Two trees over n ranks: inner ranks of one are leaves of the other (n even: mirrored; odd: moved on by one)."""

    def mirrored(rank: int) -> int | None:
        above = parent(n - 1 - rank, n)
        return None if above is None else n - 1 - above

    def moved(rank: int) -> int | None:
        above = parent((rank - 1) % n, n)
        return None if above is None else (above + 1) % n

    return _tree(lambda rank: parent(rank, n), n), _tree(moved if n % 2 else mirrored, n)


def _tree(parent_of: Callable[[int], int | None], n: int) -> _Tree:
    parents = {rank: parent_of(rank) for rank in range(n)}
    children: dict[int, list[int]] = {rank: [] for rank in range(n)}
    for rank, above in parents.items():
        if above is not None:
            children[above].append(rank)
    downward = [rank for rank, above in parents.items() if above is None]
    for rank in downward:
        downward.extend(children[rank])
    return _Tree(parents, children, downward[::-1])


def all_reduce(request: Request) -> Schedule:
    """Both halves up their tree and down again, piece behind piece."""
    return _schedule(request, lambda: trees(request.world_size), up=True, down=True)


def broadcast(request: Request) -> Schedule:
    """The root feeds the tops of two trees over the other ranks."""
    return _schedule(request, lambda: _under_root(request), up=False, down=True)


def reduce(request: Request) -> Schedule:
    """The tops of two trees over the other ranks feed the root."""
    return _schedule(request, lambda: _under_root(request), up=True, down=False)


def _under_root(request: Request) -> tuple[_Tree, _Tree]:
    n, root = request.world_size, request.root
    others = [(root + 1 + i) % n for i in range(n - 1)]
    grown = []
    for tree in trees(n - 1):
        above = {others[v]: (root if p is None else others[p]) for v, p in tree.parents.items()}
        grown.append(_tree(lambda rank, above=above: above.get(rank), n))  # type: ignore[misc]
    return grown[0], grown[1]


def pieces(request: Request) -> int:
    """How many pieces the array is cut into: as asked, else 64, but none of them empty."""
    return request.chunks or max(1, min(PIECES, request.elements))


def _schedule(request: Request, grow: Callable[[], tuple[_Tree, _Tree]], *, up: bool, down: bool) -> Schedule:
    n, root, total = request.world_size, request.root, pieces(request)
    rows = total * (n - 1) * (up + down)
    parts = kept(lambda: _noted(grow(), n, total, up=up, down=down).parts())
    return Schedule(
        request.operation, "double_binary_tree", n, 0, total, ReductionOrder.IN_SEQUENCE, parts, root, rows=rows
    )


def _noted(pair: tuple[_Tree, _Tree], n: int, total: int, *, up: bool, down: bool) -> ScheduleBuilder:
    builder = ScheduleBuilder()
    # The first tree takes one piece more where the number is odd.
    first_half = total - total // 2
    for i in range(first_half):
        chunks = [(0, i)] + ([(1, first_half + i)] if first_half + i < total else [])
        for which, chunk in chunks:
            arrived: dict[int, int] = {}
            if up:
                _climb(builder, pair[which], chunk, which * n * n, n, arrived)
            if down:
                _descend(builder, pair[which], chunk, (2 + which) * n * n, n, arrived)
        builder.end_round()
    return builder


def _climb(builder: ScheduleBuilder, tree: _Tree, chunk: int, channels: int, n: int, arrived: dict[int, int]) -> None:
    for rank in tree.upward:
        above = tree.parents[rank]
        if above is not None:
            after = [arrived.get(rank), arrived.get(above)]
            channel = channels + rank * n + above
            arrived[above] = builder.send(rank, above, chunk, 1, reduce=True, channel=channel, after=after)


def _descend(builder: ScheduleBuilder, tree: _Tree, chunk: int, channels: int, n: int, arrived: dict[int, int]) -> None:
    for rank in reversed(tree.upward):
        for below in tree.children[rank]:
            channel = channels + rank * n + below
            arrived[below] = builder.send(
                rank, below, chunk, 1, reduce=False, channel=channel, after=[arrived.get(rank)]
            )


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce, "broadcast": broadcast, "reduce": reduce},
    volume=least_volume,
    minimal=always,
    options=("chunks",),
    examples=in_pieces,
)
