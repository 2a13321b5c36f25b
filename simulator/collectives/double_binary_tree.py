"""Double binary tree: two trees over the same ranks reduce and broadcast half of the array each.

Inner ranks in one tree are leaves in the other tree (with an odd number of ranks, a single rank is an exception). A
rank therefore forwards data in only one tree, and ports are loaded evenly. Each half is cut into pieces that follow
each other up and down the tree.

Over nodes of G ranks, a sum has two trees for each place in a node, 2 G in all, as NCCL's algorithm Tree [2]_: the two
trees lead from node to node between the ranks at this place, over their network card. Inside a node, a chain leads from
there over the other ranks.

Example with 4 ranks: the second tree is the mirror image of the first.

    tree 0      0           tree 1      3
                |                       |
                2                       1
               | |                     | |
               1 3                     0 2

References
----------
.. [1] Sanders, Speck & Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
   Computing 35, 2009.
.. [2] S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4", NVIDIA developer blog, 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from simulator.cluster.cluster import Steps
from simulator.collectives.algorithm import (
    ROOTED,
    Algorithm,
    CollectiveRequest,
    Flows,
    always,
    least_volume,
    one_a_node,
    tree_steps,
)
from simulator.collectives.example import Example, in_nodes, in_pieces
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule, kept

# Pieces in a tree: with 32, filling the pipeline takes less than a tenth of the time on 32 ranks.
PIECES: Final = 32
# With chains in nodes, data passes more ranks. Large groups have fewer pieces, so that times can be estimated.
_PIECES_OVER_NODES: Final = 128
_MOST_TRANSFERS: Final = 300_000


def parent(rank: int, n: int) -> int | None:
    """Return a rank's parent in the tree with alternating leaves and inner ranks; None for the root, rank 0.

    If b is the rank's lowest set bit, the parent has bit b cleared and the next bit set. If this parent is beyond the
    last rank, the parent only has bit b cleared [2]_.

    >>> [parent(rank, 4) for rank in range(4)]
    [None, 2, 0, 2]
    """
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < n else rank ^ bit


@dataclass(frozen=True, slots=True)
class _Tree:
    """A tree over ranks: parent and children of each rank, and every rank in an order from the leaves to the root."""

    parents: dict[int, int | None]
    children: dict[int, list[int]]
    upward: list[int]


def trees(n: int) -> tuple[_Tree, _Tree]:
    """Return two trees over n ranks: inner ranks in one are leaves in the other, except rank 0 if n is odd.

    If n is even, the second tree is the first tree mirrored; if n is odd, the first tree shifted by one rank.

    >>> [tree.parents for tree in trees(4)]
    [{0: None, 1: 2, 2: 0, 3: 2}, {0: 1, 1: 3, 2: 1, 3: None}]
    """

    def mirrored(rank: int) -> int | None:
        above = parent(n - 1 - rank, n)
        return None if above is None else n - 1 - above

    def moved(rank: int) -> int | None:
        above = parent((rank - 1) % n, n)
        return None if above is None else (above + 1) % n

    return _tree(lambda rank: parent(rank, n), n), _tree(moved if n % 2 else mirrored, n)


def _in_nodes(nodes: Sequence[tuple[int, ...]]) -> tuple[_Tree, ...]:
    """Return two trees for each place in nodes of one size: over nodes at this place, with chains inside from there on.

    Two nodes of two ranks, ranks 0 1 | 2 3:

    >>> [tree.parents for tree in _in_nodes([(0, 1), (2, 3)])][:2]
    [{0: None, 1: 0, 2: 0, 3: 2}, {0: 2, 1: 0, 2: None, 3: 2}]
    """
    n = sum(map(len, nodes))
    grown = []
    for place in range(len(nodes[0])):
        for over_nodes in trees(len(nodes)):
            above: dict[int, int | None] = {}
            for number, node in enumerate(nodes):
                line, parent_node = (*node[place:], *node[:place]), over_nodes.parents[number]
                above[line[0]] = None if parent_node is None else nodes[parent_node][place]
                above |= dict(pairwise(reversed(line)))
            grown.append(_tree(lambda rank, above=above: above[rank], n))  # type: ignore[misc]
    return tuple(grown)


def _tree(parent_of: Callable[[int], int | None], n: int) -> _Tree:
    parents = {rank: parent_of(rank) for rank in range(n)}
    children: dict[int, list[int]] = {rank: [] for rank in range(n)}
    for rank, above in parents.items():
        if above is not None:
            children[above].append(rank)
    downward = [rank for rank, above in parents.items() if above is None]
    # Breadth first: the list grows while the loop walks over it.
    for rank in downward:
        downward.extend(children[rank])
    return _Tree(parents, children, downward[::-1])


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for an all-reduce: two trees each sum up half the array and broadcast the sum again.

    The halves travel piece after piece.
    """
    return _schedule(request, lambda: _of_sum(request), up=True, down=True)


