"""A scenario's text becomes records, or one line for each fault."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from simulator.basics import document, yaml_dialect
from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.scenario.load import load_scenario, parse_scenario
from simulator.scenario.records import FusionSpec, JitterSpec, ServersSpec
from tests.scenario_data import changed, told

BASE: dict[str, Any] = {
    "name": "demo",
    "cluster": {"topology": "star_100g", "world_size": 8},
    "collective": {"operation": "all_reduce", "size": "1 MiB"},
}


def with_keys(**keys: Any) -> dict[str, Any]:
    """BASE with more keys."""
    return changed(BASE, keys)


def test_what_is_left_out_has_the_defaults_of_the_design() -> None:
    scenario = load_scenario(BASE)
    assert (scenario.seed, scenario.engine, scenario.plotted.kinds) == (0, "auto", ())
    assert (scenario.compare, scenario.sweep, scenario.training) == ({}, {}, None)
    assert scenario.cluster.gpu is None
    assert scenario.cluster.jitter == JitterSpec()
    spec = scenario.collective
    assert spec is not None
    assert (spec.algorithm, spec.dtype, spec.reduction, spec.accumulate) == ("auto", "float32", "sum", "payload")
    assert (spec.payload, spec.root, spec.servers, spec.group) == ("auto", 0, None, None)


def test_quantities_become_si_numbers() -> None:
    spec = load_scenario(with_keys(collective__size="1.5 KiB")).collective
    assert spec is not None
    assert spec.size == 1.5 * 2**10


def test_the_parameter_server_has_one_server_of_its_own_unless_said_otherwise() -> None:
    spec = load_scenario(with_keys(collective__algorithm="parameter_server")).collective
    assert spec is not None
    assert spec.servers == ServersSpec()


def test_the_size_may_be_the_sum_of_the_tensors() -> None:
    data = with_keys(collective__tensors=["4 KiB", "8 B"], collective__fusion={"cycle": "2 ms"})
    del data["collective"]["size"]
    spec = load_scenario(data).collective
    assert spec is not None
    assert spec.size == 4 * 2**10 + 8
    assert spec.fusion == FusionSpec(buffer="64 MiB", cycle="2 ms")


def test_buckets_are_the_other_kind_of_fusion() -> None:
    data = with_keys(collective__tensors=["1 MiB"], collective__fusion={"buckets": "25 MiB"})
    spec = load_scenario(data).collective
    assert spec is not None
    assert spec.fusion == FusionSpec(buckets="25 MiB")


def test_a_file_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("# Why?\n" + yaml_dialect.dump(BASE), encoding="utf-8")
    scenario = load_scenario(path)
    assert (scenario.question, scenario.source, scenario.base) == ("Why?", str(path), tmp_path)
    assert load_scenario(str(path)) == scenario
    assert load_scenario("ring_vs_parameter_server").name == "ring_vs_parameter_server"


def test_relative_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nbuilder: star\ngpu: l4\n", encoding="utf-8")
    path = tmp_path / "s.yaml"
    path.write_text(yaml_dialect.dump(with_keys(cluster__topology="none.yaml")), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"s\.yaml:\d+:\d+: cluster\.topology: .*none\.yaml"):
        load_scenario(path)


def test_an_unknown_scenario_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ring_vs_parameter_server'"):
        load_scenario("ring_vs_parameter_servr")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario("x" * 5000)


def test_a_scenario_keeps_its_own_copy_of_the_data() -> None:
    data = with_keys(cluster__stragglers={1: 0.5}, sweep={"seed": [1, 2]})
    scenario = load_scenario(data)
    data["cluster"]["stragglers"][1] = 99.0
    data["sweep"]["seed"].append(3)
    assert scenario.cluster.stragglers == {1: 0.5}
    assert scenario.sweep == {"seed": (1, 2)}


def test_tuples_and_paths_from_python_are_lists_and_text() -> None:
    scenario = load_scenario(with_keys(collective__group=(0, 2), cluster__topology=PurePosixPath("star_100g").name))
    assert scenario.collective is not None
    assert scenario.collective.group == (0, 2)


def test_data_without_end_is_refused() -> None:
    data: dict[str, Any] = {}
    data["cluster"] = data
    assert told(data) == ["cluster.cluster.cluster: nested too deeply"]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"name": 3}, "name: got 3; must be text; put it in quotes"),
        ({"seed": -1}, "seed: got -1; must be at least 0"),
        ({"seed": True}, "seed: got true; must be a whole number"),
        ({"engine": "arrays"}, "engine: got 'arrays'; one of auto, compiled, events"),
        ({"cluster__world_size": "8"}, "cluster.world_size: got '8'; must be a whole number; remove the quotes"),
        ({"cluster__world_size": 8.0}, "cluster.world_size: got 8.0; must be a whole number; write 8"),
        ({"cluster__world_size": 0}, "cluster.world_size: got 0; must be at least 1"),
        ({"cluster__world_size": 1}, "cluster.world_size: got 1; a collective needs at least 2 ranks"),
        ({"cluster__stragglers": {2: 0}}, "cluster.stragglers.2: got 0; must be greater than 0"),
        ({"cluster__stragglers": {"x": 1}}, "cluster.stragglers.x: got 'x'; must be a whole number"),
        (
            {"cluster__link_factors": {"a": 1}},
            "cluster.link_factors.a: got 'a'; must be the name of a link, such as 'gpu0->switch0', or a shell pattern, "
                "such as 'gpu0->*'",
        ),
        (
            {"cluster__jitter": 0.1},
            "cluster.jitter: got 0.1; must be a mapping, such as 'jitter: {compute: 0.02, latency: 0.05}'",
        ),
        (
            {"cluster__placement": 3},
            "cluster.placement: got 3; must be a list, such as 'placement: [0, 2, 1, 3]'",
        ),
        (
            {"collective__size": 1024},
            "collective.size: got 1024, which has no unit; write '1024 B' for bytes, or '256 MiB'",
        ),
        ({"collective__size": "1 Mib"}, "collective.size: got '1 Mib'; no unit 'Mib'; did you mean 'MiB'?"),
        ({"collective__size": "2 PiB"}, "collective.size: got '2 PiB'; must be at most 1 PiB"),
        (
            {"collective__size": "1e999999999 B"},
            (
            "collective.size: got '1e999999999 B'; must be a number in the supported range and a unit, such as '256 "
            "MiB'"
            ),
        ),
        (
            {"collective__dtype": "tf32"},
            "collective.dtype: got 'tf32'; tf32 is a compute format and is stored and sent as float32; write 'float32'",
        ),
        ({"collective__payload": "maybe"}, "collective.payload: got 'maybe'; one of auto, false, true"),
        (
            {"cluster__jitter": {"compte": 1}},
            "cluster.jitter.compte: unknown key; one of compute, latency; did you mean 'compute'?",
        ),
    ],
)  # fmt: skip
def test_a_value_out_of_place_is_told_with_what_is_allowed(keys: dict[str, Any], line: str) -> None:
    assert told(with_keys(**keys)) == [line]


@pytest.mark.parametrize("key", ["collective.algorithm", "collective.dtype", "cluster.topology", "cluster.gpu"])
def test_an_unknown_name_is_told_with_similar_names_and_where_all_are_listed(key: str) -> None:
    near = {"algorithm": "rng", "dtype": "bf16", "topology": "star_100", "gpu": "a100_sxm_80g"}
    meant = {"algorithm": "ring", "dtype": "bfloat16", "topology": "star_100g", "gpu": "a100_sxm_80gb"}
    name = key.split(".")[1]
    (line,) = told(with_keys(**{key.replace(".", "__"): near[name]}))
    assert line.startswith(f"{key}: got '{near[name]}'; ")
    assert f"did you mean '{meant[name]}'" in line
    # No command lists the dtypes that fit this key.
    listed = {"algorithm": "algorithms", "topology": "topologies", "gpu": "gpus"}
    assert ("; one of " in line) if name == "dtype" else line.endswith(f"? `simulator list {listed[name]}` lists all")


def test_missing_keys_show_how_they_are_written() -> None:
    assert told({"cluster": {"topology": "star_100g"}, "collective": {"size": "4 B"}}) == [
        "cluster.world_size: missing; write for example 'world_size: 8'",
        "collective.operation: missing; write for example 'operation: all_reduce'",
        "name: missing; write for example 'name: ring_of_eight'",
    ]


@pytest.mark.parametrize(
    ("section", "key", "values", "line"),
    [
        ("training", "sharding", ["ddp", "zero3"], "'compare: {training.sharding: [ddp, zero3]}' beside training"),
        ("training", "seq_len", ["1k", "2k"], "'sweep: {training.seq_len: [1k, 2k]}' beside training"),
        # The key also takes a list with an entry for each layer: none of these values is one.
        ("training", "activation_checkpointing", ["none", "full"],
         "'compare: {training.activation_checkpointing: [none, full]}' beside training"),
        ("collective", "algorithm", ["ring", "tree"], "'compare: {collective.algorithm: [ring, tree]}' beside"),
        ("cluster", "world_size", [4, 8], "'sweep: {cluster.world_size: [4, 8]}' beside cluster"),
    ],
)  # fmt: skip
def test_a_list_at_a_key_with_one_value_is_refused_with_the_axis_to_write(
    section: str, key: str, values: list[object], line: str
) -> None:
    data: dict[str, Any] = {"name": "demo", "cluster": {"topology": "dgx_a100", "world_size": 8}}
    data |= {"collective": {"operation": "all_reduce", "size": "1 MiB"}} if section == "collective" else {}
    data |= {"training": {"model": "gpt2_xl", "seq_len": 1024}} if section != "collective" else {}
    data[section] |= {key: values}
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data)
    found = str(caught.value)
    assert f"{section}.{key}: got a list; must be a single value; to compare several, keep the first here" in found
    assert line in found
    assert len(found.splitlines()) == 1


def test_a_list_of_one_value_is_refused_with_the_value() -> None:
    training = {"model": "gpt2", "seq_len": 1024, "precision": ["bf16"]}
    data = {"name": "demo", "cluster": {"topology": "dgx_a100", "world_size": 8}, "training": training}
    with pytest.raises(ScenarioError, match=r"got a list; must be a single value; write 'precision: bf16'\Z"):
        load_scenario(data)


def test_a_list_beside_an_axis_names_the_line_that_the_axis_lacks() -> None:
    data = {
        "name": "demo",
        "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {"model": "gpt2", "seq_len": 1024, "sharding": ["ddp", "zero3"]},
        "compare": {"training.optimizer": ["adam", "sgd"]},
    }
    with pytest.raises(ScenarioError, match=r"write 'training.sharding: \[ddp, zero3\]' below compare\Z"):
        load_scenario(data)


def test_a_word_in_place_of_a_list_is_refused_with_the_list() -> None:
    with pytest.raises(ScenarioError, match=r"answer.0.of: got 'error'; must be a list; write 'of: \[error\]'\Z"):
        load_scenario(with_keys(answer=[{"finding": "value", "of": "error"}]))


def test_a_file_that_is_no_mapping_is_told() -> None:
    with pytest.raises(ScenarioError, match=r"\Af:1:1: got a list; must be a mapping"):
        parse_scenario(document.parse("[1, 2]", "f"), Path())


def test_a_step_beside_a_collective_is_one_fault() -> None:
    told_once = "training: excludes collective, because a scenario simulates one of the two; remove one"
    assert told(with_keys(training={"model": "gpt2", "seq_len": 512})) == [told_once]


def test_all_faults_of_a_file_are_told_at_once_in_its_order() -> None:
    text = "name: 1\nclustr: 2\ncluster:\n  world_size: x\n  topology: star_100g\ncollective: {size: 3}\n"
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(document.parse(text, "f.yaml"), Path())
    places = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    assert places == ["f.yaml:1:7", "f.yaml:2:1", "f.yaml:4:15", "f.yaml:6:1", "f.yaml:6:20"]
