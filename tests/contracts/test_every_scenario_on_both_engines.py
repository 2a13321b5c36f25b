"""Every shipped scenario: the compiled engine gives the events engine's answer to 1e-9, in long runs at every point."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.basics import registry
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.model.shape import Transformer
from simulator.records.program import Program
from simulator.run.collective import plan_collective
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Point, Scenario
from simulator.step.plan import plan_step
from tests.engines import farthest

NAMES = registry.names("scenario")
_MOST_STEPS = 8
_MOST_LAYERS = 8
# Of a cut model: more of them do what others do.
_MOST_MICRO_BATCHES = 4
_MOST_RANKS = 32
_MOST_SIZES = {"tp": 2, "pp": 2, "ep": 8}


def _smaller(scenario: Scenario) -> Scenario:
    """The same question of fewer ranks and micro-batches, where a step is cut over many."""
    spec = scenario.training
    if spec is None or spec.parallelism.size == 1 or scenario.cluster.world_size <= _MOST_RANKS:
        return scenario
    cut = spec.parallelism.replaced(
        **{kind: min(getattr(spec.parallelism, kind), most) for kind, most in _MOST_SIZES.items()}
    )
    few = spec.replaced(
        parallelism=cut,
        gradient_accumulation_steps=min(spec.gradient_accumulation_steps, _MOST_MICRO_BATCHES),
    )
    ranks = cut.tp * cut.pp * cut.cp * max(4, cut.ep)
    return scenario.replaced(cluster=scenario.cluster.replaced(world_size=ranks), training=few)


def played(scenario: Scenario) -> tuple[Program, Cluster, Jitter]:
    """What a point's engine is given; neither payload nor numbers change a time."""
    scenario = _smaller(scenario)
    cluster = build_cluster(scenario)
    jitter = Jitter(scenario.cluster.jitter.compute, scenario.cluster.jitter.latency, scenario.seed)
    if scenario.training is not None:
        # Where nobody waits all steps are in one program; each is like the others, and forty take a minute and a half.
        few = scenario.training.replaced(steps=min(scenario.training.steps, _MOST_STEPS))
        step = to_step(few, scenario.cluster.world_size, scenario.base)
        # Layers are alike too, but every stage needs one, and the first and the last may have one less than others.
        most = max(_MOST_LAYERS, 2 * step.parallelism.pp * step.parallelism.virtual_stages)
        if isinstance(step.model, Transformer):
            fewer = replace(step.model, num_layers=min(step.model.num_layers, most))
        else:
            fewer = replace(step.model, layers=step.model.layers[:most])
        step = replace(step, model=fewer)
        return plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0).program, cluster, jitter
    return plan_collective(scenario, cluster).program, cluster, jitter


def alike(point: Point) -> None:
    """Compare the engines' timelines of a point."""
    program, cluster, jitter = played(point.scenario.replaced(plots=()))
    told = compiled(program, cluster, jitter=jitter, limit_memory=False)
    assert farthest(events(program, cluster, jitter=jitter, limit_memory=False), told) <= 1e-9, point.settings


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_of(2)
def test_it_is_the_same_on_both_engines(name: str) -> None:
    """At the first, the last and two points between them, which differ in the values of each axis."""
    every = points(load_scenario(name))
    for place in sorted({round(third * (len(every) - 1) / 3) for third in range(4)}):
        alike(every[place])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_point_is_the_same_on_both_engines(name: str) -> None:
    for point in points(load_scenario(name)):
        alike(point)