def broadcast(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a broadcast: the root sends each half to a tree over the remaining ranks.

    The half then travels down the tree.
    """
    return _schedule(request, lambda: _under_root(request), up=False, down=True)


def reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a reduce: a tree over the remaining ranks sums up each half for the root."""
    return _schedule(request, lambda: _under_root(request), up=True, down=False)


def _of_sum(request: CollectiveRequest) -> tuple[_Tree, ...]:
    """Return the trees of an all-reduce: two, or two for each place in a node."""
    return _in_nodes(request.nodes) if _has_chains(request) else trees(request.world_size)


def _has_chains(request: CollectiveRequest) -> bool:
    """Return True if a request is a sum over several nodes of several ranks each, as many in every node."""
    sizes = {len(node) for node in request.nodes}
    return request.operation not in ROOTED and len(request.nodes) > 1 and len(sizes) == 1 and sizes != {1}


def _under_root(request: CollectiveRequest) -> tuple[_Tree, _Tree]:
    # Trees over the N - 1 other ranks, numbered from the root on, with the root of each tree below the request's root.
    n, root = request.world_size, request.root
    others = [(root + 1 + i) % n for i in range(n - 1)]
    grown = []
    for tree in trees(n - 1):
        above = {others[v]: (root if p is None else others[p]) for v, p in tree.parents.items()}
        grown.append(_tree(lambda rank, above=above: above.get(rank), n))  # type: ignore[misc]
    return grown[0], grown[1]


def pieces(request: CollectiveRequest) -> int:
    """Return the number of pieces for the array: the requested number, else some for each tree, none of them empty."""
    if request.chunks:
        return request.chunks
    most = 2 * PIECES
    if _has_chains(request):
        grown, transfers = 2 * len(request.nodes[0]), 2 * (request.world_size - 1)
        most = grown * min(_PIECES_OVER_NODES, max(PIECES, _MOST_TRANSFERS // (grown * transfers)))
    return max(1, min(most, request.elements))


def _schedule(request: CollectiveRequest, grow: Callable[[], Sequence[_Tree]], *, up: bool, down: bool) -> Schedule:
    n, root, total = request.world_size, request.root, pieces(request)
    rows = total * (n - 1) * (up + down)
    parts = kept(lambda: _pipelines(grow(), n, total, up=up, down=down).parts())
    return Schedule(
        request.operation, "double_binary_tree", n, 0, total, ReductionOrder.IN_SEQUENCE, parts, root, rows=rows
    )


def _pipelines(grown: Sequence[_Tree], n: int, total: int, *, up: bool, down: bool) -> ScheduleBuilder:
    """Return the transfers of `total` pieces (chunks of the array), each up and down one of the trees over n ranks."""
    builder, count = ScheduleBuilder(), len(grown)
    # Each tree carries neighbouring pieces; the first trees carry an additional one if the number does not divide.
    shares = [total // count + (which < total % count) for which in range(count)]
    first = [sum(shares[:which]) for which in range(count)]
    for i in range(shares[0]):
        # All trees advance in the same round, with separate channels for each tree, direction and pair of ranks.
        for which, tree in enumerate(grown):
            if i < shares[which]:
                arrived: dict[int, int] = {}
                if up:
                    _climb(builder, tree, first[which] + i, which * n * n, n, arrived)
                if down:
                    _descend(builder, tree, first[which] + i, (count + which) * n * n, n, arrived)
        builder.end_round()
    return builder


def _climb(builder: ScheduleBuilder, tree: _Tree, chunk: int, channels: int, n: int, arrived: dict[int, int]) -> None:
    # An add waits for the child's own sum, and for the previous add into the same parent.
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


def flows(request: CollectiveRequest) -> Flows:
    """Return how many flows a rank sends at once, to the parent and children in all trees."""
    grown = _under_root(request) if request.operation in ROOTED else _of_sum(request)
    up, down = request.operation != "broadcast", request.operation != "reduce"
    chained = _has_chains(request)
    node_of = {rank: number for number, node in enumerate(request.nodes) for rank in node} if chained else {}

    def most(*, inside: bool) -> int:
        def counted(rank: int, others: Iterable[int]) -> int:
            return sum((node_of.get(rank) == node_of.get(other)) is inside for other in others)

        return max(
            sum(
                up * counted(rank, [above] if (above := tree.parents[rank]) is not None else [])
                + down * counted(rank, tree.children[rank])
                for tree in grown
            )
            for rank in range(request.world_size)
        )

    inside = most(inside=True)
    return Flows(inside, most(inside=False) if chained else inside)


def steps(request: CollectiveRequest) -> Steps:
    """Return the step counts on the longest way: with nodes, a chain inside a node after a tree over nodes."""
    counted = tree_steps(request)
    return Steps(2 * (len(request.nodes[0]) - 1), counted.across) if _has_chains(request) else counted


def _examples(ranks: int) -> Iterable[Example]:
    """Return the test settings: pieces without nodes, and nodes of every size."""
    return (*in_pieces(ranks), *in_nodes(ranks))


def _over_nodes(request: CollectiveRequest) -> bool:
    """Return True if `auto` may choose double binary trees for this request: one rank per node, or unequal nodes; also
    sums over nodes whose GPUs have links to each other.

    Elsewhere, blueconnect has as many steps between nodes, and less to plan.
    """
    sizes = {len(node) for node in request.nodes}
    linked = bool(request.rings) or request.mesh
    return one_a_node(request) or len(sizes) > 1 or (_has_chains(request) and linked)


ALGORITHM = Algorithm(
    summary="two trees share the array, inner ranks of one are leaves of the other; in nodes two for each place, with "
    "chains inside",
    plans={"all_reduce": all_reduce, "broadcast": broadcast, "reduce": reduce},
    volume=least_volume,
    minimal=always,
    flows=flows,
    in_libraries=_over_nodes,
    options=("chunks",),
    chooses_chunks=True,
    examples=_examples,
    steps=steps,
)
