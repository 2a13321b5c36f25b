"""On which cluster are questions about a card's memory answered? On the shipped machine with such cards."""

from __future__ import annotations

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.chassis import machine_of
from simulator.cluster.cluster import Cluster


def cluster_of(gpu: str, ranks: int) -> Cluster:
    """Return a cluster for questions about memory: a shipped machine with slots for the card, because buffers live as
    long as collectives take; a star of any number of ranks if the machine cannot have as many.
    """
    try:
        return build(machine_of(gpu), ranks, gpu=gpu)
    except (ScenarioError, ValueError):
        return build("star_100g", ranks, gpu=gpu)
