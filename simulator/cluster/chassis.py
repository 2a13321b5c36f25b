"""Which shipped machine has cards of a kind? A table from GPUs to topologies, and clusters of such machines."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster

# A machine for each card with a chassis of its own.
_MACHINES: Final = MappingProxyType(
    {
        "a100_sxm_40gb": "dgx_a100",
        "a100_sxm_80gb": "dgx_a100",
        "b200": "dgx_b200",
        "b300": "dgx_b300",
        "gb200": "gb200_nvl72",
        "gh200_96gb": "gh200",
        "gh200_144gb": "gh200",
        "h100_sxm": "dgx_h100",
        "h200": "dgx_h200",
        "mi300x": "mi300x_box",
        "mi325x": "mi325x_box",
        "rtx_3090": "geforce_server",
        "rtx_4090": "geforce_server",
        "rtx_5090": "geforce_server",
        "rtx_pro_6000": "pcie_switch_server",
    }
)
# Any other card is taken as a card with PCIe alone.
_OTHER: Final = "pcie_server"


def machine_of(gpu: str) -> str:
    """Return the name of the shipped topology whose slots a card fits.

    >>> machine_of("rtx_4090"), machine_of("h100_sxm"), machine_of("l40s")
    ('geforce_server', 'dgx_h100', 'pcie_server')
    """
    return _MACHINES.get(gpu, _OTHER)


def cluster_of(gpu: str, ranks: int) -> Cluster:
    """Return a cluster for questions about memory: a shipped machine with slots for the card, because buffers live as
    long as collectives take; a star of any number of ranks if the machine cannot have as many.
    """
    try:
        return build(machine_of(gpu), ranks, gpu=gpu)
    except (ScenarioError, ValueError):
        return build("star_100g", ranks, gpu=gpu)
