"""Multi ring: over nodes of G ranks, G rings run at once, and each leaves a node over another network card.

A single ring crosses to the next node over one card and leaves the other cards idle. With G rings, ring j carries the
j-th of G pieces of every rank's part.

The rings visit the ranks of every other node in reverse order. Ring j then leaves a node at the same place at which
ring j enters the next node. Cards at one place are connected to one switch (a rail), so no transfer has to change
rails. The only exception is an odd number of nodes of two ranks, where no order avoids the change. Every card sends
for one ring and receives for one ring; at every rank the G - 1 other rings go on to another rank of the node.

Example: 2 nodes, ranks 0 1 | 2 3. Ranks 0 and 2 share a rail, and ranks 1 and 3 share a rail.

    ring 0:   0 -> 1 -> 3 -> 2 -> 0      crosses on the rail 1, 3 and returns on the rail 0, 2
    ring 1:   1 -> 0 -> 2 -> 3 -> 1      crosses on the rail 0, 2 and returns on the rail 1, 3

References
----------
.. [1] NCCL user guide, environment variables, NCCL_CROSS_NIC: rings keep to the same card of each node where they can
   (recalled; not looked up: whether NCCL reverses every other node for this purpose).
.. [2] Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
.. [3] Alspach, "The wonderful Walecki construction", Bulletin of the ICA 52, 2008.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from simulator.collectives import ring
from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    Flows,
    always,
    least_volume,
    ring_steps,
)
from simulator.collectives.example import in_nodes
from simulator.collectives.hierarchical import as_ring, nodes_of
from simulator.collectives.idle import AlikeRoutes, IdleNetwork
from simulator.collectives.recurrence import advance_uneven
from simulator.records.chunks import timed_sizes
from simulator.records.schedule import Schedule

# The closed form has numbers for every hop of every ring; for more hops than this they would take GiB.
_MOST_HOPS: Final = 2**24


def count(request: CollectiveRequest) -> int:
    """Return the number of rings: those over the links of a node, if they are known; otherwise the ranks of the
    smallest node, and 1 for a single node.
    """
    nodes = nodes_of(request)
    if request.rings:
        return len(request.rings)
    return min(map(len, nodes)) if len(nodes) > 1 else 1


def orders(request: CollectiveRequest) -> list[tuple[int, ...]]:
    """Return each ring's rank order for a request; a single node, or a node with a single rank, gives one ring.

    The rings are the same in every node up to as many places as the smallest node has. The further ranks of a larger
    node follow the rank at which a ring enters the node.

    >>> orders(CollectiveRequest("all_reduce", 4, 8, nodes=((0, 1), (2, 3))))
    [(0, 1, 3, 2), (1, 0, 2, 3)]
    """
    nodes, size = nodes_of(request), count(request)
    if request.rings:
        # Backwards in every other node: data then leaves a node at the place, and card, where it enters the next.
        return [
            tuple(node[place] for number, node in enumerate(nodes) for place in path[:: -1 if number % 2 else 1])
            for path in request.rings
        ]
    if size == 1:
        return [tuple(chain(*nodes))]
    turns = _turns(len(nodes), size, mesh=request.mesh and size % 2 == 0)
    rings = []
    for j in range(size):
        entered = ([node[(j + i) % size] for i in turn] for node, turn in zip(nodes, turns, strict=True))
        further = (node[size:] for node in nodes)
        visits = zip(entered, further, strict=True)
        rings.append(tuple(place for ring, more in visits for place in (*ring[:1], *more, *ring[1:])))
    return rings


def _turns(nodes: int, size: int, *, mesh: bool) -> list[list[int]]:
    """Return, for each node, the order in which ring 0 visits its `size` places; ring j visits j places further on.

    On a full mesh of an even number of places, ring 0 goes 0, 1, -1, 2, -2, ..., size / 2 (modulo size). The rings are
    then the paths of Walecki's decomposition, in both directions: together they use each link once [3]_.

    >>> _turns(2, 4, mesh=False), _turns(2, 4, mesh=True)
    ([[0, 1, 2, 3], [3, 2, 1, 0]], [[0, 1, 3, 2], [2, 3, 1, 0]])
    >>> _turns(3, 4, mesh=False)
    [[0, 1, 2, 3], [3, 0, 1, 2], [2, 1, 3, 0]]
    """
    if mesh:
        path = [0, *(place % size for i in range(1, size // 2) for place in (i, -i)), size // 2]
        return [path[:: -1 if node % 2 else 1] for node in range(nodes)]
    forth = list(range(size))
    turns = [forth, forth[::-1]] * (nodes // 2)
    if nodes % 2 and size > 2:
        # With an odd number of nodes, alternating orders would leave the last node at size - 1 and enter the first node
        # at 0, on another rail. Therefore ring 0 enters the second to last node at size - 1 and leaves at size - 2; it
        # enters the last node at size - 2 and leaves at 0.
        turns[-1:] = [[size - 1, *forth[:-1]], [*forth[-2:0:-1], size - 1, 0]]
    elif nodes % 2:
        turns.append(forth)
    return turns


def plan(request: CollectiveRequest) -> Schedule:
    """Return a schedule for rings running at once: N-1 rounds with G N transfers each; twice for an all_reduce."""
    return ring.side_by_side(request, count(request), lambda: orders(request), "multi_ring")


def flows(request: CollectiveRequest) -> Flows:
    """Return how many flows a rank sends at once: all G rings pass each rank, and a single ring leaves the node.

    The ring that leaves the node takes its share of the rank's rate too: a rank does not send faster for further nodes.
    """
    return Flows(inside=count(request))


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time for rings that run at once on an idle network [s]; None unless every flow has its full rate.

    Each hop then has a constant latency and rate. A piece moves on in step k when two conditions hold: the piece has
    arrived in step k - 1, and the hop has carried the piece before it.
    """
    n, size = request.world_size, count(request)
    # A single node, or nodes with a single rank each: one plain ring.
    if size == 1:
        return ring.closed_form(as_ring(request), sizes, network)
    if n * size > _MOST_HOPS:
        return None
    rings = orders(request)
    pairs = [list(zip(order, [*order[1:], order[0]], strict=True)) for order in rings]
    hops = network.undisturbed(Counter(chain(*pairs)), reducing=request.operation != "all_gather")
    if hops is None:
        return None
    parts = timed_sizes(plan(request), request.elements).reshape(n, size)
    # Rings with equal hops and equal pieces end at the same time: compute each kind only once.
    rows = {
        (tuple(hops[pair] for pair in ring_pairs), tuple(float(parts[rank, j]) for rank in order))
        for j, (order, ring_pairs) in enumerate(zip(rings, pairs, strict=True))
    }
    return max(_last_end(request.operation, sizes, network.startup, *row) for row in rows)


