"""Every shipped scenario: it loads, asks a question, keeps the schema, and can be resolved and multiplied out."""

from __future__ import annotations

import json
from functools import cache

import pytest

from simulator.basics import document, registry
from simulator.cluster.build import build
from simulator.run.simulate import simulate
from simulator.scenario import load
from simulator.scenario.load import points
from simulator.scenario.resolve import resolved, to_yaml
from tests.schemas import scenario_validator

NAMES = registry.names("scenario")
# Scenarios are frozen: each is read once.
load_scenario = cache(load.load_scenario)


def test_the_shipped_scenarios_are_the_ones_that_are_known() -> None:
    assert {
        "all_to_all_direct",
        "low_precision_sum",
        "n_servers",
        "nvlink_box_algorithms",
        "ring_vs_parameter_server",
        "slow_link",
        "straggler",
        "tensor_fusion",
        "two_boxes_hierarchical",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_its_file_name_and_a_question(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.question.endswith("?")


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_schema_as_written_and_as_resolved(name: str) -> None:
    validator = scenario_validator()
    validator.validate(json.loads(json.dumps(document.load(registry.find("scenario", name)).data)))
    validator.validate(json.loads(json.dumps(resolved(load_scenario(name)))))


@pytest.mark.parametrize("name", NAMES)
def test_it_says_nothing_in_vain(name: str) -> None:
    assert load_scenario(name).warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_back_from_what_it_resolves_to(name: str) -> None:
    scenario = load_scenario(name)
    assert load.load_scenario(resolved(scenario)) == scenario
    assert document.parse(to_yaml(scenario)).question == scenario.question


@pytest.mark.parametrize("name", NAMES)
def test_every_point_is_a_scenario_of_its_own(name: str) -> None:
    for point in points(load_scenario(name)):
        assert load.load_scenario(resolved(point.scenario)) == point.scenario


@pytest.mark.parametrize("name", NAMES)
def test_the_cluster_of_every_point_can_be_built(name: str) -> None:
    specs = {resolved(p.scenario)["cluster"].__repr__(): p.scenario for p in points(load_scenario(name))}
    for scenario in specs.values():
        spec = scenario.cluster
        cluster = build(
            spec.topology,
            spec.world_size,
            gpu=spec.gpu,
            stragglers=spec.stragglers,
            link_factors=spec.link_factors,
            placement=spec.placement,
            base=scenario.base,
        )
        assert cluster.world_size == spec.world_size


@pytest.mark.parametrize(
    "name", ["ring_vs_parameter_server", "fsdp_vs_ddp", "training_for_real", "servers_that_do_not_wait"]
)
def test_whose_operations_are_kept_changes_no_report(name: str) -> None:
    """One of each sort: a collective, a step, a step with numbers, steps that wait for nobody."""
    point = points(load_scenario(name))[0].scenario
    if point.training is not None:
        # The sixty steps of a training with numbers are alike, and each is computed anew.
        point = point.replaced(training=point.training.replaced(steps=min(point.training.steps, 10)))
    whole, part = (simulate(point, limit_memory=False, keep=keep) for keep in (None, (1,)))
    assert part.report == whole.report
    last = min(whole.timeline.spans, key=lambda span: (-span.end, span.rank)).rank
    assert part.timeline.spans == tuple(span for span in whole.timeline.spans if span.rank in (1, last))
