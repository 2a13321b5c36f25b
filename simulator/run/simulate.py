"""How does a scenario become a run? Build the cluster, then plan, simulate and summarise the collective or step.

Data flows in one direction. `collective.py` and `training.py` hold the second half, imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from simulator.collectives.algorithm import Algorithm
from simulator.collectives.payload.carry import Tamper
from simulator.engine.jitter import Jitter
from simulator.run.checks import check_ranks, warn_of
from simulator.run.collective import play_collective
from simulator.run.defects import refuse_not_finite, told_with
from simulator.run.point_result import PointResult
from simulator.run.scenario_cluster import Clusters
from simulator.run.size_estimate import refuse_too_large
from simulator.run.watchdog import check_waits, watched
from simulator.scenario.load import check_single_point
from simulator.scenario.records import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun(PointResult):
    """A simulated scenario: plan, timeline, report and arrays."""

    scenario: Scenario


def simulate(
    scenario: Scenario,
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
    clusters: Clusters | None = None,
    algorithm: Algorithm | None = None,
) -> SimulatedRun:
    """Simulate a scenario with a single point, and return its plan, timeline, report and arrays.

    Parameters
    ----------
    tamper : mapping of transfer number to function, optional
        Faults injected into the payload, to check that they are detected.
    limit_memory : bool
        True: a training step that exceeds a GPU's memory is an error. False: its report says how much is missing.
    keep : collection of int, optional
        Ranks whose operations the timeline contains, in addition to the rank that ends last. If omitted: all ranks, or
        in a large job rank 0 (collective) or each pipeline stage's first rank (training).
    clusters : Clusters, optional
        Cache of clusters from earlier points; it has no influence on any number.
    algorithm : Algorithm, optional
        Algorithm of every collective for which it has a plan, in place of the scenario's.

    Raises
    ------
    ScenarioError
        The scenario has several points or asks for something impossible, or `keep` names ranks that do not exist.
    SimulationError
        The run cannot continue. TooLargeError if this machine cannot hold it, DefectError if a number is not finite.

    Warns
    -----
    ScenarioWarning
        A key of the scenario has no effect, or there is no compiled core.
    """
    check_single_point(scenario)
    warn_of(scenario)
    return simulate_point(
        scenario, tamper=tamper, limit_memory=limit_memory, keep=keep, clusters=clusters, algorithm=algorithm
    )


def simulate_point(
    scenario: Scenario,
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
    clusters: Clusters | None = None,
    algorithm: Algorithm | None = None,
) -> SimulatedRun:
    """Simulate a point whose warnings have been issued already; otherwise like `simulate`."""
    check_ranks(scenario, keep or ())
    refuse_too_large(scenario)
    cluster = (clusters or Clusters()).of(scenario)
    jitter = Jitter(scenario.cluster.jitter.compute, scenario.cluster.jitter.latency, scenario.seed)
    with told_with(scenario), watched(scenario.cluster.watchdog, scenario.cluster.events):
        if scenario.training is None:
            result = play_collective(cluster, scenario, jitter, tamper=tamper or {}, keep=keep, algorithm=algorithm)
        else:
            from simulator.run.training import play_training

            result = play_training(cluster, scenario, jitter, limit_memory=limit_memory, keep=keep, algorithm=algorithm)
        check_waits(result.plan.program, result.timeline, scenario.cluster.watchdog)
        refuse_not_finite(result)
    return SimulatedRun(scenario=scenario, **{field.name: getattr(result, field.name) for field in fields(result)})
