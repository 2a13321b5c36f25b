"""The inside of one box: GPUs, what joins them, PCIe, sockets and network cards.

Rule: GPUs never forward; each reaches its network card by its own PCIe port, and other GPUs by the fastest thing that
the box has. Like a house: rooms (GPUs) with doors to one hall (NVSwitch), and each with a way to the street.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from simulator.cluster.graph import Graph, add_cable, add_vertex

Inside = Literal["nvswitch", "full_mesh", "pcie"]


@dataclass(frozen=True, slots=True)
class Box:
    """One kind of box.

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
        As many as GPUs: each GPU has one to itself. Fewer: their GPUs share the way up to the host. 0 (inside pcie
        only): GPUs hang on the sockets.
    pcie_bandwidth, pcie_latency : float
        Of a PCIe slot [B/s], [s].
    socket_bandwidth, socket_latency : float
        Between two sockets [B/s], [s].
    nics : int
        Network cards; GPU i uses card i * nics // gpus.
    """

    gpus: int
    inside: Inside
    link_bandwidth: float
    link_latency: float
    hosts: int
    pcie_switches: int
    pcie_bandwidth: float
    pcie_latency: float
    socket_bandwidth: float
    socket_latency: float
    nics: int


def gpu_names(box: Box, number: int) -> list[str]:
    """Name the GPUs of a box; numbers run on from box to box."""
    return [f"gpu{number * box.gpus + i}" for i in range(box.gpus)]


def nic_names(box: Box, number: int) -> list[str]:
    """Name the network cards of a box; numbers run on from box to box."""
    return [f"nic{number * box.nics + i}" for i in range(box.nics)]


def host_names(box: Box, number: int) -> list[str]:
    """Name the sockets of a box; numbers run on from box to box."""
    return [f"host{number * box.hosts + i}" for i in range(box.hosts)]


def switch_name(number: int) -> str:
    """Name the NVSwitch of a box."""
    return f"box{number}/nvswitch"


def add_box(graph: Graph, box: Box, number: int, *, nics: bool) -> None:
    """Add all of a box to a graph that already has its GPUs.

    Parameters
    ----------
    graph : Graph
    box : Box
    number : int
        Which box it is; from 0.
    nics : bool
        Whether network cards are needed: not if nothing is outside.
    """
    gpus, hosts = gpu_names(box, number), host_names(box, number)
    _join_gpus(graph, box, number, gpus)
    for name in hosts:
        add_vertex(graph, name, "host", forwards=True)
    for a, b in combinations(hosts, 2):
        add_cable(graph, a, b, box.socket_bandwidth, box.socket_latency)
    cards = nic_names(box, number) if nics else []
    for name in cards:
        add_vertex(graph, name, "nic", forwards=True)
    if box.inside == "pcie":
        _add_tree(graph, box, number, cards)
    else:
        _add_ports(graph, box, number, cards)


def _join_gpus(graph: Graph, box: Box, number: int, gpus: list[str]) -> None:
    if box.inside == "nvswitch":
        switch = add_vertex(graph, switch_name(number), "switch", forwards=True)
        for gpu in gpus:
            add_cable(graph, gpu, switch, box.link_bandwidth, box.link_latency)
    elif box.inside == "full_mesh":
        for a, b in combinations(gpus, 2):
            add_cable(graph, a, b, box.link_bandwidth, box.link_latency)


def _add_tree(graph: Graph, box: Box, number: int, cards: list[str]) -> None:
    """Hang GPUs and cards on PCIe switches, or on the sockets where there are none."""
    hosts = host_names(box, number)
    slots = [f"box{number}/pcie{i}" for i in range(box.pcie_switches)]
    for i, slot in enumerate(slots):
        add_vertex(graph, slot, "switch", forwards=True)
        add_cable(graph, slot, hosts[i * len(hosts) // len(slots)], box.pcie_bandwidth, box.pcie_latency)
    places = slots or hosts
    for group in (gpu_names(box, number), cards):
        for i, name in enumerate(group):
            add_cable(graph, name, places[i * len(places) // len(group)], box.pcie_bandwidth, box.pcie_latency)


def _add_ports(graph: Graph, box: Box, number: int, cards: list[str]) -> None:
    """Give each GPU a PCIe port of its own, to its card and to its socket.

    A switch that several GPUs share is drawn as one port for each and a trunk to the socket: so a GPU takes its own
    card, as the software does, and GPUs never prefer PCIe over their own links, while traffic to the host still
    shares the trunk.
    """
    hosts = host_names(box, number)
    shared = box.pcie_switches < box.gpus
    for i in range(box.pcie_switches if shared else 0):
        trunk = add_vertex(graph, f"box{number}/pcie{i}", "switch", forwards=True)
        add_cable(graph, trunk, hosts[i * box.hosts // box.pcie_switches], box.pcie_bandwidth, box.pcie_latency)
    for i, gpu in enumerate(gpu_names(box, number)):
        port = add_vertex(graph, f"box{number}/{'port' if shared else 'pcie'}{i}", "switch", forwards=True)
        add_cable(graph, gpu, port, box.pcie_bandwidth, box.pcie_latency)
        if cards:
            add_cable(graph, port, cards[i * box.nics // box.gpus], box.pcie_bandwidth, box.pcie_latency)
        if shared:
            # Port and trunk are one chip, so the step between them costs nothing.
            add_cable(graph, port, f"box{number}/pcie{i * box.pcie_switches // box.gpus}", box.pcie_bandwidth, 0.0)
        else:
            add_cable(graph, port, hosts[i * box.hosts // box.gpus], box.pcie_bandwidth, box.pcie_latency)