def _last_end(
    operation: str, sizes: ElementSizes, startup: float, hops: Sequence[AlikeRoutes], elements: Sequence[float]
) -> float:
    """Return when a ring has carried the last piece [s], given the hops and each rank's elements."""
    latency, rate = (np.array([column]) for column in ([hop.latency for hop in hops], [hop.rate(1) for hop in hops]))
    carried, end = np.array([elements], np.float64), np.full((1, len(hops)), startup)
    reducing, copying = operation != "all_gather", operation != "reduce_scatter"
    # Column r is the hop from the ring's place r to place r + 1. A reduce-scatter begins at the place after a piece's
    # owner: place r first sends the piece of place r - 1. The gather begins at the owner.
    if reducing:
        carried = np.roll(carried, 1)
    for itemsize in [sizes.reduced] * reducing + [sizes.copied] * copying:
        end = advance_uneven(end, latency, carried * itemsize, rate, len(hops) - 1)
        # After N - 1 rounds, hop r carries the chunk from hop r - (N - 1), equal to hop r + 1, in the first round.
        carried = np.roll(carried, len(hops) - 1)
    return float(end.max())


ALGORITHM = Algorithm(
    summary="rings over all links of a node, or one for each rank; they leave the node over its network cards in turn",
    plans={"all_reduce": plan, "reduce_scatter": plan, "all_gather": plan},
    volume=least_volume,
    minimal=always,
    in_libraries=lambda request: len(request.nodes) > 1 or len(request.rings) > 1,
    closed_form=closed_form,
    options=("nodes",),
    flows=flows,
    examples=in_nodes,
    steps=ring_steps,
)
