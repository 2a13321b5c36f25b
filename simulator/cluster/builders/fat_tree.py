"""Fat tree: three layers of equal switches with k ports each.

There are k pods with k/2 edge switches and k/2 aggregation switches each, and (k/2)^2 core switches above. Every switch
has as many ports up as down [1]_.

Example with k = 4: a pod, with a = aggregation switch, e = edge switch, and 2 GPUs at each edge switch.

    core    0   1     2   3
             | |       | |
              a0        a1       each aggregation switch is connected to its own group of cores
              |  +----+  |
              e0        e1       each edge switch is connected to every aggregation switch in the pod
             | |       | |
             0 1       2 3       GPUs

References
----------
.. [1] Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008, section 3.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require, require_all
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, Count, Seconds

Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


def fat_tree(
    world_size: int,
    *,
    k: Count | None = None,
    bandwidth: Bandwidth,
    latency: Seconds,
    oversubscription: Ratio = 1.0,
    servers: int = 0,
) -> Graph:
    """Three layers of switches with k ports each; one GPU per host.

    Parameters
    ----------
    world_size : int
        Number of GPUs that need a port, if k is not given.
    k : int, optional
        Number of ports per switch, even; by default the smallest k with enough ports.
    bandwidth : float
        Bandwidth of a host's cable, per direction [B/s].
    latency : float
        Latency of each cable [s].
    oversubscription : float
        Host bandwidth divided by bandwidth above the edge: cables between switches get bandwidth / oversubscription.
    servers : int
        Number of parameter servers, on the last ports.

    Returns
    -------
    Graph
        k^3/4 ports with a GPU or server each, 5 k^2/4 switches, 3 k^3/4 cables. Hosts are 2 hops apart at the same edge
        switch, 4 hops in the same pod, and 6 hops otherwise.

    Examples
    --------
    >>> from simulator.cluster.graph import of_kind
    >>> tree = fat_tree(16, bandwidth=1e9, latency=1e-6)
    >>> len(of_kind(tree, "gpu")), len(of_kind(tree, "switch"))
    (16, 20)
    """
    ports = _ports(world_size + servers) if k is None else k
    _check(ports, oversubscription)
    half, hosts = ports // 2, ports**3 // 4
    require(world_size + servers <= hosts, f"got {world_size} ranks and {servers} servers; k {ports} has {hosts} ports")
    graph = empty()
    # Every port of the tree gets a host, also beyond world_size: the machine is built in full.
    names = [add_vertex(graph, f"gpu{i}", "gpu", forwards=False) for i in range(hosts - servers)]
    names += [add_vertex(graph, f"server{i}", "server", forwards=False) for i in range(servers)]
    for i, name in enumerate(names):
        add_cable(graph, name, _switch(graph, "edge", i // half), bandwidth, latency)
    for pod in range(ports):
        _join_pod(graph, pod, half, bandwidth / oversubscription, latency)
    return graph


def _join_pod(graph: Graph, pod: int, half: int, bandwidth: float, latency: float) -> None:
    """Add to a fat tree's graph the cables of a pod: from edge to aggregation switches, and from these to the cores."""
    for j in range(half):
        # Core group j is cores j k/2 .. (j + 1) k/2 - 1; every pod has a cable to each core.
        aggregation = _switch(graph, "aggregation", pod * half + j)
        for i in range(half):
            add_cable(graph, f"edge{pod * half + i}", aggregation, bandwidth, latency)
        for i in range(half):
            add_cable(graph, aggregation, _switch(graph, "core", j * half + i), bandwidth, latency)


def _switch(graph: Graph, layer: str, number: int) -> str:
    return add_vertex(graph, f"{layer}{number}", "switch", forwards=True)


def _ports(hosts: int) -> int:
    """Return the smallest even number of ports k per switch for `hosts` hosts: k^3/4 >= hosts."""
    k = 2
    while k**3 // 4 < hosts:
        k += 2
    return k


def _check(ports: int, oversubscription: float) -> None:
    require_all(
        (ports >= 2 and ports % 2 == 0, f"got k {ports}; must be even and at least 2"),
        (oversubscription >= 1, f"got oversubscription {oversubscription}; must be at least 1"),
    )


def limits(*, k: int | None = None, oversubscription: float = 1.0, **_: object) -> TopologyLimits:
    """Return the limits for a fat tree: k^3/4 GPUs, or no limit without k; ValueError for an invalid option.

    >>> limits(k=4).max_ranks, limits().max_ranks
    (16, None)
    """
    _check(2 if k is None else k, oversubscription)
    return TopologyLimits(max_ranks=None if k is None else k**3 // 4, own_servers=True)


def size(world_size: int, servers: int, *, k: int | None = None, **_: object) -> GraphSize:
    """Return the vertex and cable counts for a fat tree: k^3/4 hosts, 5 k^2/4 switches, 3 k^3/4 cables.

    >>> size(16, 0), size(17, 0)
    (GraphSize(vertices=36, cables=48), GraphSize(vertices=99, cables=162))
    """
    ports = _ports(world_size + servers) if k is None else k
    return GraphSize(ports**3 // 4 + 5 * ports**2 // 4, 3 * ports**3 // 4)
