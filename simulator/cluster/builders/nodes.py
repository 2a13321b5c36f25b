"""DGX-like clusters: nodes with several GPUs, joined by a scale-out network.

There are as many nodes as the ranks need. GPUs in a node reach each other by NVLink, xGMI or PCIe (cluster/node.py),
and other nodes through network cards (cluster/scale_out.py). A single node has no network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from simulator.cluster.graph import Graph, add_vertex, empty, require, require_all
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.node import (
    Node,
    NodeInterconnect,
    add_node,
    gpu_names,
    hangs_on_tree,
    host_names,
    node_size,
    switch_name,
)
from simulator.cluster.quantity import Bandwidth, Count, CountOrZero, Seconds
from simulator.cluster.scale_out import FabricKind, ScaleOutFabric, add_fabric, fabric_size

Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
Links = Sequence[Sequence[CountOrZero]]


# A parameter per option of the topology file: `builder.py` derives the schema of the options from this signature, and
# a record for several options would nest the keys in every topology file.
def nodes(
    world_size: int,
    *,
    gpus: Count,
    inside: NodeInterconnect,
    link_bandwidth: Bandwidth | None = None,
    link_latency: Seconds = 0.0,
    links: Links | None = None,
    in_switch_reduction: bool = False,
    hosts: Count = 2,
    pcie_switches: CountOrZero | None = None,
    pcie_bandwidth: Bandwidth,
    pcie_latency: Seconds,
    socket_bandwidth: Bandwidth | None = None,
    socket_latency: Seconds = 0.0,
    nics: CountOrZero = 0,
    nic_bandwidth: Bandwidth | None = None,
    nic_latency: Seconds = 0.0,
    fabric: FabricKind = "rail",
    nodes_per_leaf: Count = 32,
    spines: Count | None = None,
    spine_latency: Seconds = 0.0,
    oversubscription: Ratio = 1.0,
    nodes: Count | None = None,
    servers: int = 0,
) -> Graph:
    """Nodes with several GPUs, joined by a rail or leaf-spine network.

    Parameters
    ----------
    world_size : int
        Number of ranks; decides the number of nodes.
    gpus : int
        Number of GPUs per node.
    inside : {"nvswitch", "full_mesh", "mesh", "pcie"}
        Interconnect inside a node: an NVSwitch, a link between every two GPUs, the links of `links`, or PCIe alone.
    link_bandwidth : float, optional
        Bandwidth of a GPU's NVSwitch port or of one link of a mesh, per direction [B/s]; not for pcie.
    link_latency : float
        Latency of a GPU's NVSwitch port or of a link of a mesh [s]; not for pcie.
    links : sequence of sequence of int, optional
        Links of a mesh, such as [[0, 1, 2], [1, 2, 1]]: two between GPUs 0 and 1, one between 1 and 2; PCIe elsewhere.
    in_switch_reduction : bool
        Whether the NVSwitch can add.
    hosts : int
        Number of processor sockets per node.
    pcie_switches : int, optional
        Number of PCIe switches per node; by default one per GPU, and none if `inside` is pcie.
    pcie_bandwidth : float
        Bandwidth of a PCIe slot, per direction [B/s].
    pcie_latency : float
        Latency of a PCIe slot [s].
    socket_bandwidth : float, optional
        Bandwidth between two sockets, per direction [B/s]; by default that of a PCIe slot.
    socket_latency : float
        Latency between two sockets [s].
    nics : int
        Number of network cards per node; GPU i uses card i * nics // gpus.
    nic_bandwidth : float, optional
        Bandwidth of the cable from a card to its leaf switch, per direction [B/s].
    nic_latency : float
        Latency of the cable from a card to its leaf switch [s].
    fabric : {"rail", "leaf_spine"}
        Network between nodes: a leaf per card number (rail), or a leaf for every card in a node (leaf_spine).
    nodes_per_leaf : int
        Number of nodes per rail pod, or per leaf switch.
    spines : int, optional
        Number of spine switches; by default half the leaves, and none with a single leaf.
    spine_latency : float
        Latency of a cable from leaf to spine [s].
    oversubscription : float
        Bandwidth down divided by bandwidth up, at a full leaf switch.
    nodes : int, optional
        Maximum number of nodes; no limit by default.
    servers : int
        Number of parameter servers with their own card at a leaf switch; leaf_spine only.

    Returns
    -------
    Graph
        Has the graph attributes `nodes` (GPU names per node), `hosts` (socket of each GPU) and `reducing_switches`
        (one per node, or none).
    """
    count = -(-world_size // gpus)
    slots = _slots(gpus, inside, pcie_switches)
    # A single node without servers needs no network, and therefore no network cards.
    outside = count > 1 or servers > 0
    require(world_size >= 1, f"got world_size {world_size}; must be at least 1")
    require(
        nodes is None or count <= nodes, (f"got world_size {world_size}; {nodes} nodes of {gpus} GPUs have fewer GPUs")
    )
    require(not outside or (nics > 0 and nic_bandwidth is not None), "more than one node needs nics and nic_bandwidth")
    require(servers == 0 or fabric == "leaf_spine", "separate servers need fabric leaf_spine")
    node = Node(
        gpus, inside, link_bandwidth or 0.0, link_latency, hosts, slots, pcie_bandwidth, pcie_latency,
        socket_bandwidth or pcie_bandwidth, socket_latency, nics, links or (),
    )  # fmt: skip
    _check(gpus, inside, link_bandwidth, links, slots, hosts, nics, in_switch_reduction=in_switch_reduction)
    graph = empty()
    # GPUs come first, so that GPU i is vertex i in the router.
    for number in range(count):
        for name in gpu_names(node, number):
            add_vertex(graph, name, "gpu", forwards=False)
    for number in range(count):
        add_node(graph, node, number, nics=outside)
    if outside:
        network = ScaleOutFabric(
            fabric, nodes_per_leaf, nic_bandwidth or 0.0, nic_latency, spine_latency, spines, oversubscription
        )
        add_fabric(graph, network, node, count, servers)
    _note_nodes(graph, node, count, in_switch_reduction=in_switch_reduction)
    return graph


def _slots(gpus: int, inside: NodeInterconnect, pcie_switches: int | None) -> int:
    """Return the number of PCIe switches per node: as given, by default one per GPU, or none if `inside` is pcie."""
    return (0 if inside == "pcie" else gpus) if pcie_switches is None else pcie_switches


def _check(
    gpus: int,
    inside: NodeInterconnect,
    link_bandwidth: float | None,
    links: Links | None,
    slots: int,
    hosts: int,
    nics: int,
    *,
    in_switch_reduction: bool,
) -> None:
    """Raise ValueError if a node's options contradict each other, such as fewer GPUs than network cards."""
    tree = hangs_on_tree(inside)
    # With two cards at a switch, routing would choose between the cards by the destination's number, and GPU i would
    # not keep to its own card.
    places = slots or hosts
    require_all(
        (inside == "pcie" or bool(link_bandwidth), f"inside {inside} needs link_bandwidth"),
        (
            inside != "pcie" or not link_bandwidth,
            "inside pcie has no separate links between GPUs; omit link_bandwidth",
        ),
        ((inside == "mesh") == bool(links), "inside mesh needs links, and no other inside has them"),
        *((False, message) for message in _wrong_links(gpus, links or ())),
        (not in_switch_reduction or inside == "nvswitch", "in_switch_reduction needs inside nvswitch"),
        (slots <= gpus, f"got pcie_switches {slots}; must be at most gpus {gpus}"),
        (tree or slots >= 1, f"got pcie_switches 0; inside {inside} needs at least 1"),
        (
            nics <= gpus,
            (f"got nics {nics}; must be at most gpus {gpus}; write several cards of a GPU as a single faster card"),
        ),
        (not tree or nics <= places, f"got nics {nics}; inside {inside} has room for {places} cards, one per switch"),
    )


