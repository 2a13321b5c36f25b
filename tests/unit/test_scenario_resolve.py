"""Out again: resolved data, YAML text, JSON schema, template."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.basics import document
from simulator.basics.errors import ScenarioError
from simulator.basics.units import parse
from simulator.collectives.algorithm import ALGORITHMS, REDUCING, ROOTED
from simulator.scenario import records
from simulator.scenario.load import load_scenario, parse_scenario, points
from simulator.scenario.resolve import resolved, time_text, to_yaml
from simulator.scenario.schema import schema
from simulator.scenario.template import template
from tests.playing import NODED
from tests.schemas import scenario_validator

SIZES = st.integers(0, 2**20).map(lambda n: f"{8 * n} B") | st.sampled_from(["256 MiB", "1.5 KiB", "80 GB", "1 TiB"])
FACTORS = st.floats(1e-3, 10, allow_nan=False)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Valid scenarios with any of the optional keys."""
    world = draw(st.integers(2, 12))
    pairs = [(a, o) for a, o in ALGORITHMS.pairs() if a not in NODED]
    algorithm, operation = draw(st.sampled_from(pairs))
    collective: dict[str, Any] = {"operation": operation, "algorithm": algorithm, "size": draw(SIZES)}
    optional: dict[str, st.SearchStrategy[Any]] = {"payload": st.sampled_from([True, False, "auto"])}
    if operation in REDUCING:
        optional |= {"reduction": st.sampled_from(["sum", "average", "max"]), "accumulate": st.just("float32")}
    if operation in ROOTED:
        optional["root"] = st.integers(0, world - 1)
    if algorithm == "parameter_server":
        optional["servers"] = st.fixed_dictionaries(
            {}, optional={"count": st.integers(1, world), "on": st.just("workers")}
        )
    if algorithm == "ring":
        optional["rank_order"] = st.permutations(range(world))
    if operation == "all_reduce":
        optional["tensors"] = st.lists(SIZES, min_size=1, max_size=4)
    collective |= draw(st.fixed_dictionaries({}, optional=optional))
    if "tensors" in collective:
        del collective["size"]
        seconds = st.just(0.0) | st.floats(1e-9, 1)
        cycles = seconds.map(lambda s: f"{s!r} s") | st.sampled_from(["1 ms", "0.3 us", "7 ns", "1 min"])
        buffer = st.fixed_dictionaries({"cycle": cycles}, optional={"buffer": st.just("3 MB")})
        fusion = draw(st.none() | st.just({"buckets": "25 MiB"}) | buffer)
        collective |= {"fusion": fusion} if fusion else {}
    ranks = st.integers(0, world - 1)
    cluster = draw(
        st.fixed_dictionaries(
            {"topology": st.just("star_100g"), "world_size": st.just(world)},
            optional={
                "gpu": st.just("h100_sxm"),
                "stragglers": st.dictionaries(ranks, FACTORS),
                "link_factors": st.dictionaries(st.sampled_from(["gpu0->switch0", "a b->c"]), FACTORS),
                "jitter": st.fixed_dictionaries({}, optional={"compute": st.floats(0, 1), "latency": st.floats(0, 1)}),
                "placement": st.permutations(range(world)),
                "ecmp": st.fixed_dictionaries({"hash": st.integers(0, 2**53)}),
            },
        )
    )
    axes = {
        "seed": st.just([3, 1]),
        "collective.payload": st.just([False, "auto"]),
        "cluster.stragglers": st.just([{}]),
    }
    question = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="#"), max_size=9)
    return draw(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["x", "1e9", "true", "on", "12"]),
                "cluster": st.just(cluster),
                "collective": st.just(collective),
            },
            optional={
                "question": question,
                "seed": st.integers(0, 2**53),
                "engine": st.just("events"),
                "compare": st.fixed_dictionaries({}, optional={"engine": st.just(["auto", "events"])}),
                "sweep": st.fixed_dictionaries({}, optional=axes),
                "plots": st.lists(st.sampled_from(["steps", "timeline"]), unique=True),
            },
        )
    )  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_what_is_resolved_loads_back_as_the_same_scenario(data: dict[str, Any]) -> None:
    scenario = load_scenario(data)
    assert load_scenario(resolved(scenario)) == scenario
    assert resolved(load_scenario(resolved(scenario))) == resolved(scenario)
    read = document.parse(to_yaml(scenario))
    assert parse_scenario(read, scenario.base) == scenario
    for point in points(scenario):
        assert load_scenario(resolved(point.scenario)) == point.scenario


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_what_loads_keeps_the_schema(data: dict[str, Any]) -> None:
    scenario_validator().validate(json.loads(json.dumps(data)))


