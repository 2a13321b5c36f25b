"""Which rings run at once over the links between the GPUs of a node? Each ring takes a lane of a cable for itself.

NCCL and RCCL search for such rings, which they call channels [1]_. Over a mesh of cables, one ring would leave most of
them idle. The search here takes rings in both directions, one after the other, and goes back where too few are left.

Example: four GPUs, each with two links to each other one. Three pairs of rings use all twelve links in both directions.

References
----------
.. [1] NVIDIA/nccl, src/graph/search.cc, ncclTopoSearchRec: paths over all GPUs whose links have bandwidth left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from simulator.cluster.caps import cards_of
from simulator.cluster.cluster import Cluster

# Most GPUs of a node for which rings over links are searched: those of a DGX-2 (NVIDIA, data sheet).
MOST_IN_A_NODE: Final = 16
# Most steps of a search: some tenths of a second.
_MOST_TRIED: Final = 100_000

Lanes = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def disjoint_rings(lanes: Lanes) -> tuple[tuple[int, ...], ...]:
    """Return rings through all N places that together use no lane twice in a direction; empty if there is none.

    Parameters
    ----------
    lanes : tuple of tuples, shape (N, N)
        In row i, column j: number of links between places i and j; as many from j to i.

    Examples
    --------
    A square whose sides have two links each:

    >>> disjoint_rings(((0, 2, 0, 2), (2, 0, 2, 0), (0, 2, 0, 2), (2, 0, 2, 0)))
    ((0, 1, 2, 3), (0, 3, 2, 1), (0, 1, 2, 3), (0, 3, 2, 1))
    """
    if len(lanes) < 2:
        return ()
    if len(lanes) == 2:
        # Out on a link, and back on its other direction.
        return ((0, 1),) * lanes[0][1]
    rings = _packed([list(row) for row in lanes], iter(range(_MOST_TRIED)))
    return tuple(order for ring in rings for order in (ring, (ring[0], *reversed(ring[1:]))))


def _packed(left: list[list[int]], steps: Iterator[int]) -> list[tuple[int, ...]]:
    """Return the most rings that were found over the lanes that are left, each of which takes its lanes both ways."""
    most = min(map(sum, left)) // 2
    best: list[tuple[int, ...]] = []
    for ring in _rings(left, steps) if most else ():
        _take(left, ring, 1)
        rings = [ring, *_packed(left, steps)]
        _take(left, ring, -1)
        best = max(best, rings, key=len)
        if len(best) == most:
            break
    return best


def _take(left: list[list[int]], ring: Sequence[int], lanes: int) -> None:
    """Take this many lanes of each of a ring's cables, in place; negative numbers give them back."""
    for a, b in pairwise([*ring, ring[0]]):
        left[a][b] -= lanes
        left[b][a] -= lanes


def _rings(left: list[list[int]], steps: Iterator[int]) -> Iterator[tuple[int, ...]]:
    """Yield rings over the lanes that are left, those over cables with many lanes first, until the steps are used up.

    The lanes are as they were at the first step when a ring is asked for.
    """
    paths: list[tuple[int, ...]] = [(0,)]
    while paths and next(steps, None) is not None:
        path = paths.pop()
        row = left[path[-1]]
        if len(path) == len(left):
            if row[0]:
                yield path
            continue
        onward = [place for place, lanes in enumerate(row) if lanes and place not in path]
        paths += [(*path, place) for place in sorted(onward, key=lambda place: (row[place], -place))]


