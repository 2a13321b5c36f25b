"""Groups of routers: all routers of a group know each other, and every two groups share one long cable.

Rule: a local hop, a global hop, a local hop reach everybody. Like villages in which everybody knows everybody, and
for each other village somebody has a cousin there [1]_.

References
----------
.. [1] Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008, section 3.
"""

from __future__ import annotations

from itertools import combinations

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, Count, Seconds


def dragonfly(
    *,
    hosts: Count,
    routers: Count,
    global_links: Count,
    groups: Count | None = None,
    bandwidth: Bandwidth,
    latency: Seconds,
    local_bandwidth: Bandwidth | None = None,
    global_bandwidth: Bandwidth | None = None,
    global_latency: Seconds | None = None,
) -> Graph:
    """Join GPUs by groups of routers.

    Parameters
    ----------
    hosts : int
        p: GPUs at a router.
    routers : int
        a: routers of a group. A balanced dragonfly has a = 2p = 2h.
    global_links : int
        h: global cables of a router.
    groups : int, optional
        g, at most a h + 1 (the default): each two groups share one global cable.
    bandwidth, local_bandwidth, global_bandwidth : float
        Of the cables at GPUs, within a group and between groups; the latter two are as the first by default [B/s].
    latency, global_latency : float
        Of a cable, and of a global one; the same by default [s].

    Returns
    -------
    Graph
        a p g GPUs, a g routers. GPUs are at most 5 hops apart.

    Examples
    --------
    >>> len(dragonfly(hosts=2, routers=4, global_links=2, bandwidth=1e9, latency=1e-6))
    108
    """
    most = routers * global_links + 1
    count = most if groups is None else groups
    require(1 <= count <= most, f"got groups {count}; {routers} x {global_links} global links allow 1 to {most}")
    graph = empty()
    for i in range(count * routers * hosts):
        add_vertex(graph, f"gpu{i}", "gpu", forwards=False)
    for i in range(count * routers):
        add_vertex(graph, f"router{i}", "switch", forwards=True)
    for i in range(count * routers * hosts):
        add_cable(graph, f"gpu{i}", f"router{i // hosts}", bandwidth, latency)
    for group in range(count):
        for a, b in combinations(range(group * routers, (group + 1) * routers), 2):
            add_cable(graph, f"router{a}", f"router{b}", local_bandwidth or bandwidth, latency)
    far = latency if global_latency is None else global_latency
    for a, b in combinations(range(count), 2):
        ends = _end(a, b, count, routers, global_links), _end(b, a, count, routers, global_links)
        add_cable(graph, f"router{ends[0]}", f"router{ends[1]}", global_bandwidth or bandwidth, far)
    return graph


def _end(here: int, there: int, groups: int, routers: int, global_links: int) -> int:
    """Find the router of one group that holds the cable to another: the groups that follow, in order."""
    return here * routers + (there - here - 1) % groups // global_links


def limits(*, hosts: int, routers: int, global_links: int, groups: int | None = None, **_: object) -> TopologyLimits:
    """Its GPUs are hosts x routers x groups."""
    return TopologyLimits(max_ranks=hosts * routers * (routers * global_links + 1 if groups is None else groups))


def size(
    world_size: int,
    servers: int,
    *,
    hosts: int,
    routers: int,
    global_links: int,
    groups: int | None = None,
    **_: object,
) -> GraphSize:
    """Return the size of a graph with a cable for each GPU, each two routers of a group, and each two groups."""
    count = routers * global_links + 1 if groups is None else groups
    gpus = hosts * routers * count
    cables = gpus + count * (routers * (routers - 1) // 2) + count * (count - 1) // 2
    return GraphSize(gpus + count * routers, cables)
