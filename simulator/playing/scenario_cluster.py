"""A scenario's cluster, with what its collective or its training needs beside the ranks."""

from __future__ import annotations

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.scenario.records import Scenario
from simulator.step.strategies import catalog as strategies


def build_cluster(scenario: Scenario) -> Cluster:
    """The scenario's cluster, with a server's port for each parameter server that stands on its own."""
    spec, collective, training = scenario.cluster, scenario.collective, scenario.training
    servers = 0
    if training is not None:
        servers = strategies.find(training.sharding.strategy).servers(training.sharding)
    if collective is not None and collective.servers is not None and collective.servers.on == "own":
        servers = collective.servers.count
    return build(
        spec.topology,
        spec.world_size,
        gpu=spec.gpu,
        servers=servers,
        stragglers=spec.stragglers,
        link_factors=spec.link_factors,
        placement=spec.placement,
        ecmp_seed=spec.ecmp.hash if spec.ecmp else None,
        base=scenario.base,
    )