def with_ends(rings: Sequence[tuple[int, ...]], cards: Sequence[str], nodes: int) -> tuple[tuple[int, ...], ...]:
    """Return rings opened into paths: data enters a node at a path's first GPU and leaves it at the last one.

    Equally many paths begin, and equally many end, at each network card where the rings allow it.

    Parameters
    ----------
    rings : sequence of tuples
        Rings as from `disjoint_rings`: GPUs of a node by number.
    cards : sequence of str
        Network card of each GPU.
    nodes : int
        Number of nodes. With a single node, the rings are returned as they are.

    Notes
    -----
    Each ring is opened between two neighbours whose cards have the fewest ends so far, preferably at one card. There
    are as many paths as the largest multiple of the number of cards with that many rings; with fewer rings than cards,
    there is a path for each card, and rings are used again.

    >>> with_ends([(0, 1, 2, 3), (0, 3, 2, 1)], ["a", "a", "b", "b"], 2)
    ((1, 2, 3, 0), (2, 1, 0, 3))
    """
    if nodes < 2 or not rings:
        return tuple(rings)
    enters, leaves = (dict.fromkeys(cards, 0) for _ in range(2))
    paths, spare = list[tuple[int, ...]](), list(rings)
    for _ in range(max(1, len(rings) // len(enters)) * len(enters)):
        # Data leaves at place `path[-1]` and enters at `path[0]`.
        cuts = [(*ring[cut:], *ring[:cut]) for ring in spare for cut in range(len(ring))]
        loads = [(leaves[cards[path[-1]]], enters[cards[path[0]]], cards[path[0]] != cards[path[-1]]) for path in cuts]
        best = min(range(len(cuts)), key=lambda place: (max(loads[place][:2]), sum(loads[place])))
        paths.append(cuts[best])
        enters[cards[cuts[best][0]]] += 1
        leaves[cards[cuts[best][-1]]] += 1
        del spare[best // len(cuts[best])]
        spare = spare or list(rings)
    return tuple(paths)


def rings_over_links(
    cluster: Cluster, group: tuple[int, ...], nodes: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Return rings that use only links between a group's GPUs of one node, cut into paths by `with_ends`.

    The same rings hold for every node; each visits all GPUs of the group in the node, by their number in it, from 0.
    The result is empty if nodes differ in the number of links between any two of these GPUs, or if fewer than two rings
    are found: a single ring needs no choice.

    Parameters
    ----------
    group : tuple of int
        Ranks of the group.
    nodes : sequence of tuple of int
        For each node, the indices in `group` of its ranks.
    """
    if not 2 <= len(nodes[0]) <= MOST_IN_A_NODE:
        return ()
    # Algorithms without nodes ignore what a request says of them.
    if sum(map(len, nodes)) != len(group):
        return ()
    first, *others = (_lanes(cluster, [group[place] for place in node]) for node in nodes)
    rings = disjoint_rings(first) if all(other == first for other in others) else ()
    # A single pair of places, or a single ring, needs no choice.
    if len(rings) < 2:
        return ()
    cards: list[str] = []
    if len(nodes) > 1:
        card_of = cards_of(cluster, cluster.node_of()[group[nodes[0][0]]])
        cards = [card_of[group[place]] for place in nodes[0]]
    return with_ends(rings, cards, len(nodes))


def _lanes(cluster: Cluster, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the number of links between each two of several ranks: a cable's bandwidth in units of the GPU's links, or
    else of the narrowest cable.
    """
    widths, gpu = cable_widths(cluster, ranks), cluster.gpus[ranks[0]]
    narrowest = min((width for row in widths for width in row if width), default=1.0)
    link = gpu.scale_up_bandwidth / gpu.facts.get("scale_up_links", 1)
    # Bandwidths are measured or rounded: a link may be a few per cent wider or narrower.
    unit = link if 0.0 < link < 1.1 * narrowest else narrowest
    return tuple(tuple(round(width / unit) for width in row) for row in widths)


def cable_widths(cluster: Cluster, ranks: Sequence[int]) -> list[list[float]]:
    """Return the bandwidth of the cable between each two of several ranks [B/s]; 0 without a cable."""
    graph, vertices = cluster.graph, [cluster.ranks[rank] for rank in ranks]
    return [[graph[a][b]["bandwidth"] if a != b and b in graph[a] else 0.0 for b in vertices] for a in vertices]
