"""compare, sweep and --set."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import ServersSpec, axis_keys


def data(collective: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "cluster": {"topology": "star_100g", "world_size": 8},
        "collective": {"operation": "all_reduce", "size": "1 MiB"} | (collective or {}),
        **keys,
    }


def told(scenario: dict[str, Any], overrides: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario, overrides)
    return [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]


def test_compare_is_outermost_and_the_last_key_runs_fastest() -> None:
    algorithms, worlds, sizes = ["ring", "tree"], [2, 4], ["1 KiB", "1 MiB"]
    scenario = load_scenario(
        data(
            sweep={"cluster.world_size": worlds, "collective.size": sizes},
            compare={"collective.algorithm": algorithms},
        )
    )
    made = points(scenario)
    assert [tuple(p.settings.values()) for p in made] == list(itertools.product(algorithms, worlds, sizes))
    last = made[-1].scenario
    assert last.collective is not None
    assert (last.collective.algorithm, last.collective.size, last.cluster.world_size) == ("tree", 2**20, 4)
    assert (last.compare, last.sweep) == ({}, {})


def test_a_scenario_without_axes_is_one_point() -> None:
    scenario = load_scenario(data())
    (point,) = points(scenario)
    assert (point.settings, point.scenario) == ({}, scenario)


def test_a_value_may_be_a_mapping() -> None:
    scenario = load_scenario(data(sweep={"cluster.stragglers": [{}, {3: 0.5}]}))
    assert [p.scenario.cluster.stragglers for p in points(scenario)] == [{}, {3: 0.5}]


def test_a_key_inside_a_mapping_that_was_left_out_is_made() -> None:
    scenario = load_scenario(data({"algorithm": "parameter_server"}, sweep={"collective.servers.count": [1, 2]}))
    specs = [p.scenario.collective for p in points(scenario)]
    assert [s.servers for s in specs if s] == [ServersSpec(), ServersSpec(count=2)]


def test_an_option_belongs_to_the_algorithms_that_listen_to_it() -> None:
    servers = {"servers": {"count": 4, "on": "workers"}}
    scenario = load_scenario(data(servers, compare={"collective.algorithm": ["ring", "parameter_server"]}))
    specs = [p.scenario.collective for p in points(scenario)]
    assert [s.servers for s in specs if s] == [None, ServersSpec(count=4, on="workers")]
    lines = told(data(servers, compare={"collective.algorithm": ["ring", "tree"]}))
    assert [line.split(":")[0] for line in lines] == ["compare.collective.algorithm"] * 2


def test_an_option_belongs_to_the_optimizers_that_listen_to_it() -> None:
    model = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    training = {"model": model, "seq_len": 8, "numerics": True, "learning": {"momentum": 0.5, "betas": [0.8, 0.9]}}
    scenario = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 2}, "training": training}
    compared = load_scenario({**scenario, "compare": {"training.optimizer": ["adam", "momentum", "sgd"]}})
    specs = [p.scenario.training.learning for p in points(compared) if p.scenario.training]
    assert [spec.momentum for spec in specs] == [None, 0.5, None]
    assert [spec.betas for spec in specs] == [(0.8, 0.9), None, None]
    lines = told({**scenario, "compare": {"training.optimizer": ["adam", "sgd"]}})
    assert [line.split(": ")[-1] for line in lines] == [
        "only for momentum, muon, but the optimizer is adam; remove the key",
        "only for momentum, muon, but the optimizer is sgd; remove the key",
    ]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"sweep": {"seed": []}}, "sweep.seed: got an empty list; give at least one value"),
        ({"sweep": {"seed": [1, 2, 1]}}, "sweep.seed.2: got 1 twice; name each value once"),
        (
            {"sweep": {"collective.size": ["1 KiB", "1024 B"]}},
            "sweep.collective.size.1: got '1024 B' twice; name each value once",
        ),
        ({"sweep": {"seed": [1, "x"]}}, "sweep.seed.1: got 'x'; must be a whole number"),
        ({"sweep": {"seed": 3}}, "sweep.seed: got 3; must be a list; write 'seed: [3]'"),
        (
            {"sweep": {"seed": [1]}, "compare": {"seed": [2]}},
            "sweep.seed: is a key in both compare and sweep; keep one",
        ),
        (
            {"sweep": {"cluster.jitter": [{}], "cluster.jitter.compute": [0.1]}},
            "sweep.cluster.jitter.compute: overlaps with cluster.jitter, which is an axis too; keep one",
        ),
        (
            {"sweep": {"seed": list(range(10_001))}},
            "sweep: the axes give 10001 points; must be at most 10000; shorten a list",
        ),
        ({"sweep": {"cluster.topology": ["star_100g", "moon"]}}, None),
    ],
)  # fmt: skip
def test_an_axis_that_is_wrong_by_itself_is_told(keys: dict[str, Any], line: str | None) -> None:
    (found,) = told(data(**keys))
    moon = "sweep.cluster.topology.1: got 'moon'; `simulator list topologies` lists all"
    assert found == (line or moon)


def test_an_unknown_axis_is_told_with_the_one_that_was_meant() -> None:
    (line,) = told(data(sweep={"collective.sizes": ["1 MiB"]}))
    assert line.startswith("sweep.collective.sizes: unknown key; ")
    assert line.endswith("did you mean 'collective.size'?")


def test_a_combination_that_breaks_a_rule_is_told_at_the_axis_by_name() -> None:
    scenario = data({"operation": "broadcast", "root": 5}, sweep={"cluster.world_size": [4, 8]})
    assert told(scenario) == [
        "sweep.cluster.world_size: with cluster.world_size 4: "
        "collective.root: got 5; must be a position in the group, 0 .. 3"
    ]


def test_a_fault_that_no_axis_can_change_is_told_once_at_its_own_key() -> None:
    assert told(data({"root": 5}, sweep={"cluster.world_size": [4, 8], "seed": [1, 2]})) == [
        "collective.root: only for broadcast, reduce, scatter, gather; all_reduce has no root; remove the key"
    ]


def test_what_is_set_wins_over_the_file_and_over_an_axis() -> None:
    scenario = load_scenario(
        data(sweep={"cluster.world_size": [2, 4]}), {"cluster.world_size": "16", "collective.size": "4 KiB"}
    )
    assert (scenario.cluster.world_size, scenario.sweep) == (16, {})
    assert scenario.collective is not None
    assert scenario.collective.size == 4 * 2**10


def test_an_axis_can_be_set() -> None:
    scenario = load_scenario(data(compare={"seed": [1, 2]}), {"sweep.cluster.world_size": "[2, 4]", "compare": "{}"})
    assert scenario.sweep == {"cluster.world_size": (2, 4)}
    assert scenario.compare == {}


@pytest.mark.parametrize(
    ("key", "text", "values"),
    [
        ("cluster.world_size", "2, 4", (2, 4)),
        ("cluster.world_size", "[2, 4]", (2, 4)),
        ("collective.size", "1 KiB,1 MiB", ("1 KiB", "1 MiB")),
        ("cluster.stragglers", "{}, {3: 0.5, 2: 0.5}", ({}, {3: 0.5, 2: 0.5})),
        ("collective.rank_order", "[0, 1, 2, 3], [3, 2, 1, 0]", ([0, 1, 2, 3], [3, 2, 1, 0])),
    ],
)
def test_several_values_that_are_set_are_an_axis(key: str, text: str, values: tuple[Any, ...]) -> None:
    small = {"algorithm": "ring"} | ({"rank_order": [0, 1, 2, 3]} if key == "collective.rank_order" else {})
    scenario = load_scenario(data(small) | {"cluster": {"topology": "star_100g", "world_size": 4}}, {key: text})
    assert dict(scenario.sweep) == {key: values}


def test_a_list_in_brackets_is_one_value_of_a_key_that_takes_lists() -> None:
    scenario = load_scenario(
        data({"algorithm": "ring"}) | {"cluster": {"topology": "star_100g", "world_size": 4}},
        {
            "collective.rank_order": "[3, 2, 1, 0]",
            "cluster.stragglers": "{1: 0.5, 2: 0.5}",
            "question": "Ring, or tree?",
        },
    )
    assert scenario.collective is not None
    assert (scenario.collective.rank_order, scenario.sweep) == ((3, 2, 1, 0), {})
    assert dict(scenario.cluster.stragglers) == {1: 0.5, 2: 0.5}
    assert scenario.question == "Ring, or tree?"


def test_a_comma_in_quotes_separates_no_values(tmp_path: Path) -> None:
    (tmp_path / "a,b.yaml").write_bytes(registry.find("topology", "star_100g").read_bytes())
    scenario = load_scenario(data(), {"cluster.topology": f'"{tmp_path}/a,b.yaml"'})
    assert (scenario.cluster.topology, scenario.sweep) == (f"{tmp_path}/a,b.yaml", {})


def test_values_that_are_set_replace_those_of_an_axis_where_it_stands() -> None:
    axes = {"compare": {"collective.algorithm": ["ring", "tree"], "seed": [1]}, "sweep": {"cluster.world_size": [2, 8]}}
    scenario = load_scenario(data(**axes), {"collective.algorithm": "ring, naive", "cluster.world_size": "4, 8, 16"})
    assert list(scenario.compare.items()) == [("collective.algorithm", ("ring", "naive")), ("seed", (1,))]
    assert dict(scenario.sweep) == {"cluster.world_size": (4, 8, 16)}


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("seed", "1,x", "--set seed=1,x: sweep.seed.1: got 'x'; must be a whole number"),
        ("seed", "[]", "--set seed=[]: got an empty list; give at least one value"),
        ("seed", "1, 1", "--set seed=1, 1: sweep.seed.1: got 1 twice; name each value once"),
        ("collective.size", "12", "--set collective.size=12: got 12, which has no unit; "
         "write '12 B' for bytes, or '256 MiB'"),
        ("seed", "", "--set seed=: got nothing; must be a whole number"),
        ("seed", "[1", "--set seed=[1:1:3: not YAML: expected ',' or ']', but got '<stream end>' "
         "(while parsing a flow sequence); check indentation, quotes and brackets"),
        ("sweep.seed", "[1, x]", "--set sweep.seed=[1, x]: sweep.seed.1: got 'x'; must be a whole number"),
        ("training.model", "x", (
            "--set training.model=x: the scenario simulates a collective and has no training; start from another "
            "scenario"
        )),
        ("collective.root", "3", "--set collective.root=3: only for broadcast, reduce, scatter, gather; "
         "all_reduce has no root; remove the key"),
    ],
)  # fmt: skip
def test_a_fault_in_what_is_set_is_told_with_the_option(key: str, text: str, line: str) -> None:
    assert told(data(), {key: text}) == [line]


def test_faults_of_options_and_of_the_file_come_in_one_round() -> None:
    """Whose value cannot be read is as unknown as if it were wrong: no rule looks at the file's own."""
    scenario = data({"algorithm": "rng"}, seed=-1)
    settings = {"sed": "1", "cluster.gpu": "h1000", "seed": "[1", "collective.size": "3"}
    assert [line.split("; ")[0] for line in told(scenario, settings)] == [
        "--set cluster.gpu=h1000: got 'h1000'",
        "--set collective.size=3: got 3, which has no unit",
        "--set seed=[1:1:3: not YAML: expected ',' or ']', but got '<stream end>' (while parsing a flow sequence)",
        "--set sed=1: unknown key",
        "collective.algorithm: got 'rng'",
    ]


