"""How does a scenario's training step become a report? It is planned, simulated and summarised.

If the step does not fit into memory, changes that would make it fit are tried. This is the training half of
simulate.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from simulator.basics.errors import OutOfMemoryError, ScenarioError
from simulator.basics.progress import stage
from simulator.basics.units import format_time
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Algorithm
from simulator.engine.jitter import Jitter
from simulator.engine.play import Engine, play, whose
from simulator.engine.recording import of_ranks
from simulator.report.numbers.summary import with_link_use
from simulator.report.numbers.training_summary import TrainingReport, first_of_stages, summarize_step
from simulator.run.advice import advice, takes_long
from simulator.run.cost_estimate import seconds_to_play
from simulator.run.memory_need import check_fits, paged
from simulator.run.point_result import PointResult
from simulator.scenario.build_training import to_step
from simulator.scenario.records import Scenario
from simulator.step.pipeline import Pipeline
from simulator.step.plan import StepPlan, plan_step
from simulator.step.spec import TrainingStep, different_steps

# Most ranks, and longest simulation [s], to tell the time of a step that does not fit.
_MOST_RANKS: Final = 1024
_SOON: Final = 5.0


def play_training(
    cluster: Cluster,
    scenario: Scenario,
    jitter: Jitter,
    *,
    limit_memory: bool,
    keep: Collection[int] | None = None,
    algorithm: Algorithm | None = None,
) -> PointResult:
    """Simulate a scenario's training step, with `algorithm` in place of the scenario's; otherwise like `play_step`."""
    if scenario.training is None:
        raise TypeError("a scenario of a training has a training")
    step = to_step(scenario.training, scenario.cluster.world_size, scenario.base, algorithm)
    steps = different_steps(step)
    by_key = {
        key: play_step(cluster, each, jitter, limit_memory=limit_memory, engine=scenario.engine, keep=keep)
        for key, each in dict(steps).items()
    }
    results = [by_key[key] for key, _ in steps]
    if len(results) == 1:
        return results[0]
    reports = [result.report for result in results if isinstance(result.report, TrainingReport)]
    times = [report.step_time_s for report in reports]
    middle = times.index(sorted(times)[(len(times) - 1) // 2])
    return replace(results[middle], report=replace(reports[middle], step_times_s=tuple(times)))


def play_step(
    cluster: Cluster,
    step: TrainingStep,
    jitter: Jitter,
    *,
    limit_memory: bool,
    engine: Engine = "auto",
    keep: Collection[int] | None = None,
) -> PointResult:
    """Simulate a training step, with its real training if requested; return plan, timeline, report and parameters.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    step : TrainingStep
        The step.
    jitter : Jitter
        Noise on kernels and latencies.
    limit_memory : bool
        True: exceeding a GPU's memory is an error.
    engine : {"auto", "events", "compiled"}
        The requested engine.
    keep : collection of int, optional
        Ranks whose operations are kept, in addition to the rank that ends last. If omitted: all ranks, or in a large
        job the first rank of each pipeline stage.

    Raises
    ------
    OutOfMemoryError
        If `limit_memory` and a rank needs more than it has; the message lists changes that fit, each of them tried.
    """
    try:
        planned = _planned(cluster, step, jitter, limit_memory=limit_memory)
        # Real training follows the exact order in which operations ended, on every rank.
        by = "events" if engine == "auto" and step.lesson is not None else engine
        lists = planned.program.lists
        operations = cluster.world_size * len(lists.lists[lists.list_of[0]])
        # Real training and asynchronous steps need the operations on every rank.
        every_rank = step.lesson is not None or step.rounds > 1
        timeline = play(
            by,
            planned.program,
            cluster,
            jitter=jitter,
            limit_memory=limit_memory,
            allocator=step.keys.allocator,
            keep=None if every_rank else _played_ranks(planned, whose(keep, planned.program, operations)),
        )
        timeline = with_link_use(timeline)
    except OutOfMemoryError as error:
        message = _with_stage(error, step, cluster.world_size)
        unlimited = _unlimited(cluster, step, jitter, engine)
        error.args = (f"{message}; {unlimited}{advice(cluster, step, jitter)}",)
        raise
    report, parameters = summarize_step(planned, cluster, timeline), None
    if planned.program.work.size:
        even = play(
            by, planned.program.evenly, cluster, jitter=jitter, limit_memory=False, allocator=step.keys.allocator,
            keep=(),
        )  # fmt: skip
        report = replace(report, even_work_time_s=even.end)
    if step.lesson is not None:
        # Imported late, because a simulation without real training needs no numerics.
        from simulator.engine.events import execute_until_stuck
        from simulator.learning.learn import learn

        learned = learn(planned, timeline, jitter.seed, partial(execute_until_stuck, cluster=cluster, jitter=jitter))
        report, parameters = replace(report, learning=learned.learning), learned.parameters
    # The report needed further ranks; the caller did not ask for them.
    asked_for = timeline if keep is None else of_ranks(timeline, keep)
    return PointResult(planned, asked_for, report, parameters=parameters)


def _unlimited(cluster: Cluster, step: TrainingStep, jitter: Jitter, engine: Engine) -> str:
    """Return a text with the step time without a limit on memory; "" if its simulation takes more than seconds."""
    bare = replace(step, lesson=None)
    if cluster.world_size > _MOST_RANKS or takes_long(bare):
        return ""
    planned = _planned(cluster, bare, jitter, limit_memory=False)
    if seconds_to_play(planned.program, jitter) > _SOON:
        return ""
    keep = _played_ranks(planned, (0,))
    timeline = play(
        engine, planned.program, cluster, jitter=jitter, limit_memory=False, allocator=step.keys.allocator, keep=keep
    )
    report = summarize_step(planned, cluster, with_link_use(timeline))
    return f"without the limit the step takes {format_time(report.step_time_s)}; "


def _played_ranks(planned: StepPlan, keep: Collection[int] | None) -> Collection[int] | None:
    """Return the ranks to keep in the timeline, plus the ranks needed by the report; None if `keep` is None."""
    busiest = () if planned.busiest is None else (planned.busiest,)
    return keep if keep is None else {*keep, *first_of_stages(planned), *busiest}


def _planned(cluster: Cluster, step: TrainingStep, jitter: Jitter, *, limit_memory: bool) -> StepPlan:
    """Return the plan of a training step; raise an error first if the step surely does not fit in memory."""
    stage("planning")
    try:
        step = paged(cluster, step)
        if limit_memory:
            check_fits(cluster, step)
        return plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0)
    except ScenarioError:
        raise
    # Limits on this GPU: a dtype, or a generation without the attention kernels.
    except ValueError as error:
        raise ScenarioError(f"training: on {cluster.gpus[0].name}: {error}") from error


def _stage_text(step: TrainingStep, rank: int, world_size: int) -> str:
    """Return the stages and the number of layers of a rank: "last stage, 16 of 62 layers"; "" without a pipeline."""
    cut = step.parallelism
    if cut.pp < 2:
        return ""
    pipeline = Pipeline.of(step)
    place = int(cut.grid(world_size).coordinate("pp")[rank])
    layers, count = pipeline.layers(), pipeline.model_stages
    stages = [stage % count for stage in pipeline.schedule.stages_of(place, pipeline.shape)]
    layer_text = f"{sum(layers[stage] for stage in stages)} of {sum(layers)} layers"
    if len(stages) > 1:
        return f"stages {', '.join(map(str, stages))} of {count}, {layer_text}"
    [stage] = stages
    names = {0: "first stage", count - 1: "last stage"}
    return f"{names.get(stage, f'stage {stage} of {count}')}, {layer_text}"


def _with_stage(error: OutOfMemoryError, step: TrainingStep, world_size: int) -> str:
    """Return the message of an error, with the stage and the layers behind the rank that ran out of memory."""
    message, rank = str(error.args[0]), f"rank {error.rank} "
    stage = _stage_text(step, error.rank, world_size)
    return message.replace(rank, f"{rank}({stage}) ", 1) if stage else message
