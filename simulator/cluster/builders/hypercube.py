"""Hypercube: GPUs on the corners of a cube with d dimensions.

Two GPUs share a cable if their numbers differ in exactly one binary digit.

Example with d = 2: cables 0 -- 1, 0 -- 2, 1 -- 3 and 2 -- 3.
"""

from __future__ import annotations

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, CountOrZero, Seconds


def hypercube(
    world_size: int, *, dimensions: CountOrZero | None = None, bandwidth: Bandwidth, latency: Seconds
) -> Graph:
    """GPUs on corners of a d-dimensional cube, cables along its edges.

    Parameters
    ----------
    world_size : int
        Number of ranks; without `dimensions`, the smallest cube with enough GPUs is built.
    dimensions : int, optional
        Number of dimensions (d); by default the smallest with enough GPUs.
    bandwidth : float
        Bandwidth of each cable, per direction [B/s].
    latency : float
        Latency of each cable [s].

    Returns
    -------
    Graph
        2^d GPUs, which forward traffic, and d 2^(d-1) cables. The distance between two GPUs is the number of binary
        digits in which their numbers differ; the diameter is d.

    Examples
    --------
    >>> len(hypercube(5, bandwidth=1e9, latency=1e-6))
    8
    """
    require(world_size >= 1, f"got world_size {world_size}; must be at least 1")
    wide = _dimensions(world_size, dimensions)
    require(0 <= wide <= 20, f"got dimensions {wide}; must be from 0 to 20")
    graph = empty()
    for i in range(2**wide):
        add_vertex(graph, f"gpu{i}", "gpu", forwards=True)
    for i in range(2**wide):
        for digit in range(wide):
            # Each cable is added once, from the GPU with digit 0.
            if not i >> digit & 1:
                add_cable(graph, f"gpu{i}", f"gpu{i | 1 << digit}", bandwidth, latency)
    return graph


def limits(*, dimensions: int | None = None, **_: object) -> TopologyLimits:
    """Return the limits for a hypercube: 2^d GPUs, or no limit without `dimensions`.

    >>> limits(dimensions=3).max_ranks
    8
    """
    return TopologyLimits(max_ranks=None if dimensions is None else 2**dimensions)


def size(world_size: int, servers: int, *, dimensions: int | None = None, **_: object) -> GraphSize:
    """Return the vertex and cable counts for a hypercube: 2^d GPUs with d cables each.

    >>> size(8, 0)
    GraphSize(vertices=8, cables=12)
    """
    wide = _dimensions(world_size, dimensions)
    return GraphSize(2**wide, wide * 2**wide // 2)


def _dimensions(world_size: int, dimensions: int | None) -> int:
    return (world_size - 1).bit_length() if dimensions is None else dimensions
