"""A training step on the way of a scenario: plan it, play it, summarise it; and where it does not fit, try what would.

Rule: the training half of run.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simulator.basics.errors import OutOfMemoryError, ScenarioError
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.engine.play import Engine, play, whose
from simulator.engine.progress import stage
from simulator.engine.recording import of_ranks
from simulator.learning.learn import learn
from simulator.report.numbers.summary import with_link_use
from simulator.report.numbers.training_summary import first_of_stages, summarize_step
from simulator.run.advice import advice
from simulator.run.memory import refuse_unfit
from simulator.run.played import Played
from simulator.step.plan import StepPlan, plan_step
from simulator.step.spec import TrainingStep


def play_step(
    cluster: Cluster,
    step: TrainingStep,
    jitter: Jitter,
    *,
    limit_memory: bool,
    engine: Engine = "auto",
    keep: Collection[int] | None = None,
) -> Played:
    """Play one step; where numbers are asked for, train on it.

    Parameters
    ----------
    cluster : Cluster
    step : TrainingStep
    jitter : Jitter
    limit_memory : bool
    engine : {"auto", "events", "compiled"}
    keep : collection of int, optional
        Ranks whose operations are wanted, beside those of the one that ends last; where it is left out all, or in a
        large job those of the first rank of each pipeline stage.

    Raises
    ------
    OutOfMemoryError
        If `limit_memory` and a rank needs more than it has; the message says which changes, each tried, would fit.
    """
    try:
        planned = _planned(cluster, step, jitter, limit_memory=limit_memory)
        # Real training follows the order in which things ended, to the last bit, and on all ranks.
        by = "events" if engine == "auto" and step.lesson is not None else engine
        lists = planned.program.lists
        operations = cluster.world_size * len(lists.lists[lists.list_of[0]])
        # Numbers, and steps that nobody waits for, follow from what all ranks did.
        whole = step.lesson is not None or step.rounds > 1
        timeline = play(
            by,
            planned.program,
            cluster,
            jitter=jitter,
            limit_memory=limit_memory,
            allocator=step.allocator,
            keep=None if whole else _played_ranks(planned, whose(keep, planned.program, operations)),
        )
        timeline = with_link_use(timeline)
    except OutOfMemoryError as error:
        error.args = (f"{error.args[0]}; {advice(cluster, step, jitter)}",)
        raise
    report, parameters = summarize_step(planned, cluster, timeline), None
    if step.lesson is not None:
        learned = learn(planned, cluster, timeline, jitter)
        report, parameters = replace(report, learning=learned.learning), learned.parameters
    kept = timeline if keep is None else of_ranks(timeline, keep)
    return Played(planned, kept, report, parameters=parameters)


def _played_ranks(planned: StepPlan, keep: Collection[int] | None) -> Collection[int] | None:
    """Ranks whose operations are wanted, with those that the report is about."""
    return keep if keep is None else {*keep, *first_of_stages(planned)}


def _planned(cluster: Cluster, step: TrainingStep, jitter: Jitter, *, limit_memory: bool) -> StepPlan:
    stage("planning")
    try:
        if limit_memory:
            refuse_unfit(cluster, step)
        return plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0)
    except ScenarioError:
        raise
    except ValueError as error:  # what this GPU cannot do: a dtype, a generation of attention kernels
        raise ScenarioError(f"training: on {cluster.gpus[0].name}: {error}") from error
