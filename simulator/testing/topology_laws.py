"""Laws of topologies; each function raises BrokenLawError if a topology breaks its law with `ranks` ranks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from itertools import permutations
from math import isfinite
from typing import Any, Final

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build, facts, graph_size
from simulator.cluster.cluster import Cluster
from simulator.cluster.graph import of_kind
from simulator.collectives.algorithm import CollectiveRequest
from simulator.testing.law import require
from simulator.testing.playing import takes_as_long_in_both_engines

# Name of a topology, or the keys of a topology file.
Topology = str | Mapping[str, Any]
_KINDS: Final = ("gpu", "nic", "switch", "host", "server")
_MANY: Final = 129


def has_as_many_parts_as_counted(topology: Topology, ranks: int, servers: int = 0) -> None:
    """Check that `size` counts the vertices and the links of the graph."""
    graph, size = build(topology, ranks, servers=servers).graph, graph_size(topology, ranks, servers=servers)
    sizes = len(graph), graph.number_of_edges()
    counts = size.vertices, 2 * size.cables
    require(sizes == counts, f"has {sizes[0]} vertices and {sizes[1]} links, and counts {counts[0]} and {counts[1]}")


def connects_every_pair(topology: Topology, ranks: int) -> None:
    """Check the route between every two ranks."""
    cluster = build(topology, ranks)
    require(cluster.world_size == ranks, f"has {cluster.world_size} ranks; must have {ranks}")
    for src, dst in permutations(cluster.ranks, 2):
        _reaches(cluster, src, dst)


def _reaches(cluster: Cluster, src: str, dst: str) -> None:
    route = cluster.route(src, dst)
    require(bool(route.links) and route.latency > 0, f"the route from {src} to {dst} takes no time")
    require(route.bandwidth > 0 and isfinite(route.bandwidth), f"the route from {src} to {dst} has no finite bandwidth")


def numbers_its_gpus(topology: Topology, ranks: int) -> None:
    """Check that ranks are the first GPUs in the order of the graph: gpu0, gpu1, ..."""
    cluster = build(topology, ranks)
    names = tuple(f"gpu{i}" for i in range(ranks))
    require(cluster.ranks == names, f"the ranks are {', '.join(cluster.ranks[:4])}, ...; must be gpu0, gpu1, ...")
    first = tuple(of_kind(cluster.graph, "gpu")[:ranks])
    require(first == names, f"the first GPUs of the graph are {', '.join(first[:4])}, ...; must be gpu0, gpu1, ...")


def fills_its_nodes(topology: Topology, ranks: int) -> None:
    """Check that nodes hold every rank once, in nodes of the declared size, with a switch that adds if declared."""
    cluster, declared = build(topology, ranks), facts(topology)
    members = sorted(rank for node in cluster.nodes for rank in node)
    require(members == list(range(ranks)), f"the nodes hold ranks {members}; must hold each rank once")
    size = declared.node_size
    count = 1 if size is None else -(-ranks // size)
    require(len(cluster.nodes) == count, f"has {len(cluster.nodes)} nodes; must have {count}")
    adding = len(cluster.nodes) if declared.in_switch_reduction else 0
    require(
        len(cluster.reducing_switches) == adding, f"has {len(cluster.reducing_switches)} adding switches, not {adding}"
    )
    for switch, node in zip(cluster.reducing_switches, cluster.nodes, strict=False):
        joined = all(cluster.graph.has_edge(cluster.ranks[rank], switch) for rank in node)
        require(joined, f"{switch} adds, and has no link to a rank of its node")


def has_sound_parts(topology: Topology, ranks: int) -> None:
    """Check the kinds of vertices, and bandwidth, latency and reverse direction of every link."""
    graph = build(topology, ranks).graph
    for name, vertex in graph.nodes(data=True):
        require(vertex.get("kind") in _KINDS, f"{name} has kind {vertex.get('kind')!r}; one of {', '.join(_KINDS)}")
        require(isinstance(vertex.get("forwards"), bool), f"{name} does not declare whether it forwards")
    for src, dst, link in graph.edges(data=True):
        require(link.get("bandwidth", 0) > 0, f"{src}->{dst} has no bandwidth")
        require(link.get("latency", -1) >= 0, f"{src}->{dst} has no latency")
        require(graph.has_edge(dst, src), f"{src}->{dst} has no link in the other direction")


def reaches_its_hosts(topology: Topology, ranks: int) -> bool:
    """Check the routes between ranks and their hosts; return False if there are no hosts."""
    cluster = build(topology, ranks)
    require(len(cluster.hosts) in (0, ranks), f"{len(cluster.hosts)} of {ranks} ranks have a host")
    for rank, host in zip(cluster.ranks, cluster.hosts, strict=False):
        require(cluster.graph.nodes[host]["kind"] == "host", f"the host {host} is no vertex of kind host")
        within = cluster.route(rank, host).bandwidth <= cluster.gpus[0].host_bandwidth
        require(within, f"{rank} reaches {host} faster than the GPU's PCIe allows")
        require(bool(cluster.route(host, rank).links), f"{host} does not reach {rank}")
    return bool(cluster.hosts)


def has_its_servers(topology: Topology, ranks: int, servers: int = 2) -> bool:
    """Check that separate servers are reached if declared, and refused otherwise; return False if no port is free."""
    declared = facts(topology)
    if not declared.own_servers:
        _refuses(topology, ranks, "has no ports for separate servers", servers=servers)
        return True
    # A server takes the port of a GPU.
    if declared.max_ranks is not None and ranks + servers > declared.max_ranks:
        return False
    cluster = build(topology, ranks, servers=servers)
    names = tuple(f"server{i}" for i in range(servers))
    require(cluster.servers == names, f"the servers are {', '.join(cluster.servers)}; must be {', '.join(names)}")
    for rank in cluster.ranks:
        for server in cluster.servers:
            _reaches(cluster, rank, server)
            _reaches(cluster, server, rank)
    return True


def has_the_declared_number_of_gpus(topology: Topology) -> None:
    """Check that the graph grows without limit, or up to the declared number of GPUs."""
    most = facts(topology).max_ranks
    ranks = _MANY if most is None else most
    size = build(topology, ranks).world_size
    require(size == ranks, f"has {size} ranks; must have {ranks}")
    if most is not None:
        _refuses(topology, most + 1, f"got {most + 1} ranks; has {most} GPUs")


def _refuses(topology: Topology, ranks: int, words: str, servers: int = 0) -> None:
    try:
        build(topology, ranks, servers=servers)
    except ScenarioError as error:
        require(words in str(error), f"is refused with other words: {error}")
        return
    require(False, f"is built, and must be refused: {words}")


def survives_pickling(topology: Topology, ranks: int) -> None:
    """Check that a cluster can be sent to a worker process."""
    cluster = build(topology, ranks)
    again = pickle.loads(pickle.dumps(cluster))
    require(again.ranks == cluster.ranks, "a copy of the cluster has other ranks")
    if ranks > 1:
        ends = cluster.ranks[0], cluster.ranks[-1]
        require(again.route(*ends) == cluster.route(*ends), "a copy of the cluster has other routes")


def is_simulated(topology: Topology, ranks: int) -> bool:
    """Check that an all-reduce in a ring takes as long in both engines; return False for a single rank."""
    if ranks < 2:
        return False
    return takes_as_long_in_both_engines(build(topology, ranks), "ring", CollectiveRequest("all_reduce", ranks, 1680))
