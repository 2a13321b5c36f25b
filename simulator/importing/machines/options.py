"""What can a description of a machine not say? Options of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Inside = Literal["nvswitch", "full_mesh", "pcie"]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Options of the command; None if not given. Bandwidths count one direction [B/s]."""

    gpu: str | None = None  # name of the GPU in the catalog, or path of a GPU file
    nodes: int | None = None  # number of equal nodes
    node: str | None = None  # topology whose node stands for each node of a cluster
    node_list: str | None = None  # hostlist of the nodes to import
    section: str | None = None  # name of a topology in a file with several
    nvlink_blocks: bool = False  # whether each block of a cluster is one NVLink domain
    inside: Inside | None = None  # interconnect of the GPUs of a node
    link_bandwidth: float | None = None  # bandwidth of one NVLink or xGMI link
    # `pcie_bandwidth`, `socket_bandwidth`, `nic_bandwidth`: Bandwidth of a PCIe slot, between two sockets, and from a
    # network card to its switch.
    pcie_bandwidth: float | None = None
    socket_bandwidth: float | None = None
    nic_bandwidth: float | None = None
    # Bandwidth from each switch of a level to the switch above, by level; leaf switches are level 1.
    level_bandwidth: Mapping[int, float] = field(default_factory=dict)
    oversubscription: float = 1.0  # bandwidth down divided by bandwidth up, at a leaf switch
    # PCI addresses of network cards, for files that give no class; empty if there are none.
    cards: tuple[str, ...] | None = None
