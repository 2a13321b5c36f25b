"""What is inside a node, and how it is joined: GPUs, NVSwitch or mesh, PCIe, sockets and network cards.

Rule: GPUs never forward traffic; each reaches its network card by its own PCIe port, and other GPUs by the fastest
links that the node has.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from simulator.cluster.graph import Graph, add_cable, add_vertex
from simulator.cluster.limits import GraphSize

NodeInterconnect = Literal["nvswitch", "full_mesh", "pcie"]


@dataclass(frozen=True, slots=True)
class Node:
    """One kind of node.

    Attributes
    ----------
    gpus : int
    inside : {"nvswitch", "full_mesh", "pcie"}
        One switch for all GPUs, a cable between every two, or PCIe alone.
    link_bandwidth, link_latency : float
        Of a GPU's port at the switch, or of a cable of the mesh [B/s], [s].
    hosts : int
        Processor sockets, each joined to every other.
    pcie_switches : int
        As many as GPUs: each GPU has one to itself. Fewer: their GPUs share the link up to the host. 0 (inside pcie
        only): GPUs hang on the sockets.
    pcie_bandwidth, pcie_latency : float
        Of a PCIe slot [B/s], [s].
    socket_bandwidth, socket_latency : float
        Between two sockets [B/s], [s].
    nics : int
        Network cards; GPU i uses card i * nics // gpus.
    """

    gpus: int
    inside: NodeInterconnect
    link_bandwidth: float
    link_latency: float
    hosts: int
    pcie_switches: int
    pcie_bandwidth: float
    pcie_latency: float
    socket_bandwidth: float
    socket_latency: float
    nics: int


def gpu_names(node: Node, number: int) -> list[str]:
    """Name the GPUs of a node; numbers run on from node to node."""
    return [f"gpu{number * node.gpus + i}" for i in range(node.gpus)]


def nic_names(node: Node, number: int) -> list[str]:
    """Name the network cards of a node; numbers run on from node to node."""
    return [f"nic{number * node.nics + i}" for i in range(node.nics)]


def host_names(node: Node, number: int) -> list[str]:
    """Name the sockets of a node; numbers run on from node to node."""
    return [f"host{number * node.hosts + i}" for i in range(node.hosts)]


def switch_name(number: int) -> str:
    """Name the NVSwitch of a node."""
    return f"node{number}/nvswitch"


def add_node(graph: Graph, node: Node, number: int, *, nics: bool) -> None:
    """Add all of a node to a graph that already has its GPUs.

    Parameters
    ----------
    graph : Graph
    node : Node
    number : int
        Which node it is; from 0.
    nics : bool
        Whether network cards are needed: not if nothing is outside.
    """
    gpus, hosts = gpu_names(node, number), host_names(node, number)
    _join_gpus(graph, node, number, gpus)
    for name in hosts:
        add_vertex(graph, name, "host", forwards=True)
    for a, b in combinations(hosts, 2):
        add_cable(graph, a, b, node.socket_bandwidth, node.socket_latency)
    cards = nic_names(node, number) if nics else []
    for name in cards:
        add_vertex(graph, name, "nic", forwards=True)
    if node.inside == "pcie":
        _add_tree(graph, node, number, cards)
    else:
        _add_ports(graph, node, number, cards)


def node_size(gpus: int, inside: NodeInterconnect, hosts: int, pcie_switches: int, cards: int) -> GraphSize:
    """Return the size that `add_node` adds, including the GPUs; `cards` is 0 for a single node."""
    vertices = gpus + hosts + cards + (inside == "nvswitch")
    cables = hosts * (hosts - 1) // 2
    cables += {"nvswitch": gpus, "full_mesh": gpus * (gpus - 1) // 2, "pcie": 0}[inside]
    if inside == "pcie":
        return GraphSize(vertices + pcie_switches, cables + pcie_switches + gpus + cards)
    trunks = pcie_switches if pcie_switches < gpus else 0
    return GraphSize(vertices + trunks + gpus, cables + trunks + gpus * (3 if cards else 2))


def _join_gpus(graph: Graph, node: Node, number: int, gpus: list[str]) -> None:
    if node.inside == "nvswitch":
        switch = add_vertex(graph, switch_name(number), "switch", forwards=True)
        for gpu in gpus:
            add_cable(graph, gpu, switch, node.link_bandwidth, node.link_latency)
    elif node.inside == "full_mesh":
        for a, b in combinations(gpus, 2):
            add_cable(graph, a, b, node.link_bandwidth, node.link_latency)


def _add_tree(graph: Graph, node: Node, number: int, cards: list[str]) -> None:
    """Hang GPUs and cards on PCIe switches, or on the sockets where there are none."""
    hosts = host_names(node, number)
    slots = [f"node{number}/pcie{i}" for i in range(node.pcie_switches)]
    for i, slot in enumerate(slots):
        add_vertex(graph, slot, "switch", forwards=True)
        add_cable(graph, slot, hosts[i * len(hosts) // len(slots)], node.pcie_bandwidth, node.pcie_latency)
    places = slots or hosts
    for group in (gpu_names(node, number), cards):
        for i, name in enumerate(group):
            add_cable(graph, name, places[i * len(places) // len(group)], node.pcie_bandwidth, node.pcie_latency)


def _add_ports(graph: Graph, node: Node, number: int, cards: list[str]) -> None:
    """Give each GPU a PCIe port of its own, to its card and to its socket.

    A switch that several GPUs share becomes one port vertex for each GPU and a trunk to the socket. With a single
    vertex, two GPUs at it would be as near by PCIe as by NVSwitch, and a GPU as near to its neighbour's network card as
    to its own; routes are shortest by hops and could take either. Traffic to the host still shares the trunk.
    """
    hosts = host_names(node, number)
    shared = node.pcie_switches < node.gpus
    for i in range(node.pcie_switches if shared else 0):
        trunk = add_vertex(graph, f"node{number}/pcie{i}", "switch", forwards=True)
        add_cable(graph, trunk, hosts[i * node.hosts // node.pcie_switches], node.pcie_bandwidth, node.pcie_latency)
    for i, gpu in enumerate(gpu_names(node, number)):
        port = add_vertex(graph, f"node{number}/{'port' if shared else 'pcie'}{i}", "switch", forwards=True)
        add_cable(graph, gpu, port, node.pcie_bandwidth, node.pcie_latency)
        if cards:
            add_cable(graph, port, cards[i * node.nics // node.gpus], node.pcie_bandwidth, node.pcie_latency)
        if shared:
            # Port and trunk are one chip, so the step between them costs nothing.
            add_cable(graph, port, f"node{number}/pcie{i * node.pcie_switches // node.gpus}", node.pcie_bandwidth, 0.0)
        else:
            add_cable(graph, port, hosts[i * node.hosts // node.gpus], node.pcie_bandwidth, node.pcie_latency)