def _wrong_links(gpus: int, links: Links) -> Iterator[str]:
    """Yield a message for each entry of `links` that is no pair of GPUs with a count, or a pair that came before."""
    before = set[frozenset[int]]()
    for link in links:
        got, pair = f"got link {list(link)}", frozenset(link[:2])
        if len(link) != 3 or len(pair) < 2 or link[2] < 1:
            yield f"{got}; must be [a, b, count]: two places of GPUs, and the number of links between them"
        elif max(pair) >= gpus:
            yield f"{got}; places of {gpus} GPUs are 0 to {gpus - 1}"
        elif pair in before:
            yield f"{got}; the pair has links already; write a pair once, with all of its links"
        before.add(pair)


def _note_nodes(graph: Graph, node: Node, count: int, *, in_switch_reduction: bool) -> None:
    """Store in a graph's attributes each node's GPUs, each GPU's socket, and the switches that can add."""
    graph.graph["nodes"] = tuple(tuple(gpu_names(node, number)) for number in range(count))
    # GPUs are assigned to sockets in blocks: with 8 GPUs and 2 sockets, GPUs 0 to 3 belong to socket 0.
    graph.graph["hosts"] = tuple(
        host_names(node, number)[i * node.hosts // node.gpus] for number in range(count) for i in range(node.gpus)
    )
    graph.graph["reducing_switches"] = tuple(switch_name(i) for i in range(count)) if in_switch_reduction else ()


def limits(
    *,
    gpus: int,
    inside: NodeInterconnect,
    link_bandwidth: float | None = None,
    links: Links | None = None,
    in_switch_reduction: bool = False,
    hosts: int = 2,
    pcie_switches: int | None = None,
    fabric: FabricKind = "rail",
    nics: int = 0,
    nodes: int | None = None,
    **_: object,
) -> TopologyLimits:
    """Return the limits for a cluster with nodes: GPUs, servers, node size; ValueError for an invalid node.

    The number of GPUs has no limit if nodes have network cards and `nodes` is not given.
    """
    slots = _slots(gpus, inside, pcie_switches)
    _check(gpus, inside, link_bandwidth, links, slots, hosts, nics, in_switch_reduction=in_switch_reduction)
    # Without network cards, only a single node is possible.
    most = 1 if nics == 0 else nodes
    return TopologyLimits(
        max_ranks=None if most is None else most * gpus,
        own_servers=fabric == "leaf_spine" and nics > 0,
        node_size=gpus,
        in_switch_reduction=in_switch_reduction,
    )


def size(
    world_size: int,
    servers: int,
    *,
    gpus: int,
    inside: NodeInterconnect,
    links: Links | None = None,
    hosts: int = 2,
    pcie_switches: int | None = None,
    fabric: FabricKind = "rail",
    nics: int = 0,
    nodes_per_leaf: int = 32,
    spines: int | None = None,
    **_: object,
) -> GraphSize:
    """Return the vertex and cable counts for the nodes needed by the ranks, plus the network between nodes."""
    count = -(-world_size // gpus)
    outside = count > 1 or servers > 0
    # The node and the network report their sizes; a test compares the sum with the built graph.
    slots = _slots(gpus, inside, pcie_switches)
    each = node_size(gpus, inside, hosts, slots, nics if outside else 0, len(links or ()))
    network = fabric_size(fabric, nodes_per_leaf, spines, nics, count, servers) if outside else GraphSize(0, 0)
    return GraphSize(count * each.vertices + network.vertices, count * each.cables + network.cables)
