"""GPUs in a circle: each has a cable to the next, and the last to the first.

Rule: a GPU passes on what is not for it. Like people at a round table handing a dish along.
"""

from __future__ import annotations

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidths, Seconds


def ring(world_size: int, *, bandwidth: Bandwidths, latency: Seconds) -> Graph:
    """Join n GPUs in a circle.

    Parameters
    ----------
    world_size : int
    bandwidth : float or sequence of float
        Of each cable and direction; several values repeat cable by cable [B/s].
    latency : float
        Of each cable [s].

    Returns
    -------
    Graph
        n GPUs that forward, n cables (one where n = 2, none where n = 1). Its diameter is floor(n / 2).

    Examples
    --------
    >>> ring(4, bandwidth=1e9, latency=1e-6).number_of_edges()
    8
    """
    require(world_size >= 1, f"got world_size {world_size}; a ring has at least one GPU")
    bandwidths = [bandwidth] if isinstance(bandwidth, float | int) else list(bandwidth)
    graph = empty()
    names = [add_vertex(graph, f"gpu{i}", "gpu", forwards=True) for i in range(world_size)]
    cables = 1 if world_size == 2 else world_size
    for i in range(cables if world_size > 1 else 0):
        add_cable(graph, names[i], names[(i + 1) % world_size], bandwidths[i % len(bandwidths)], latency)
    return graph


def limits(**_: object) -> TopologyLimits:
    """It grows with the world size."""
    return TopologyLimits()


def size(world_size: int, servers: int, **_: object) -> GraphSize:
    """Return the size of a graph with a cable for each GPU; one or two GPUs need one cable less."""
    return GraphSize(world_size, world_size if world_size > 2 else world_size - 1)
