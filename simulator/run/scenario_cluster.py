"""A scenario's cluster, with what its collective or its training needs beside the ranks."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.engine.progress import stage
from simulator.scenario.build_training import sharding
from simulator.scenario.records import Scenario
from simulator.step.strategies.strategy import STRATEGIES

# Vertices of the clusters that points of a sweep share, all together, before the oldest goes: some 200 MB.
_MOST_VERTICES: Final = 100_000


class Clusters:
    """Clusters of the points of one sweep: those that describe the same one share it, and what is worked out on it.

    Files that they name are read once.
    """

    def __init__(self) -> None:
        self._built: OrderedDict[str, Cluster] = OrderedDict()

    def of(self, scenario: Scenario) -> Cluster:
        """The scenario's cluster; see `build_cluster`."""
        key = repr((scenario.cluster, scenario.base, servers_of(scenario)))
        cluster = self._built.pop(key, None) or build_cluster(scenario)
        self._built[key] = cluster
        while len(self._built) > 1 and sum(len(one.router.vertices) for one in self._built.values()) > _MOST_VERTICES:
            self._built.popitem(last=False)
        return cluster


def build_cluster(scenario: Scenario) -> Cluster:
    """The scenario's cluster, with a server's port for each parameter server that stands on its own."""
    spec = scenario.cluster
    stage("building the cluster")
    return build(
        spec.topology,
        spec.world_size,
        gpu=spec.gpu,
        servers=servers_of(scenario),
        stragglers=spec.stragglers,
        link_factors=spec.link_factors,
        placement=spec.placement,
        ecmp_seed=spec.ecmp.hash if spec.ecmp else None,
        base=scenario.base,
    )


def servers_of(scenario: Scenario) -> int:
    """Parameter servers that stand on their own."""
    collective, training = scenario.collective, scenario.training
    if collective is not None and collective.servers is not None and collective.servers.on == "own":
        return collective.servers.count
    if training is None:
        return 0
    spread = sharding(training.sharding)
    return STRATEGIES.find(spread.strategy).servers(spread)
