"""Fully connected GPUs: a cable between every two GPUs. Every route is a single link."""

from __future__ import annotations

from itertools import combinations

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, Seconds


def fully_connected(world_size: int, *, bandwidth: Bandwidth, latency: Seconds) -> Graph:
    """A cable between every two of n GPUs.

    Parameters
    ----------
    world_size : int
        Number of GPUs, n.
    bandwidth : float
        Bandwidth of each cable, per direction [B/s].
    latency : float
        Latency of each cable [s].

    Returns
    -------
    Graph
        n GPUs, n(n-1)/2 cables; the diameter is 1.

    Examples
    --------
    >>> fully_connected(4, bandwidth=1e9, latency=1e-6).number_of_edges()
    12
    """
    require(world_size >= 1, f"got world_size {world_size}; must be at least 1")
    graph = empty()
    names = [add_vertex(graph, f"gpu{i}", "gpu", forwards=False) for i in range(world_size)]
    for a, b in combinations(names, 2):
        add_cable(graph, a, b, bandwidth, latency)
    return graph


def limits(**_: object) -> TopologyLimits:
    """Return the limits for fully connected GPUs: any number of ranks, a single route between any two GPUs."""
    return TopologyLimits(one_route=True)


def size(world_size: int, servers: int, **_: object) -> GraphSize:
    """Return the vertex and cable counts for fully connected GPUs: a cable between every two GPUs.

    >>> size(8, 0)
    GraphSize(vertices=8, cables=28)
    """
    return GraphSize(world_size, world_size * (world_size - 1) // 2)
