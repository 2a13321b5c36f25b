"""Star: every GPU and every parameter server has its own cable to a single switch."""

from __future__ import annotations

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidths, Seconds


def star(world_size: int, *, bandwidth: Bandwidths, latency: Seconds, servers: int = 0) -> Graph:
    """Cables from n GPUs to a single switch.

    Parameters
    ----------
    world_size : int
        Number of GPUs, n.
    bandwidth : float or sequence of float
        Bandwidth of each port, per direction [B/s]; several values repeat port by port.
    latency : float
        Latency of each cable [s]; a route between two GPUs has twice this latency.
    servers : int
        Number of parameter servers with separate ports, equal to a worker's port.

    Returns
    -------
    Graph
        n GPUs and the servers, each one cable away from "switch0".

    Examples
    --------
    >>> sorted(star(2, bandwidth=1e9, latency=1e-6, servers=1))
    ['gpu0', 'gpu1', 'server0', 'switch0']
    """
    require(world_size >= 1, f"got world_size {world_size}; a star has at least one GPU")
    require(servers >= 0, f"got servers {servers}; must not be negative")
    bandwidths = [bandwidth] if isinstance(bandwidth, float | int) else list(bandwidth)
    graph = empty()
    # GPUs come first, so that GPU i is vertex i in the router.
    ports = [add_vertex(graph, f"gpu{i}", "gpu", forwards=False) for i in range(world_size)]
    ports += [add_vertex(graph, f"server{i}", "server", forwards=False) for i in range(servers)]
    add_vertex(graph, "switch0", "switch", forwards=True)
    for i, name in enumerate(ports):
        add_cable(graph, name, "switch0", bandwidths[i % len(bandwidths)], latency)
    return graph


def limits(**_: object) -> TopologyLimits:
    """Return the limits for a star: any number of ranks, ports for servers, a single route between any two GPUs."""
    return TopologyLimits(own_servers=True, one_route=True)


def size(world_size: int, servers: int, **_: object) -> GraphSize:
    """Return the vertex and cable counts for a star: a cable for each GPU and server, and a switch.

    >>> size(4, 1)
    GraphSize(vertices=6, cables=5)
    """
    return GraphSize(world_size + servers + 1, world_size + servers)
