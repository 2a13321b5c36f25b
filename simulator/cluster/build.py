"""Builds a topology's cluster for a number of ranks, or reads the topology's limits without building anything.

The first ranks take the first GPUs unless a placement says otherwise. If the topology cannot meet a request, the
ScenarioError says what the topology can give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from simulator.basics import units
from simulator.basics.errors import ScenarioError, TooLargeError, UnknownNameError, in_lines
from simulator.basics.host_memory import shortage_text
from simulator.cluster.builder import BUILDERS
from simulator.cluster.changes import Event, EventSpec, changes
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.graph import Graph, add_vertex, links_named, of_kind
from simulator.cluster.graph_file import load_graph
from simulator.cluster.library import Transport
from simulator.cluster.limits import GraphSize, TopologyLimits, no_server_ports
from simulator.cluster.routing import Router
from simulator.cluster.topology_file import Topology, load_topology

# Maximum number of link names among which a misspelt link is looked up: difflib is slow.
_MOST_SUGGESTIONS: Final = 2000
_LIST: Final = "simulator show TOPOLOGY --links"
_STORAGE: Final = "storage0"


@dataclass(frozen=True, slots=True)
class TopologyFacts:
    """Facts about a topology that need no graph: maximum ranks, servers, node size, name and GPU."""

    name: str
    max_ranks: int | None  # maximum number of ranks; None if the topology grows with the world size
    own_servers: bool  # whether parameter servers can have separate ports
    in_switch_reduction: bool  # whether the nodes' switches can add
    node_size: int | None  # GPUs per node; None without nodes, or if nodes differ in size
    gpu: str | None  # default GPU; "inline" for a GPU described in the topology file
    one_route: bool = False  # whether the topology is known to have at most one shortest route between any two GPUs
    library: bool = False  # whether a model of a library times collectives that were not measured


def facts(topology: str | Path | Mapping[str, Any], base: Path | None = None) -> TopologyFacts:
    """Return facts about a topology, such as the maximum number of ranks, without building the graph.

    Parameters
    ----------
    topology : str, Path or mapping
        As for `build`.
    base : Path, optional
        Folder against which a relative path is read first.

    Raises
    ------
    ScenarioError
        Unknown name; one line for each fault in the file.

    Examples
    --------
    >>> facts("dgx_a100").node_size
    8
    """
    file = load_topology(topology, base)
    graph = None if file.graph is None else load_graph(file.graph)
    limits = _limits(file, graph)
    gpu = "inline" if isinstance(file.gpu, Mapping) else file.gpu
    return TopologyFacts(
        name=file.name,
        max_ranks=limits.max_ranks,
        own_servers=limits.own_servers,
        in_switch_reduction=limits.in_switch_reduction,
        node_size=limits.node_size,
        gpu=gpu,
        one_route=limits.one_route,
        library=file.library is not None and (graph is None or bool(graph.graph.get("nodes"))),
    )


def build(
    topology: str | Path | Mapping[str, Any],
    world_size: int,
    *,
    gpu: str | Mapping[str, Any] | None = None,
    servers: int = 0,
    stragglers: Mapping[int, float] | None = None,
    link_factors: Mapping[str, float] | None = None,
    placement: Sequence[int] | None = None,
    ecmp_seed: int | None = None,
    transport: Transport | None = None,
    network_time: float = 1.0,
    events: Sequence[EventSpec] = (),
    storage: float | None = None,
    base: Path | None = None,
) -> Cluster:
    """Build a topology's cluster for `world_size` ranks; return GPUs, links, routes and measured constants.

    Parameters
    ----------
    topology : str, Path or mapping
        A shipped name, the path of a topology file or graph file, or the keys of a topology file.
    world_size : int
        Number of ranks; they take the first GPUs.
    gpu : str or mapping, optional
        Replaces the topology's GPU: a catalog name, a path, or the keys of a GPU file.
    servers : int
        Number of parameter servers with separate ports.
    stragglers : mapping of int to float, optional
        Factor on FLOP/s and HBM bandwidth, by rank.
    link_factors : mapping of str to float, optional
        Factor on the bandwidth, by link name 'src->dst' or shell pattern of link names; a link that several patterns
        match is slowed by each of them.
    placement : sequence of int, optional
        GPU number of each rank.
    ecmp_seed : int, optional
        Choose among equally short routes by a hash with this seed.
    transport : {"rdma", "tcp"}, optional
        Transport between nodes; another than the topology's leaves out what was measured over its nodes.
    network_time : float
        Factor on the time of every transfer and collective: bandwidths and rate caps are divided by it, latencies and
        start-ups multiplied.
    events : sequence of EventSpec
        Links, GPUs and nodes that slow down or fail during the simulation.
    storage : float, optional
        Rate of a storage for checkpoints [B/s]; none if omitted.
    base : Path, optional
        Folder against which relative paths are read first.

    Raises
    ------
    ScenarioError
        A fault in a file, too many ranks or servers, an unknown link, or an invalid placement.
    TooLargeError
        This machine cannot hold the graph.

    Examples
    --------
    >>> build("star_100g", 2).route("gpu0", "gpu1").latency
    1e-05
    """
    file = load_topology(topology, base)
    # The graph must contain the GPU with the largest number in the placement, not only `world_size` GPUs.
    places = _placed(world_size, placement)
    graph = _graph(file, max(places) + 1, servers)
    store = "" if storage is None else _add_storage(graph, storage)
    _slow_down(graph, link_factors or {})
    _stretch(graph, network_time)
    ranks, nodes = _seats(graph, places)
    if gpu is None and file.gpu is None:
        raise ScenarioError(f"topology {file.name!r} has no GPU; give cluster.gpu, such as a100_sxm_80gb")
    kind = load_gpu(gpu, base) if gpu is not None else load_gpu(file.gpu or "", file.folder)
    seed = file.ecmp_seed if ecmp_seed is None else ecmp_seed
    # Nodes without any rank are dropped, so `reducing_switches` is reduced to the nodes that are in use.
    used = [number for number, _ in nodes]
    reducing = graph.graph.get("reducing_switches") or ()
    hosts = graph.graph.get("hosts") or ()
    router = Router(graph, file.name, ecmp_seed=seed)
    members = tuple(node for _, node in nodes)
    library = None if file.library is None else file.library.over(transport, time=network_time)
    as_measured = file.library is None or library is None or library.across == file.library.across
    return Cluster(
        name=file.name,
        graph=graph,
        router=router,
        gpus=(kind,) * world_size,
        ranks=ranks,
        servers=tuple(of_kind(graph, "server")[:servers]),
        speeds=_speeds(world_size, stragglers or {}),
        nodes=members,
        node_size=_node_size(graph),
        reducing_switches=tuple(reducing[number] for number in used) if reducing else (),
        # With a single node in use, every group has the constants for a node.
        collectives=_measured(file, network_time, one_node=len(nodes) == 1) if len(nodes) == 1 or as_measured else {},
        in_node=_measured(file, network_time, one_node=True) if len(nodes) > 1 else {},
        library=library,
        hosts=tuple(hosts[place] for place in places) if hosts else (),
        storage=store,
        changes=changes([each for event in events for each in _events(event, graph, router, ranks, members)]),
    )


def graph_size(
    topology: str | Path | Mapping[str, Any], gpus: int, *, servers: int = 0, base: Path | None = None
) -> GraphSize:
    """Return the size of the graph that `build` would build for a topology and `gpus` GPUs.

    The size is 0 for a graph file, which is loaded in any case.

    >>> graph_size("star_100g", 1_000_000).parts
    3000001
    """
    file = load_topology(topology, base)
    if file.builder is None:
        return GraphSize(0, 0)
    return BUILDERS.find(file.builder).size(gpus, servers, **file.options)


def _placed(world_size: int, placement: Sequence[int] | None) -> tuple[int, ...]:
    # bool is a subclass of int: True would count as a single rank.
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ScenarioError(f"world_size: got {world_size!r}; must be a whole number of at least 1")
    if placement is None:
        return tuple(range(world_size))
    places = tuple(placement)
    valid = all(isinstance(place, int) and place >= 0 for place in places)
    if not valid or len(places) != world_size or len(set(places)) != world_size:
        raise ScenarioError(f"placement: got {list(places)}; must be {world_size} different GPU numbers from 0")
    return places


def _limits(file: Topology, graph: Graph | None) -> TopologyLimits:
    if graph is None:
        return BUILDERS.find(file.builder or "").limits(**file.options)
    # A graph file has no builder; its limits come from the loaded graph.
    return TopologyLimits(
        max_ranks=len(of_kind(graph, "gpu")),
        own_servers=bool(of_kind(graph, "server")),
        node_size=_node_size(graph),
        in_switch_reduction=bool(graph.graph.get("reducing_switches")),
    )


def _node_size(graph: Graph) -> int | None:
    """Return the number of GPUs in each node of a graph; None without nodes, or with nodes of several sizes."""
    sizes = {len(node) for node in graph.graph.get("nodes", ())}
    return sizes.pop() if len(sizes) == 1 else None


def _graph(file: Topology, gpus: int, servers: int) -> Graph:
    """Return a topology's graph, built for `gpus` GPUs and `servers` servers or loaded from a file.

    ScenarioError if the topology has too few GPUs or ports; TooLargeError if the graph needs too much memory.
    """
    loaded = None if file.graph is None else load_graph(file.graph)
    limits = _limits(file, loaded)
    if limits.max_ranks is not None and gpus > limits.max_ranks:
        raise ScenarioError(f"topology {file.name!r}: got {gpus} ranks; has {limits.max_ranks} GPUs; take fewer ranks")
    if servers and not limits.own_servers:
        raise ScenarioError(f"got {servers} servers, but {no_server_ports(file.name)}")
    if loaded is not None:
        # A graph file is used as a whole, even if it has more GPUs than ranks.
        have = len(of_kind(loaded, "server"))
        if servers > have:
            raise ScenarioError(
                f"topology {file.name!r}: got {servers} servers; has {have} vertices of kind 'server'; add one for "
                "each server, or put the servers on workers"
            )
        return loaded
    builder = BUILDERS.find(file.builder or "")
    # Checked before building: a graph that exceeds the memory would end the process instead of raising an error.
    size = builder.size(gpus, servers, **file.options)
    short = shortage_text(size.nbytes)
    if short:
        parts = f"{size.vertices:,} vertices and {2 * size.cables:,} links"
        raise TooLargeError(
            f"topology {file.name!r}: {parts} would take about {short}; take fewer ranks, a smaller topology, or use a "
            "machine with more memory"
        )
    try:
        return builder.build(file.options, gpus, servers)
    except ValueError as error:
        raise ScenarioError(file.document.fault(("options",), str(error)).as_line(file.document.source)) from error


def _seats(graph: Graph, places: tuple[int, ...]) -> tuple[tuple[str, ...], list[tuple[int, tuple[int, ...]]]]:
    """Return each rank's vertex, and the nodes in use, as (node number, ranks); `places` has the ranks' GPU numbers."""
    gpus = of_kind(graph, "gpu")
    ranks = tuple(gpus[place] for place in places)
    # A topology without nodes counts as a single node with every GPU.
    nodes = graph.graph.get("nodes") or ((*gpus,),)
    number = {name: i for i, node in enumerate(nodes) for name in node}
    members: dict[int, list[int]] = {}
    for rank, name in enumerate(ranks):
        members.setdefault(number[name], []).append(rank)
    return ranks, [(node, tuple(members[node])) for node in sorted(members)]


def _speeds(world_size: int, stragglers: Mapping[int, float]) -> tuple[float, ...]:
    for rank, factor in stragglers.items():
        if not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ScenarioError(f"stragglers: got rank {rank!r}; must be from 0 to {world_size - 1}")
        if not (factor > 0 and units.within(factor)):
            raise ScenarioError(f"stragglers.{rank}: got {factor!r}; must be more than 0, such as 0.8")
    return tuple(float(stragglers.get(rank, 1.0)) for rank in range(world_size))


def _slow_down(graph: Graph, factors: Mapping[str, float]) -> None:
    links = {name: links_named(graph, name) for name in factors}
    misspelt = [name for name in factors if not links[name]]
    if misspelt and not graph.edges:
        raise ScenarioError(f"link_factors: got {misspelt[0]!r}, but the cluster has no links; remove the key")
    unknown = [UnknownNameError("link", name, _similar(graph, name), listed_by=_LIST) for name in misspelt]
    if unknown:
        raise unknown[0] if len(unknown) == 1 else ScenarioError(in_lines([str(error) for error in unknown]))
    for name, factor in factors.items():
        if not (factor > 0 and units.within(factor)):
            raise ScenarioError(f"link_factors.{name}: got {factor!r}; must be more than 0, such as 0.5")
        for src, dst in links[name]:
            graph.edges[src, dst]["bandwidth"] *= factor


def _stretch(graph: Graph, factor: float) -> None:
    """Make every transfer in a graph take `factor` times as long."""
    if factor == 1.0:
        return
    for _, _, link in graph.edges(data=True):
        link["bandwidth"] /= factor
        link["latency"] *= factor


def _events(
    event: EventSpec, graph: Graph, router: Router, ranks: Sequence[str], nodes: Sequence[tuple[int, ...]]
) -> list[Event]:
    """Return each time that an event happens, with the numbers of the fabric's links and of the ranks that it concerns.

    A slow GPU also adds more slowly in its memory (HBM); a dead one neither sends nor receives.
    """
    number = {router.link_name(link): link for link in range(len(router.bandwidth))}
    if event.link is not None:
        ends = links_named(graph, event.link)
        if not ends:
            raise UnknownNameError("link", event.link, _similar(graph, event.link), listed_by=_LIST)
        links = tuple(number[f"{src}->{dst}"] for src, dst in ends)
        after = inf if event.reroute_after is None else event.reroute_after
        return [Event(*span, event.factor, links, reroute_after=after) for span in event.spans]
    if event.node is not None and not 0 <= event.node < len(nodes):
        raise ScenarioError(f"events: got node {event.node}; must be one of 0 .. {len(nodes) - 1}")
    slow = nodes[event.node] if event.node is not None else (event.rank or 0,)
    hbm = tuple(len(router.bandwidth) + rank for rank in slow)
    gpus = {ranks[rank] for rank in slow}
    cut = [link for name, link in number.items() if gpus & set(name.split("->"))] if event.factor == 0.0 else []
    return [Event(*span, event.factor, (*cut, *hbm), tuple(slow)) for span in event.spans]


def _similar(graph: Graph, name: str) -> list[str]:
    """Return existing link names similar to 'src->dst': links with an end in common, or else the first links."""
    src, _, dst = name.partition("->")
    # If one end exists, the other end is probably misspelt.
    near = [f"{a}->{b}" for a, b in graph.edges if src == a or dst == b]
    return (near or [f"{a}->{b}" for a, b in graph.edges])[:_MOST_SUGGESTIONS]


def _measured(file: Topology, network_time: float, *, one_node: bool) -> dict[str, MachineCollective]:
    # A group within a node has separate constants ("one_node"); without a measurement the operation is absent.
    collectives = {name: both.one_node if one_node else both.nodes for name, both in file.collectives.items()}
    return {name: measured.stretched(network_time) for name, measured in collectives.items() if measured is not None}


def _add_storage(graph: Graph, bandwidth: float) -> str:
    """Add a storage that takes `bandwidth` B/s in all to a topology graph; return the name of its vertex.

    Links lead towards the storage only, hence no other route passes through its port. The port has a link from every
    switch outside of nodes; without such switches, from every network card, host or GPU.
    """
    port = add_vertex(graph, f"{_STORAGE}/port", "storage", forwards=True)
    add_vertex(graph, _STORAGE, "storage", forwards=False)
    outside = [name for name in of_kind(graph, "switch") if "/" not in name]
    candidates = (outside, of_kind(graph, "nic"), of_kind(graph, "host"), of_kind(graph, "gpu"))
    for name in next(names for names in candidates if names):
        graph.add_edge(name, port, bandwidth=bandwidth, latency=0.0)
    graph.add_edge(port, _STORAGE, bandwidth=bandwidth, latency=0.0)
    return _STORAGE
