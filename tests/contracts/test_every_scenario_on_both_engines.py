"""Every point of every shipped scenario: the compiled engine gives the events engine's answer to 1e-9."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.basics import registry
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.playing.collective import plan_collective
from simulator.playing.scenario_cluster import build_cluster
from simulator.records.program import Program
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.step.plan import plan_step
from tests.engines import farthest

NAMES = registry.names("scenario")
_MOST_STEPS = 8
_MOST_LAYERS = 16


def played(scenario: Scenario) -> tuple[Program, Cluster, Jitter]:
    """What a point's engine is given; neither payload nor numbers change a time."""
    cluster = build_cluster(scenario)
    jitter = Jitter(scenario.cluster.jitter.compute, scenario.cluster.jitter.latency, scenario.seed)
    if scenario.training is not None:
        # Where nobody waits all steps are in one program; each is like the others, and forty take a minute and a half.
        few = replace(scenario.training, steps=min(scenario.training.steps, _MOST_STEPS))
        step = to_step(few, scenario.cluster.world_size, scenario.base)
        # Layers are alike too.
        fewer = replace(step.model, num_layers=min(step.model.num_layers, _MOST_LAYERS))
        step = replace(step, model=fewer)
        return plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0).program, cluster, jitter
    return plan_collective(scenario, cluster).program, cluster, jitter


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_on_both_engines(name: str) -> None:
    for point in points(load_scenario(name)):
        program, cluster, jitter = played(replace(point.scenario, plots=()))
        told = compiled(program, cluster, jitter=jitter, limit_memory=False)
        assert farthest(events(program, cluster, jitter=jitter, limit_memory=False), told) <= 1e-9, point.settings
