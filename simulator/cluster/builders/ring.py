"""Ring: each GPU has a cable to the next GPU, and the last GPU to the first. GPUs forward traffic for other GPUs."""

from __future__ import annotations

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidths, Seconds


def ring(world_size: int, *, bandwidth: Bandwidths, latency: Seconds) -> Graph:
    """A circle of n GPUs, each with a cable to the next GPU.

    Parameters
    ----------
    world_size : int
        Number of GPUs, n.
    bandwidth : float or sequence of float
        Bandwidth of each cable, per direction [B/s]; several values repeat cable by cable.
    latency : float
        Latency of each cable [s].

    Returns
    -------
    Graph
        n GPUs that forward, n cables (one if n = 2, none if n = 1). The diameter is floor(n / 2).

    Examples
    --------
    >>> ring(4, bandwidth=1e9, latency=1e-6).number_of_edges()
    8
    """
    require(world_size >= 1, f"got world_size {world_size}; a ring has at least one GPU")
    # With two values, the cables alternate between both values.
    bandwidths = [bandwidth] if isinstance(bandwidth, float | int) else list(bandwidth)
    graph = empty()
    names = [add_vertex(graph, f"gpu{i}", "gpu", forwards=True) for i in range(world_size)]
    # With two GPUs, the cable to the next GPU is also the cable to the previous GPU.
    cables = 1 if world_size == 2 else world_size
    for i in range(cables if world_size > 1 else 0):
        add_cable(graph, names[i], names[(i + 1) % world_size], bandwidths[i % len(bandwidths)], latency)
    return graph


def limits(**_: object) -> TopologyLimits:
    """Return the limits for a ring topology: any number of ranks."""
    return TopologyLimits()


def size(world_size: int, servers: int, **_: object) -> GraphSize:
    """Return the vertex and cable counts for a ring: a cable for each GPU, one less for 1 or 2 GPUs.

    >>> size(4, 0), size(2, 0)
    (GraphSize(vertices=4, cables=4), GraphSize(vertices=2, cables=1))
    """
    return GraphSize(world_size, world_size if world_size > 2 else world_size - 1)
