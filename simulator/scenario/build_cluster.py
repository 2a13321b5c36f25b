"""Builds the Cluster on which a scenario's collective or training runs from a scenario's `cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simulator.basics.spec import servers_among
from simulator.cluster.build import build, facts
from simulator.cluster.cluster import Cluster
from simulator.scenario.records import PLACEMENT, ClusterSpec, Scenario

if TYPE_CHECKING:
    from simulator.step.training_spec import TrainingSpec


def placed(spec: ClusterSpec, base: Path) -> tuple[int, ...]:
    """Return the GPU number of each rank. A topology without nodes counts as a single node.

    >>> placed(ClusterSpec(topology="dgx_h100", world_size=6, placement={"gpus_per_node": 4}), Path())
    (0, 1, 2, 3, 8, 9)
    """
    if spec.placement is None:
        return tuple(range(spec.world_size))
    if isinstance(spec.placement, tuple):
        return spec.placement
    used = spec.placement[PLACEMENT.key]
    idle = (facts(spec.topology, base).node_size or used) - used
    return tuple(rank + rank // used * idle for rank in range(spec.world_size))


def to_cluster(spec: ClusterSpec, base: Path, *, servers: int = 0, network_time: float = 1.0) -> Cluster:
    """Return the cluster that the keys of `cluster` describe.

    `servers` is the number of network ports for parameter servers, and `network_time` the factor on the time of
    transfers. Relative paths begin in the folder `base`.
    """
    return build(
        spec.topology,
        spec.world_size,
        gpu=spec.gpu,
        servers=servers,
        stragglers=spec.stragglers,
        link_factors=spec.link_factors,
        placement=placed(spec, base),
        ecmp_seed=spec.ecmp.hash if spec.ecmp else None,
        transport=spec.transport,
        network_time=network_time,
        events=spec.events,
        storage=spec.storage,
        base=base,
    )


def network_time(training: TrainingSpec | None, base: Path) -> float:
    """Return the factor on the time of transfers that a training's framework was calibrated to; 1 without training."""
    if training is None:
        return 1.0
    from simulator.step.framework import load_framework

    return load_framework(training.framework, base).network_time


def servers_of(scenario: Scenario) -> int:
    """Return the number of separate parameter servers that a scenario's collective or training needs."""
    collective, training = scenario.collective, scenario.training
    if collective is not None and collective.servers is not None and collective.servers.on == "own":
        return servers_among(collective.servers.count, len(collective.group or range(scenario.cluster.world_size)))
    if training is None:
        return 0
    from simulator.step.strategies.strategy import STRATEGIES

    spread = training.sharding.among(scenario.cluster.world_size)
    return STRATEGIES.find(spread.strategy, scenario.base).servers(spread)
