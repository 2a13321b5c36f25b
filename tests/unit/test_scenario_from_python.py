"""Scenarios from typed keyword arguments: the keys and words of the schema, and the faults of a file."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, Required, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from simulator import Scenario, collective_scenario, load_scenario, simulate, training_scenario
from simulator.basics.errors import ScenarioError
from simulator.scenario import typed_keys
from simulator.scenario.records import PlotsSpec
from simulator.scenario.schema import schema

# By mapping of the schema the class that has its keys; the last two stand beside keys of the scenario and its cluster.
CLASSES = {
    name: getattr(typed_keys, f"{name.removesuffix('Spec')}Keys")
    for name in schema()["$defs"]
    if hasattr(typed_keys, f"{name.removesuffix('Spec')}Keys")
}
SHARED = {*get_type_hints(typed_keys.ScenarioKeys), *get_type_hints(typed_keys.ClusterKeys)}


def own(keys: Any) -> set[str]:
    """Keys of a class that are not those of the scenario or its cluster."""
    beside = SHARED if keys in (typed_keys.CollectiveKeys, typed_keys.TrainingKeys) else set()
    return set(get_type_hints(keys)) - beside


def test_every_mapping_of_the_schema_has_its_class() -> None:
    made = {name for name in vars(typed_keys) if is_typeddict(getattr(typed_keys, name))}
    assert {keys.__name__ for keys in CLASSES.values()} | {"ScenarioKeys", "PlotsKeys"} == made
    mappings = {name for name, made in schema()["$defs"].items() if "properties" in made}
    assert mappings == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_keys_of_the_schema_and_those_that_must_be_given(name: str) -> None:
    keys, mapping = CLASSES[name], schema()["$defs"][name]
    assert own(keys) == set(mapping["properties"])
    hints = get_type_hints(keys, include_extras=True)
    needed = {key for key in own(keys) if keys.__total__ or get_origin(hints[key]) is Required}
    assert needed == set(mapping.get("required", ()))


def test_the_scenario_has_the_keys_of_the_schema() -> None:
    keys = set(get_type_hints(typed_keys.ScenarioKeys))
    assert keys | {"cluster", "collective", "training"} == set(schema()["properties"])
    assert set(get_type_hints(typed_keys.PlotsKeys)) == set(PlotsSpec.model_fields)


def words(hint: Any) -> set[Any]:
    """All literals of a type; of a sequence those of its items."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {None} if hint is NoneType else set().union(*map(words, get_args(hint)))


def allowed(form: dict[str, Any]) -> set[Any]:
    """All words of an enumeration of a schema; of an array those of its items."""
    found = {*form.get("enum", ()), *([form["const"]] if "const" in form else ())}
    return found.union(*map(allowed, form.get("anyOf", ())), allowed(form["items"]) if "items" in form else ())


@pytest.mark.parametrize("name", CLASSES)
def test_literals_are_the_words_of_the_schema(name: str) -> None:
    properties = schema()["$defs"][name]["properties"]
    hints = get_type_hints(CLASSES[name])
    for key in own(CLASSES[name]):
        if words(hints[key]):
            assert words(hints[key]) == allowed(properties[key]), key


def test_a_scenario_is_that_of_the_same_file() -> None:
    made = collective_scenario(
        topology="star_100g", world_size=4, operation="all_reduce", size="4 KiB", algorithm="ring", seed=3, name="x"
    )
    collective = {"operation": "all_reduce", "size": "4 KiB", "algorithm": "ring"}
    file = {"name": "x", "seed": 3, "cluster": {"topology": "star_100g", "world_size": 4}, "collective": collective}
    assert made == load_scenario(file)
    assert isinstance(made, Scenario)
    assert simulate(made).report.time_s > 0


def test_faults_are_those_of_a_file() -> None:
    keys: Any = {"topology": "dgx_h100", "world_size": "8", "model": "gpt3", "seq_len": 64, "micro_batch": 2}
    with pytest.raises(ScenarioError) as caught:
        training_scenario(**keys)
    one, two, three = str(caught.value).splitlines()
    assert one.startswith("<dict>: cluster.world_size: got '8'")
    assert two.startswith("<dict>: training.micro_batch: unknown key; ")
    assert three.startswith("<dict>: training.model: got 'gpt3'; did you mean 'gpt3_175b'?")


def test_what_must_be_given_is_told() -> None:
    nothing: Any = {}
    with pytest.raises(ScenarioError) as caught:
        collective_scenario(**nothing)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "cluster.topology",
        "cluster.world_size",
        "collective.operation",
        "collective.size",
    ]


def test_a_scenario_of_many_points_is_refused_before_its_size_is_estimated() -> None:
    """Three ranks alone, a point that no run has, cannot be cut into four stages."""
    training = {"model": "gpt2", "seq_len": 64, "parallelism": {"pp": 4}, "gradient_accumulation_steps": 4}
    scenario = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 3}, "training": training}
    with pytest.raises(ScenarioError, match="has sweep, and therefore several points"):
        simulate(scenario | {"sweep": {"cluster.world_size": [4, 8]}})
