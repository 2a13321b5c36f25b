"""The whole way of one scenario: build the cluster, then plan, execute and summarise its collective or training step.

The way goes in one direction, and every decision is made by the module that it belongs to. The second half of the way
is `collective.py` or `training.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from simulator.engine.jitter import Jitter
from simulator.payload.carry import Tamper
from simulator.run.checks import check_ranks, warn_of
from simulator.run.collective import play_collective
from simulator.run.defects import refuse_not_finite, told_with
from simulator.run.played import Played
from simulator.run.scenario_cluster import Clusters
from simulator.run.size import refuse_too_large
from simulator.run.training import play_step
from simulator.scenario.build_training import to_step
from simulator.scenario.load import check_single_point
from simulator.scenario.records import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Played):
    """A played scenario: its plan, timeline, report, and what arrays became.

    Attributes
    ----------
    scenario : Scenario
    """

    scenario: Scenario


def simulate(
    scenario: Scenario,
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
    clusters: Clusters | None = None,
) -> Run:
    """Play one scenario, which is a single point.

    Parameters
    ----------
    scenario : Scenario
    tamper : mapping of transfer number to function, optional
        Faults put into the payload, to see that they show.
    limit_memory : bool
        Whether a training step ends where a GPU's memory does; otherwise its report says what is missing.
    keep : collection of int, optional
        Ranks whose operations the timeline is to tell, beside those of the one that ends last; where it is left out
        all, or in a large job those of rank 0.
    clusters : Clusters, optional
        Of points played before: those that describe the same one share it. No number depends on that.

    Raises
    ------
    ScenarioError
        The scenario is no single point, or asks for what cannot be; `keep` names ranks that are not there.
    SimulationError
        The run cannot go on; TooLargeError if this machine cannot hold it, DefectError if a number is not finite.

    Warns
    -----
    ScenarioWarning
        A key of the scenario changes no number, or there is no compiled core.
    """
    check_single_point(scenario)
    warn_of(scenario)
    return simulate_point(scenario, tamper=tamper, limit_memory=limit_memory, keep=keep, clusters=clusters)


def simulate_point(
    scenario: Scenario,
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
    clusters: Clusters | None = None,
) -> Run:
    """Simulate a point of a scenario whose warnings have been given; otherwise as `simulate`."""
    check_ranks(scenario, keep or ())
    refuse_too_large(scenario)
    cluster = (clusters or Clusters()).of(scenario)
    jitter = Jitter(scenario.cluster.jitter.compute, scenario.cluster.jitter.latency, scenario.seed)
    with told_with(scenario):
        if scenario.training is None:
            played = play_collective(cluster, scenario, jitter, tamper=tamper or {}, keep=keep)
        else:
            step = to_step(scenario.training, scenario.cluster.world_size, scenario.base)
            played = play_step(cluster, step, jitter, limit_memory=limit_memory, engine=scenario.engine, keep=keep)
        refuse_not_finite(played)
    return Run(scenario=scenario, **{field.name: getattr(played, field.name) for field in fields(played)})
