"""Builds a scenario's cluster, including the parameter servers needed by its collective or training."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from simulator.basics.progress import stage
from simulator.cluster.cluster import Cluster
from simulator.scenario.build_cluster import network_time, servers_of, to_cluster
from simulator.scenario.records import Scenario

# Most vertices in cached clusters, over every point in a sweep: about 200 MB. Beyond, the oldest cluster is dropped.
_MOST_VERTICES: Final = 100_000


class Clusters:
    """Cache for a sweep's clusters: points with equal descriptions share a cluster and every result cached on it.

    Files named in a description are read once.
    """

    def __init__(self) -> None:
        self._built: OrderedDict[str, Cluster] = OrderedDict()

    def of(self, scenario: Scenario) -> Cluster:
        """Return the scenario's cluster, built or from the cache; see `build_cluster`."""
        key = repr(
            (scenario.cluster, scenario.base, servers_of(scenario), network_time(scenario.training, scenario.base))
        )
        # Re-insert at the end: the dictionary is ordered by last use.
        cluster = self._built.pop(key, None) or build_cluster(scenario)
        self._built[key] = cluster
        # At least the cluster just built stays.
        while (
            len(self._built) > 1
            and sum(len(cluster.router.vertices) for cluster in self._built.values()) > _MOST_VERTICES
        ):
            self._built.popitem(last=False)
        return cluster


def build_cluster(scenario: Scenario) -> Cluster:
    """Return the scenario's cluster, with a network port for each separate parameter server."""
    stage("building the cluster")
    return to_cluster(
        scenario.cluster,
        scenario.base,
        servers=servers_of(scenario),
        network_time=network_time(scenario.training, scenario.base),
    )
