"""What can a description of a machine not say? Options of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Inside = Literal["nvswitch", "full_mesh", "pcie"]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Options of the command; None if not given. Bandwidths count one direction [B/s].

    Attributes
    ----------
    gpu : str or None
        Name of the GPU in the catalog, or path of a GPU file.
    nodes : int or None
        Number of equal nodes.
    node : str or None
        Topology whose node stands for each node of a cluster.
    node_list : str or None
        Hostlist of the nodes to import.
    section : str or None
        Name of a topology in a file with several.
    nvlink_blocks : bool
        Whether each block of a cluster is one NVLink domain.
    inside : str or None
        Interconnect of the GPUs of a node.
    link_bandwidth : float or None
        Bandwidth of one NVLink or xGMI link.
    pcie_bandwidth, socket_bandwidth, nic_bandwidth : float or None
        Bandwidth of a PCIe slot, between two sockets, and from a network card to its switch.
    level_bandwidth : mapping of int to float
        Bandwidth from each switch of a level to the switch above, by level; leaf switches are level 1.
    oversubscription : float
        Bandwidth down divided by bandwidth up, at a leaf switch.
    cards : tuple of str or None
        PCI addresses of network cards, for files that give no class; empty if there are none.
    """

    gpu: str | None = None
    nodes: int | None = None
    node: str | None = None
    node_list: str | None = None
    section: str | None = None
    nvlink_blocks: bool = False
    inside: Inside | None = None
    link_bandwidth: float | None = None
    pcie_bandwidth: float | None = None
    socket_bandwidth: float | None = None
    nic_bandwidth: float | None = None
    level_bandwidth: Mapping[int, float] = field(default_factory=dict)
    oversubscription: float = 1.0
    cards: tuple[str, ...] | None = None
