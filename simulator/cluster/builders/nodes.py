"""Builds DGX-like clusters: nodes of several GPUs, as many as the ranks need, joined by a scale-out network.

Rule: GPUs of a node reach each other by NVLink, xGMI or PCIe (cluster/node.py), other nodes through network cards
(cluster/scale_out.py); a single node has no network.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.cluster.graph import Graph, add_vertex, empty, require, require_all
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.node import Node, NodeInterconnect, add_node, gpu_names, host_names, node_size, switch_name
from simulator.cluster.quantity import Bandwidth, Count, CountOrZero, Seconds
from simulator.cluster.scale_out import FabricKind, ScaleOutFabric, add_fabric, fabric_size

Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


# One parameter an option of the topology file, for `builder.py` makes the schema of the options out of this signature;
# a record for some of them would nest the keys of every file.
def nodes(
    world_size: int,
    *,
    gpus: Count,
    inside: NodeInterconnect,
    link_bandwidth: Bandwidth | None = None,
    link_latency: Seconds = 0.0,
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
    """Join nodes of GPUs.

    Parameters
    ----------
    world_size : int
        Decides how many nodes there are.
    gpus : int
        Of a node.
    inside : {"nvswitch", "full_mesh", "pcie"}
    link_bandwidth, link_latency : float
        Of a GPU's port at the NVSwitch or of a cable of the mesh [B/s], [s]; not for pcie.
    in_switch_reduction : bool
        Whether the NVSwitch can add.
    hosts : int
        Processor sockets of a node.
    pcie_switches : int, optional
        Of a node; one for each GPU by default, none where `inside` is pcie.
    pcie_bandwidth, pcie_latency : float
        Of a slot [B/s], [s].
    socket_bandwidth, socket_latency : float
        Between two sockets [B/s], [s]; as a slot's bandwidth by default.
    nics : int
        Network cards of a node; GPU i uses card i * nics // gpus.
    nic_bandwidth, nic_latency : float
        Of the cable from card to leaf [B/s], [s].
    fabric : {"rail", "leaf_spine"}
    nodes_per_leaf : int
        Nodes of a rail pod, or nodes whose cards hang on one leaf.
    spines : int, optional
        Half the leaves by default; there are none where one leaf does.
    spine_latency : float
        Of a cable from leaf to spine [s].
    oversubscription : float
        Bandwidth down over bandwidth up at a full leaf.
    nodes : int, optional
        The most that there can be; no limit by default.
    servers : int
        Parameter servers with a card of their own at a leaf; leaf_spine only.

    Returns
    -------
    Graph
        With graph attributes `nodes` (names of the GPUs of each node), `hosts` (each GPU's socket) and
        `reducing_switches` (one a node, or none).
    """
    count = -(-world_size // gpus)
    slots = _slots(gpus, inside, pcie_switches)
    # A single node without servers has nothing to reach, so it gets no network cards.
    outside = count > 1 or servers > 0
    require(world_size >= 1, f"got world_size {world_size}; must be at least 1")
    require(nodes is None or count <= nodes, f"got world_size {world_size}; {nodes} nodes of {gpus} have room for less")
    require(not outside or (nics > 0 and nic_bandwidth is not None), "more than one node needs nics and nic_bandwidth")
    require(servers == 0 or fabric == "leaf_spine", "servers of their own need fabric leaf_spine")
    node = Node(
        gpus, inside, link_bandwidth or 0.0, link_latency, hosts, slots, pcie_bandwidth, pcie_latency,
        socket_bandwidth or pcie_bandwidth, socket_latency, nics,
    )  # fmt: skip
    _check(gpus, inside, link_bandwidth, slots, hosts, nics, in_switch_reduction=in_switch_reduction)
    graph = empty()
    # All GPUs first, so that GPU i is vertex i of the router.
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
    """PCIe switches of a node."""
    return (0 if inside == "pcie" else gpus) if pcie_switches is None else pcie_switches


def _check(
    gpus: int,
    inside: NodeInterconnect,
    link_bandwidth: float | None,
    slots: int,
    hosts: int,
    nics: int,
    *,
    in_switch_reduction: bool,
) -> None:
    """Refuse what is wrong with a node, however many there are."""
    tree = inside == "pcie"
    # With two cards at one switch, routing would choose between them by the destination's number, and GPU i would not
    # keep to its own card.
    places = slots or hosts
    require_all(
        (tree or bool(link_bandwidth), f"inside {inside} needs link_bandwidth"),
        (not tree or not link_bandwidth, "inside pcie has no link of its own; leave link_bandwidth out"),
        (not in_switch_reduction or inside == "nvswitch", "in_switch_reduction needs inside nvswitch"),
        (slots <= gpus, f"got pcie_switches {slots}; must be at most gpus {gpus}"),
        (tree or slots >= 1, f"got pcie_switches 0; inside {inside} needs at least 1"),
        (nics <= gpus, f"got nics {nics}; must be at most gpus {gpus}: join the cards of one GPU to one faster card"),
        (not tree or nics <= places, f"got nics {nics}; inside pcie has room for {places}, one a switch"),
    )


def _note_nodes(graph: Graph, node: Node, count: int, *, in_switch_reduction: bool) -> None:
    """Note as graph attributes which GPUs share a node, each GPU's socket, and the switches that can add."""
    graph.graph["nodes"] = tuple(tuple(gpu_names(node, number)) for number in range(count))
    graph.graph["hosts"] = tuple(
        host_names(node, number)[i * node.hosts // node.gpus] for number in range(count) for i in range(node.gpus)
    )
    graph.graph["reducing_switches"] = tuple(switch_name(i) for i in range(count)) if in_switch_reduction else ()


def limits(
    *,
    gpus: int,
    inside: NodeInterconnect,
    link_bandwidth: float | None = None,
    in_switch_reduction: bool = False,
    hosts: int = 2,
    pcie_switches: int | None = None,
    fabric: FabricKind = "rail",
    nics: int = 0,
    nodes: int | None = None,
    **_: object,
) -> TopologyLimits:
    """It grows with the world size where there are cards and no limit is given; ValueError where a node is wrong."""
    slots = _slots(gpus, inside, pcie_switches)
    _check(gpus, inside, link_bandwidth, slots, hosts, nics, in_switch_reduction=in_switch_reduction)
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
    hosts: int = 2,
    pcie_switches: int | None = None,
    fabric: FabricKind = "rail",
    nics: int = 0,
    nodes_per_leaf: int = 32,
    spines: int | None = None,
    **_: object,
) -> GraphSize:
    """Return the size of as many nodes as the ranks need, and of the network between them."""
    count = -(-world_size // gpus)
    outside = count > 1 or servers > 0
    each = node_size(gpus, inside, hosts, _slots(gpus, inside, pcie_switches), nics if outside else 0)
    network = fabric_size(fabric, nodes_per_leaf, spines, nics, count, servers) if outside else GraphSize(0, 0)
    return GraphSize(count * each.vertices + network.vertices, count * each.cables + network.cables)
