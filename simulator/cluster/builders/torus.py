"""Torus: GPUs on a grid with joined edges; two dimensions make a doughnut.

A GPU has a cable to both neighbours in every dimension and forwards traffic. Leaving the grid on the right leads back
to the left: with shape (3,), the cables are 0 -- 1, 1 -- 2 and 2 -- 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, Count, Seconds

if TYPE_CHECKING:
    import networkx as nx

Lengths = Annotated[Sequence[Count], Field(min_length=1)]


def torus(*, shape: Lengths, bandwidth: Bandwidth, latency: Seconds) -> Graph:
    """GPUs on a periodic grid, cables to neighbours in every dimension.

    Parameters
    ----------
    shape : sequence of int
        Number of GPUs along each dimension, such as (4, 4, 4). GPUs are numbered with the last dimension fastest.
    bandwidth : float
        Bandwidth of each cable, per direction [B/s].
    latency : float
        Latency of each cable [s].

    Returns
    -------
    Graph
        GPUs that forward; their number is the product of the lengths. Each GPU has two cables per dimension, a single
        cable for length 2, and none for length 1. The distance between two GPUs is the sum over dimensions of
        min(d, length - d).

    Examples
    --------
    >>> torus(shape=(3, 3), bandwidth=1e9, latency=1e-6).number_of_edges()
    36
    """
    require(len(shape) >= 1 and min(shape) >= 1, f"got shape {list(shape)}; every length must be at least 1")
    graph = empty()
    # With shape (2, 3): (0, 0) is gpu0, (0, 2) is gpu2, (1, 0) is gpu3.
    names = {place: f"gpu{i}" for i, place in enumerate(product(*map(range, shape)))}
    for name in names.values():
        add_vertex(graph, name, "gpu", forwards=True)
    for place, name in names.items():
        for axis, length in enumerate(shape):
            onward = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
            # Length 1: the neighbour is the GPU itself. Length 2: both neighbours are the same GPU, and the second call
            # replaces the cable.
            if onward != place:
                add_cable(graph, name, names[onward], bandwidth, latency)
    return graph


def limits(*, shape: Sequence[int], **_: object) -> TopologyLimits:
    """Return the limits for a torus: the GPU count is the product over the lengths in `shape`.

    >>> limits(shape=(4, 4, 2)).max_ranks
    32
    """
    return TopologyLimits(max_ranks=prod(shape))


def size(world_size: int, servers: int, *, shape: Sequence[int], **_: object) -> GraphSize:
    """Return the vertex and cable counts for a torus: a cable per GPU and dimension.

    >>> size(8, 0, shape=(4, 2)), size(4, 0, shape=(4, 1))
    (GraphSize(vertices=8, cables=12), GraphSize(vertices=4, cables=4))
    """
    gpus = prod(shape)
    return GraphSize(gpus, sum(gpus if length > 2 else gpus * (length - 1) // 2 for length in shape))


def dimensions(graph: nx.Graph[str], order: Sequence[str]) -> tuple[int, ...]:
    """Return the side lengths of a torus with two or three dimensions, slowest first; empty if the graph is no torus.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected.
    order : sequence of str
        The graph's GPUs by number; the graph has no other vertices.
    """
    number = {vertex: place for place, vertex in enumerate(order)}
    if len(number) != len(graph):
        return ()
    links = {frozenset((number[a], number[b])) for a, b in graph.edges}
    near = {number[vertex] for vertex in graph[order[0]]}
    # Try every factorisation: 12 GPUs may be 3 x 4 or 4 x 3. The neighbours of the first GPU exclude almost all.
    for lengths in _factors(len(order)):
        around = ((step * stride) for length, stride in zip(lengths, strides(lengths), strict=True)
                  for step in (1, length - 1))  # fmt: skip
        if near == set(around) and links == _links(lengths):
            return lengths
    return ()


def strides(lengths: Sequence[int]) -> list[int]:
    """Return the distance between neighbours in each dimension, in GPUs counted row by row.

    >>> strides((2, 3, 4))
    [12, 4, 1]
    """
    return [prod(lengths[axis + 1 :]) for axis in range(len(lengths))]


def _factors(count: int) -> Iterator[tuple[int, ...]]:
    """Yield the tuples of two or three factors, each at least 3, whose product is the number.

    >>> list(_factors(12))
    [(3, 4), (4, 3)]
    """
    divisors = [d for d in range(3, count + 1) if count % d == 0]
    for number in (2, 3):
        yield from (lengths for lengths in product(divisors, repeat=number) if prod(lengths) == count)


def _links(lengths: Sequence[int]) -> set[frozenset[int]]:
    """Return the links, as pairs of GPU numbers, of a torus with these side lengths and GPUs numbered row by row."""
    links = set()
    for at in product(*map(range, lengths)):
        here = sum(a * s for a, s in zip(at, strides(lengths), strict=True))
        for axis, (length, stride) in enumerate(zip(lengths, strides(lengths), strict=True)):
            # The neighbour after the last in a row is the first of the row (wrap-around).
            links.add(frozenset((here, here + ((at[axis] + 1) % length - at[axis]) * stride)))
    return links
