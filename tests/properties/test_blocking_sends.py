"""Frameworks whose hosts wait for sends and receives follow every pipeline schedule without a deadlock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.basics import registry
from simulator.basics.errors import DeadlockError
from simulator.cluster.build import build
from simulator.engine.compiled.engine import execute
from simulator.records.timeline import Timeline
from simulator.step.framework import Framework, load_framework
from simulator.step.parallelism import Parallelism
from simulator.step.pipelines import schedule
from simulator.step.pipelines.schedule import SCHEDULES, PipelineSchedule, PipelineShape
from simulator.step.plan import plan_step
from tests.training import TINY, step

BLOCKING = tuple(name for name in registry.names("framework") if load_framework(name).host.sends_block)
SHAPES = [*((p, m) for p in (2, 3, 4) for m in (1, 3, 4, 8)), (6, 12)]


def shapes_of(own: PipelineSchedule) -> list[PipelineShape]:
    """Return small pipelines that a schedule does not refuse."""
    shapes = [
        PipelineShape(p, m, chunks, group)
        for p, m in SHAPES
        for chunks in ((own.chunks,) if own.chunks else (1, 2))
        for group in ((p, p + 2) if own.grouped else (p,))
    ]
    return [shape for shape in shapes if not own.refusal(shape)]


def simulated(own: PipelineSchedule, shape: PipelineShape, framework: Framework) -> Timeline:
    """Simulate a step of DDP whose model has a layer for each stage."""
    ranks = shape.ranks * (1 if own.placement is schedule.Placement.BOTH_WAYS else 2)
    made = step(
        "ddp",
        replace(TINY, num_layers=shape.stages),
        gradient_accumulation_steps=shape.micro_batches,
        framework=framework,
        collectives="auto",
        parallelism=Parallelism(
            pp=shape.ranks, schedule=own.name, virtual_stages=shape.chunks, microbatch_group=shape.group
        ),
    )
    cluster = build("star_100g", ranks)
    return execute(plan_step(cluster, made).program, cluster, limit_memory=False)


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.long)], ids=["few", "all"])
@pytest.mark.parametrize("framework", BLOCKING)
@pytest.mark.parametrize("name", SCHEDULES.names())
@pytest.mark.one_of(3)
def test_every_schedule_ends_under_frameworks_whose_hosts_wait_for_sends(name: str, framework: str, every: int) -> None:
    own = SCHEDULES.find(name)
    # Frameworks differ in constants, not in what a host waits for: fewer shapes under all but one. The last shape, of
    # six ranks and twelve micro-batches, is always there.
    shapes = shapes_of(own)[:: -every if framework == BLOCKING[0] else -4 * every]
    assert shapes
    for shape in shapes:
        assert simulated(own, shape, load_framework(framework)).end > 0.0, shape


BATCHED = [own.name for own in map(SCHEDULES.find, SCHEDULES.names()) if any(map(own.batches_sends, shapes_of(own)))]


@pytest.mark.parametrize("name", BATCHED)
def test_schedules_that_batch_sends_would_end_in_a_deadlock_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `batches_sends` declares is needed: some shape of the schedule is stuck if every send blocks."""
    own = SCHEDULES.find(name)
    monkeypatch.setattr("simulator.step.pipeline.SCHEDULES.find", lambda _: replace(own, batches_sends=schedule.never))
    framework = load_framework(BLOCKING[0])

    def is_stuck(shape: PipelineShape) -> bool:
        try:
            simulated(own, shape, framework)
        except DeadlockError:
            return True
        return False

    assert any(is_stuck(shape) for shape in shapes_of(own) if own.batches_sends(shape))
