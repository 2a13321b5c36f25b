"""Dragonfly: groups of routers; routers in a group are fully connected, and every two groups share one long cable.

Every router reaches every other router by at most a local hop, a global hop and a local hop [1]_.

Example with 3 groups (routers = 2, global_links = 1):

    group 0: router0 -- router1      group 1: router2 -- router3      group 2: router4 -- router5
    global cables: router0 -- router3, router1 -- router4, router2 -- router5

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
    """Groups of connected routers, and a cable between any two groups.

    Parameters
    ----------
    hosts : int
        Number of GPUs at each router (p).
    routers : int
        Number of routers per group (a). A balanced dragonfly has a = 2p = 2h.
    global_links : int
        Number of global cables at each router (h).
    groups : int, optional
        Number of groups (g); by default the maximum, a h + 1.
    bandwidth : float
        Bandwidth of a GPU's cable, per direction [B/s].
    local_bandwidth : float, optional
        Bandwidth of a cable within a group, per direction [B/s]; by default that of a GPU's cable.
    global_bandwidth : float, optional
        Bandwidth of a cable between groups, per direction [B/s]; by default that of a GPU's cable.
    latency : float
        Latency of a cable at a GPU or within a group [s].
    global_latency : float, optional
        Latency of a cable between groups [s]; by default that of the other cables.

    Returns
    -------
    Graph
        a p g GPUs and a g routers. GPUs are at most 5 hops apart.

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
    # Every two groups share a single cable; each end takes the next router with a free global port.
    for a, b in combinations(range(count), 2):
        ends = _end(a, b, count, routers, global_links), _end(b, a, count, routers, global_links)
        add_cable(graph, f"router{ends[0]}", f"router{ends[1]}", global_bandwidth or bandwidth, far)
    return graph


def _end(source: int, target: int, groups: int, routers: int, global_links: int) -> int:
    """Return the router number in group `source` whose cable leads to group `target`."""
    # With 3 groups and a single global link per router, group 0 reaches group 1 over its first router, and group 2 over
    # its second router.
    return source * routers + (target - source - 1) % groups // global_links


def limits(*, hosts: int, routers: int, global_links: int, groups: int | None = None, **_: object) -> TopologyLimits:
    """Return the limits for a dragonfly: at most hosts x routers x groups GPUs.

    >>> limits(hosts=2, routers=4, global_links=2).max_ranks
    72
    """
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
    """Return the vertex and cable counts for a dragonfly topology with these options.

    >>> size(8, 0, hosts=2, routers=4, global_links=2)
    GraphSize(vertices=108, cables=162)
    """
    count = routers * global_links + 1 if groups is None else groups
    gpus = hosts * routers * count
    cables = gpus + count * (routers * (routers - 1) // 2) + count * (count - 1) // 2
    return GraphSize(gpus + count * routers, cables)