def test_an_unknown_key_that_is_set_is_told_with_the_one_that_was_meant() -> None:
    (line,) = told(data(), {"collective.sise": "1 B"})
    assert line == "--set collective.sise=1 B: unknown key; did you mean 'collective.size'?"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        # Similar keys of the same section; `cluster` has two keys that begin with "link".
        ("cluster.topologie", "did you mean 'cluster.topology'?"),
        ("collective.fusion.bucket", "did you mean 'collective.fusion.buckets'?"),
        ("clusters.gpu", "did you mean 'cluster.gpu'?"),
        # The section is right, and none of its few keys is similar; or many keys could be listed.
        ("cluster.ecmp.zzz", "one of cluster.ecmp.hash"),
        ("collective.zzz", "`simulator schema` lists all"),
        ("zzz", "`simulator schema` lists all"),
    ],
)
def test_an_unknown_key_gets_the_closest_keys_of_its_section_or_the_command_that_lists_all(key: str, hint: str) -> None:
    assert told(data(), {key: "1"}) == [f"--set {key}=1: unknown key; {hint}"]


def test_an_unknown_key_of_the_other_kind_of_scenario_names_the_kind() -> None:
    (line,) = told(data(), {"training.micro_batch": "2"})
    assert line.endswith("the scenario simulates a collective and has no training; start from another scenario")


def test_settings_are_plain_data() -> None:
    scenario = load_scenario(data(sweep={"cluster.jitter": [{"compute": 0.1}], "collective.payload": [True, "auto"]}))
    for point in points(scenario):
        assert json.loads(json.dumps(dict(point.settings))) == point.settings


def test_every_key_that_changes_a_point_can_be_an_axis() -> None:
    assert {"seed", "engine", "cluster.world_size", "collective.fusion.buckets"} < set(axis_keys())
    assert {"cluster", "collective", "training"} < set(axis_keys())
    assert not {"name", "question", "plots", "compare", "sweep", "baseline"} & set(axis_keys())