def test_every_default_is_written_out() -> None:
    base = {
        "name": "demo",
        "cluster": {"topology": "star_100g", "world_size": 8},
        "collective": {"operation": "broadcast", "size": "1024 KiB"},
    }
    assert resolved(load_scenario(base)) == {
        "name": "demo",
        "seed": 0,
        "cluster": {
            "topology": "star_100g",
            "world_size": 8,
            "stragglers": {},
            "link_factors": {},
            "jitter": {"compute": 0.0, "latency": 0.0},
        },
        "collective": {
            "operation": "broadcast",
            "algorithm": "auto",
            "size": "1 MiB",
            "dtype": "float32",
            "reduction": "sum",
            "accumulate": "payload",
            "payload": "auto",
            "root": 0,
        },
        "engine": "auto",
        "plots": [],
    }


def test_a_placement_in_short_stays_short() -> None:
    cluster = {"topology": "dgx_h100", "world_size": 8, "placement": {"gpus_per_node": 4}}
    data = {"name": "demo", "cluster": cluster, "collective": {"operation": "broadcast", "size": "1 MiB"}}
    scenario_validator().validate(data)
    scenario = load_scenario(data)
    assert resolved(scenario)["cluster"]["placement"] == {"gpus_per_node": 4}
    assert parse_scenario(document.parse(to_yaml(scenario)), scenario.base) == scenario
    axis = data | {"sweep": {"cluster.placement": [{"gpus_per_node": 4}, {"gpus_per_node": 8}]}}
    assert [point.scenario.cluster.placement for point in points(load_scenario(axis))] == [
        {"gpus_per_node": 4},
        {"gpus_per_node": 8},
    ]


def test_a_default_of_one_algorithm_does_not_bind_the_others() -> None:
    base = {
        "name": "demo",
        "cluster": {"topology": "star_100g", "world_size": 8},
        "collective": {"operation": "all_reduce", "size": "1 MiB", "algorithm": "parameter_server"},
        "compare": {"collective.algorithm": ["ring", "tree"]},
    }
    scenario = load_scenario(base)
    assert load_scenario(resolved(scenario)) == scenario


def test_the_tensors_of_an_axis_give_their_own_sizes() -> None:
    base = {
        "name": "demo",
        "cluster": {"topology": "star_100g", "world_size": 8},
        "collective": {"operation": "all_reduce"},
        "sweep": {"collective.tensors": [["1 KiB"], ["1 KiB", "3 KiB"]]},
    }
    scenario = load_scenario(base)
    assert load_scenario(resolved(scenario)) == scenario
    specs = [p.scenario.collective for p in points(scenario)]
    assert [s.size for s in specs if s] == [2**10, 4 * 2**10]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(0, 1e9, allow_nan=False))
def test_times_are_written_exactly(seconds: float) -> None:
    assert parse(time_text(seconds), "time") == seconds


def test_a_scenario_travels_to_a_worker_process() -> None:
    scenario = load_scenario("ring_vs_parameter_server")
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_the_schema_is_a_schema_and_knows_the_names() -> None:
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    named, path = made["$defs"]["CollectiveSpec"]["properties"]["algorithm"]["anyOf"]
    assert set(named["enum"]) == {"auto", *ALGORITHMS.names()}
    assert path == {"type": "string", "pattern": r"(\.py|\.xml)$"}
    assert set(made["properties"]["sweep"]["properties"]) == set(records.axis_keys())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("nmae", "x"),
        ("compare", {"collective.algorithm": ["rng"]}),
        ("sweep", {"collective.size": [1024]}),
        ("collective", {"operation": "all_reduce", "size": "1 Mib"}),
        ("cluster", {"topology": "star_100g", "world_size": 8, "stragglers": {"x": 1}}),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(key: str, value: Any) -> None:
    data = resolved(load_scenario("ring_vs_parameter_server")) | {key: value}
    with pytest.raises(ScenarioError):
        load_scenario(data)
    assert not scenario_validator().is_valid(data)


@pytest.mark.parametrize("name", ["demo", "1e9", "true", "2024"])
@pytest.mark.parametrize("question", ["Is it fast?", "", "# of ranks: {how} many?\n- one", "100 %"])
def test_the_template_loads_as_it_stands(name: str, question: str) -> None:
    read = document.parse(template(name, question))
    scenario = parse_scenario(read, Path())
    assert scenario.name == name
    assert scenario.question
    assert len(points(scenario)) == 2 * 4 * 3


def test_the_template_loads_with_every_commented_key_that_fits() -> None:
    text = template("demo", "?").replace("  # gpu:", "  gpu:").replace("  # stragglers:", "  stragglers:")
    text = text.replace("  # link_factors:", "  link_factors:").replace("  # jitter:", "  jitter:")
    data = document.parse(text).data
    data["sweep"]["cluster.world_size"] = [4]
    assert load_scenario(data).cluster.stragglers == {3: 0.8}


def test_a_template_needs_a_name_that_a_folder_can_have() -> None:
    with pytest.raises(ScenarioError, match="got 'a/b'"):
        template("a/b", "?")
