"""Which shipped machine has cards of a kind? A table from topologies to GPUs, and clusters of such machines."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster

# Cards with a chassis of their own, by shipped machine. The machine's links keep their bandwidth.
_CARDS: Final = MappingProxyType(
    {
        "dgx1_v100": ("v100_sxm_16gb", "v100_sxm_32gb"),
        "dgx_a100": ("a100_sxm_40gb", "a100_sxm_80gb"),
        "dgx_b200": ("b200",),
        "dgx_b300": ("b300",),
        "dgx_h100": ("h100_sxm", "h20"),
        "dgx_h200": ("h200",),
        "gb200_nvl72": ("gb200",),
        "gb300_nvl72": ("gb300",),
        "geforce_server": ("rtx_2080_ti", "rtx_3090", "rtx_4090", "rtx_5060_ti", "rtx_5090"),
        "hgx_a800": ("a800_sxm_80gb",),
        "hgx_h800": ("h800_sxm",),
        "gh200": ("gh200_96gb", "gh200_144gb"),
        "mi250x_box": ("mi250x",),
        "mi300x_box": ("mi300x",),
        "mi325x_box": ("mi325x",),
        "mi355x_box": ("mi350x", "mi355x"),
        "pcie_switch_server": ("rtx_pro_6000",),
        **{name: (name,) for name in ("tpu_ironwood", "tpu_v5p", "tpu_v6e")},
    }
)
# Any other card is taken as a card with PCIe alone.
_OTHER: Final = "pcie_server"


def machine_of(gpu: str) -> str:
    """Return the name of the shipped topology whose slots a card fits.

    >>> machine_of("rtx_4090"), machine_of("h100_sxm"), machine_of("l40s")
    ('geforce_server', 'dgx_h100', 'pcie_server')
    """
    return next((machine for machine, cards in _CARDS.items() if gpu in cards), _OTHER)


def cluster_of(gpu: str, ranks: int) -> Cluster:
    """Return a cluster for questions about memory: a shipped machine with slots for the card, because buffers live as
    long as collectives take; a star of any number of ranks if the machine cannot have as many.
    """
    try:
        return build(machine_of(gpu), ranks, gpu=gpu)
    except (ScenarioError, ValueError):
        return build("star_100g", ranks, gpu=gpu)
