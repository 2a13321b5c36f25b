"""How is the inside of a node connected: GPUs, NVSwitch or mesh, PCIe, sockets and network cards?

GPUs never forward traffic. Each GPU reaches its network card through its own PCIe port, and other GPUs through the
fastest links in the node.

Example: GPU 0 in a node with an NVSwitch and a PCIe switch per GPU.

    nvswitch -- gpu0 -- pcie0 -- nic0 -- (leaf)
                          |
                        host0 -- host1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from simulator.cluster.graph import Graph, add_cable, add_vertex
from simulator.cluster.limits import GraphSize

NodeInterconnect = Literal["nvswitch", "full_mesh", "mesh", "pcie"]


@dataclass(frozen=True, slots=True)
class Node:
    """The parts inside a node: GPUs, links, PCIe switches, sockets and network cards.

    Attributes
    ----------
    inside : {"nvswitch", "full_mesh", "mesh", "pcie"}
        A switch for the GPUs, a link between every two GPUs, the links of `links`, or PCIe alone.
    link_bandwidth, link_latency : float
        Bandwidth [B/s] and latency [s] of a GPU's port at the switch, or of one link of a mesh.
    pcie_bandwidth, pcie_latency : float
        Bandwidth [B/s] and latency [s] of a PCIe slot.
    socket_bandwidth, socket_latency : float
        Bandwidth [B/s] and latency [s] between two sockets.
    """

    gpus: int  # number of GPUs
    inside: NodeInterconnect
    link_bandwidth: float
    link_latency: float
    hosts: int  # number of processor sockets, fully connected
    # Number of PCIe switches. As many as GPUs: each GPU has its own. Fewer: GPUs share the link to the host. 0 (inside
    # mesh and pcie only): GPUs are connected to the sockets.
    pcie_switches: int
    pcie_bandwidth: float
    pcie_latency: float
    socket_bandwidth: float
    socket_latency: float
    nics: int  # number of network cards; GPU i uses card i * nics // gpus
    links: Sequence[Sequence[int]] = ()  # of a mesh: two places of GPUs, and the number of links between them


def gpu_names(node: Node, number: int) -> list[str]:
    """Return the names of the GPUs in node `number`; GPU numbers continue from node to node."""
    return [f"gpu{number * node.gpus + i}" for i in range(node.gpus)]


def nic_names(node: Node, number: int) -> list[str]:
    """Return the names of the network cards in node `number`; card numbers continue from node to node."""
    return [f"nic{number * node.nics + i}" for i in range(node.nics)]


def host_names(node: Node, number: int) -> list[str]:
    """Return the names of the processor sockets in node `number`; socket numbers continue from node to node."""
    return [f"host{number * node.hosts + i}" for i in range(node.hosts)]


def switch_name(number: int) -> str:
    """Return the name of the NVSwitch in node `number`."""
    return f"node{number}/nvswitch"


def add_node(graph: Graph, node: Node, number: int, *, nics: bool) -> None:
    """Add a node's switches, sockets, network cards and cables to a graph that already contains its GPUs.

    Parameters
    ----------
    number : int
        Number of the node, from 0.
    nics : bool
        Whether to add network cards; False if there is nothing outside the node.
    """
    gpus, hosts = gpu_names(node, number), host_names(node, number)
    _join_gpus(graph, node, number, gpus)
    for name in hosts:
        add_vertex(graph, name, "host", forwards=True)
    # Sockets are fully connected, whatever their number.
    for a, b in combinations(hosts, 2):
        add_cable(graph, a, b, node.socket_bandwidth, node.socket_latency)
    # Without anything outside, cards would only be unused vertices.
    cards = nic_names(node, number) if nics else []
    for name in cards:
        add_vertex(graph, name, "nic", forwards=True)
    if hangs_on_tree(node.inside):
        _add_tree(graph, node, number, cards)
    else:
        _add_ports(graph, node, number, cards)


def hangs_on_tree(inside: NodeInterconnect) -> bool:
    """Return True if a node's GPUs share a tree of PCIe switches, because some of them reach each other by PCIe alone.

    In a mesh, the link between two GPUs stays their shortest route.
    """
    return inside in ("mesh", "pcie")


def node_size(gpus: int, inside: NodeInterconnect, hosts: int, pcie_switches: int, cards: int, links: int) -> GraphSize:
    """Return the vertex and cable counts for a node, GPUs included; `cards` is 0 for a single node.

    `links` is the number of pairs of GPUs with links in a mesh.
    """
    vertices = gpus + hosts + cards + (inside == "nvswitch")
    cables = hosts * (hosts - 1) // 2
    cables += {"nvswitch": gpus, "full_mesh": gpus * (gpus - 1) // 2, "mesh": links, "pcie": 0}[inside]
    if hangs_on_tree(inside):
        return GraphSize(vertices + pcie_switches, cables + pcie_switches + gpus + cards)
    # `_add_ports`: a port per GPU with cables to the GPU, to its socket or trunk, and to its card; and the trunks.
    trunks = pcie_switches if pcie_switches < gpus else 0
    return GraphSize(vertices + trunks + gpus, cables + trunks + gpus * (3 if cards else 2))


def _join_gpus(graph: Graph, node: Node, number: int, gpus: list[str]) -> None:
    if node.inside == "nvswitch":
        switch = add_vertex(graph, switch_name(number), "switch", forwards=True)
        for gpu in gpus:
            add_cable(graph, gpu, switch, node.link_bandwidth, node.link_latency)
    every = [(a, b, 1) for a, b in combinations(range(node.gpus), 2)] if node.inside == "full_mesh" else node.links
    # Links of a pair are one cable, because a graph has one edge for two vertices.
    for a, b, count in every:
        add_cable(graph, gpus[a], gpus[b], count * node.link_bandwidth, node.link_latency)


def _add_tree(graph: Graph, node: Node, number: int, cards: list[str]) -> None:
    """Add to a graph a node's PCIe cables from GPUs and cards to PCIe switches, or to sockets without switches."""
    hosts = host_names(node, number)
    slots = [f"node{number}/pcie{i}" for i in range(node.pcie_switches)]
    for i, slot in enumerate(slots):
        add_vertex(graph, slot, "switch", forwards=True)
        add_cable(graph, slot, hosts[i * len(hosts) // len(slots)], node.pcie_bandwidth, node.pcie_latency)
    places = slots or hosts
    # Neighbouring GPUs share a switch: with 4 GPUs and 2 switches, GPUs 0 and 1, and GPUs 2 and 3.
    for group in (gpu_names(node, number), cards):
        for i, name in enumerate(group):
            add_cable(graph, name, places[i * len(places) // len(group)], node.pcie_bandwidth, node.pcie_latency)


def _add_ports(graph: Graph, node: Node, number: int, cards: list[str]) -> None:
    """Add to a graph a separate PCIe port for each GPU in a node, with cables to the GPU's network card and socket.

    A switch shared by several GPUs becomes a port vertex for each GPU and a trunk to the socket. With a single vertex,
    two GPUs at the switch would be as near by PCIe as by NVSwitch, and a GPU as near to its neighbour's network
    card as to its own card. Routes are shortest by hops and could take either way. Traffic to the host still shares the
    trunk.
    """
    hosts = host_names(node, number)
    shared = node.pcie_switches < node.gpus
    # Trunks: the shared links from PCIe switches to sockets.
    for i in range(node.pcie_switches if shared else 0):
        trunk = add_vertex(graph, f"node{number}/pcie{i}", "switch", forwards=True)
        add_cable(graph, trunk, hosts[i * node.hosts // node.pcie_switches], node.pcie_bandwidth, node.pcie_latency)
    for i, gpu in enumerate(gpu_names(node, number)):
        port = add_vertex(graph, f"node{number}/{'port' if shared else 'pcie'}{i}", "switch", forwards=True)
        add_cable(graph, gpu, port, node.pcie_bandwidth, node.pcie_latency)
        if cards:
            add_cable(graph, port, cards[i * node.nics // node.gpus], node.pcie_bandwidth, node.pcie_latency)
        if shared:
            # Port and trunk are the same chip: the cable in between has no latency.
            add_cable(graph, port, f"node{number}/pcie{i * node.pcie_switches // node.gpus}", node.pcie_bandwidth, 0.0)
        else:
            add_cable(graph, port, hosts[i * node.hosts // node.gpus], node.pcie_bandwidth, node.pcie_latency)
