"""Axes of whole sections, and axes that only one of the compared settings reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.basics.errors import ScenarioError
from simulator.basics.sections import flat, varied
from simulator.records.setting_text import label, setting_text
from simulator.results.plotted_points import as_file_name
from simulator.scenario.load import load_scenario, points
from simulator.scenario.partial_settings import matching
from simulator.scenario.resolve import resolved
from simulator.sweeps.sweep import sweep
from tests.commands import commands_in
from tests.schemas import scenario_validator

RING, SERVERS = {"algorithm": "ring"}, {"algorithm": "parameter_server", "servers": {"count": 4}}
TINY = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 64}


def collective(compare: Any = None, swept: Any = None, **keys: Any) -> dict[str, Any]:
    section = {"operation": "all_reduce", "size": "64 KiB"} | keys
    data = {"name": "demo", "cluster": {"topology": "star_100g", "world_size": 8}, "collective": section}
    return data | ({"compare": compare} if compare else {}) | ({"sweep": swept} if swept else {})


def training(compare: Any = None, swept: Any = None, **keys: Any) -> dict[str, Any]:
    section = {"model": TINY, "seq_len": 64} | keys
    data = {"name": "demo", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": section}
    return data | ({"compare": compare} if compare else {}) | ({"sweep": swept} if swept else {})


def told(data: dict[str, Any], overrides: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data, overrides)
    return [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]


def chosen(data: dict[str, Any]) -> list[tuple[str, int | None, int]]:
    """Algorithm, servers and size of each point."""
    specs = [point.scenario.collective for point in points(load_scenario(data))]
    return [(one.algorithm, one.servers.count if one.servers else None, one.size) for one in specs if one]


# ------------------------------------------------------------------------------------------------------ whole settings


def test_a_setting_of_a_section_sets_the_keys_that_it_names() -> None:
    data = collective({"collective": [RING, SERVERS, {}]}, {"collective.size": ["1 KiB", "2 KiB"]}, chunks=None)
    del data["collective"]["chunks"]
    scenario_validator().validate(data)
    assert chosen(data) == [
        ("ring", None, 1024), ("ring", None, 2048), ("parameter_server", 4, 1024), ("parameter_server", 4, 2048),
        ("auto", None, 1024), ("auto", None, 2048),
    ]  # fmt: skip


def test_an_inner_key_has_a_dotted_name_and_leaves_the_rest_of_its_mapping() -> None:
    dotted = {"algorithm": "parameter_server", "servers.count": 4}
    data = collective({"collective": [dotted, SERVERS]}, servers={"on": "workers"}, algorithm="parameter_server")
    servers = [point.scenario.collective.servers for point in points(load_scenario(data)) if point.scenario.collective]
    assert [(one.count, one.on) for one in servers if one] == [(4, "workers"), (4, "own")]


def test_cluster_and_training_are_sections_too() -> None:
    whole = {"training": [{"sharding": "ddp"}, {"sharding": {"strategy": "zero3", "shard_size": 4}}]}
    machines = {"cluster": [{"world_size": 4}, {"topology": "dgx_a100", "gpu": "H100"}]}
    found = [point.scenario for point in points(load_scenario(training(whole, machines)))]
    assert [
        (one.training.sharding.strategy, one.training.sharding.shard_size, one.cluster.topology, one.cluster.world_size)
        for one in found
        if one.training
    ] == [
        ("ddp", None, "dgx_h100", 4), ("ddp", None, "dgx_a100", 8),
        ("zero3", 4, "dgx_h100", 4), ("zero3", 4, "dgx_a100", 8),
    ]  # fmt: skip
    assert [one.cluster.gpu for one in found] == [None, "h100_sxm"] * 2


@pytest.mark.parametrize(
    "data",
    [
        collective({"collective": [RING, SERVERS]}, {"cluster": [{"world_size": 4}, {}]}),
        collective({"collective": [RING, SERVERS]}, servers={"on": "own"}, algorithm="parameter_server"),
        training({"training": [{"global_batch": "64seq"}, {}]}),
    ],
)
def test_what_is_written_out_is_the_same_scenario(data: dict[str, Any]) -> None:
    loaded = load_scenario(data)
    again = load_scenario(json.loads(json.dumps(resolved(loaded))))
    assert again == loaded
    assert points(again) == points(loaded)
    assert all(json.loads(json.dumps(dict(point.settings))) == point.settings for point in points(loaded))


@pytest.mark.parametrize(
    ("compare", "swept", "line"),
    [
        ({"collective": [RING, 3]}, None, "compare.collective.1: got 3; must be a mapping"),
        ({"collective": [{"algoritm": "ring"}]}, None,
         "compare.collective.0.algoritm: unknown key; did you mean 'algorithm'? one of accumulate"),
        ({"collective": [{"servers.count": 0}]}, None, "compare.collective.0.servers.count: got 0; must be at least 1"),
        ({"collective": [RING, {"algorithm": "Ring"}]}, None, "compare.collective.1: got a mapping twice"),
        ({"collective": [RING]}, {"collective.algorithm": ["tree"]},
         "sweep.collective.algorithm: overlaps with collective, which sets collective.algorithm; keep one"),
        ({"collective.servers": [{}]}, {"collective": [SERVERS]},
         "sweep.collective: collective.servers overlaps with collective.servers, which is an axis too; keep one"),
        ({"collective": [RING]}, {"collective": [SERVERS]}, "sweep.collective: is a key in both compare and sweep"),
        ({"training": [{"sharding": "ddp"}]}, None, (
            "compare.training: this scenario simulates a collective and has no"
        )),
        ({"collective": [{"algorithm": "ring", "servers": {"count": 4}}, SERVERS]}, None,
         "compare.collective: with collective {algorithm: ring, servers: {count: 4}}: collective.servers: only for"),
        ({"collective": [{"size": "10 B"}, {}]}, None,
         "compare.collective: with collective {size: 10 B}: collective.size"),
    ],
)  # fmt: skip
def test_a_setting_that_is_wrong_is_told_at_its_place(compare: Any, swept: Any, line: str) -> None:
    (found,) = told(collective(compare, swept))
    assert found.startswith(line)


def test_labels_are_short_and_distinct() -> None:
    inline = [
        {"topology": {"builder": "star", "options": {"bandwidth": f"{speed} GB/s", "latency": "2 us"}, "gpu": "l4"},
         "world_size": 8, "stragglers": {3: 0.5}, "placement": list(range(8))}
        for speed in (10, 20)
    ]  # fmt: skip
    settings = [
        ("collective", one) for one in (RING, SERVERS, {"algorithm": "parameter_server", "servers.count": 2}, {})
    ]
    labels = [label(*one) for one in settings] + [label("cluster", one) for one in inline]
    assert labels[:4] == ["ring", "parameter_server, 4 servers", "parameter_server, 2 servers", "unchanged"]
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 72
    names = [as_file_name("cluster", one) for one in inline]
    assert names[0] != names[1]
    assert all(len(name) <= 60 and re.fullmatch(r"[\w.-]+", name) for name in names)


def test_tables_of_a_sweep_have_the_label_and_each_key() -> None:
    table = sweep(collective(), {"collective": [RING, SERVERS], "seed": [0, 1]})
    assert list(table["collective"]) == ["ring", "ring", *["parameter_server, 4 servers"] * 2]
    assert list(table["collective.algorithm"]) == ["ring", "ring", "parameter_server", "parameter_server"]
    assert list(table["collective.servers.count"].dropna()) == [4, 4]
    assert set(table.groupby("collective")["time_s"].mean().index) == {"ring", "parameter_server, 4 servers"}


def test_answers_name_the_settings() -> None:
    data = collective({"collective": [RING, SERVERS]}) | {"baseline": {"collective": SERVERS}}
    played = simulator.play(data)
    assert played.comparison.setting_text == "all_reduce, 64 KiB, float32; 8 a100_sxm_80gb, star_100g"
    (sentence,) = played.answer.sentences
    assert "ring" in sentence
    assert "parameter_server, 4 servers" in sentence
    assert "parameter_server, 4 servers" in played.to_html()


def test_the_gpu_of_machines_that_are_compared_is_no_common_fact() -> None:
    played = simulator.play(collective(None, {"cluster.topology": ["star_100g", "dgx_h100"]}))
    assert played.comparison.setting_text == "all_reduce, auto, 64 KiB, float32; 8 GPUs"


def test_set_lays_a_section_over_the_file() -> None:
    data = collective({"collective": [RING, SERVERS]})
    loaded = load_scenario(data, {"collective": "{size: 1 KiB, dtype: bfloat16}"})
    assert loaded.collective is not None
    assert (loaded.collective.size, loaded.collective.dtype, len(points(loaded))) == (1024, "bfloat16", 2)
    assert len(points(load_scenario(data, {"collective": "{algorithm: tree}"}))) == 1  # the axis is gone
    assert len(points(load_scenario(collective(), {"collective": "{algorithm: tree}, {algorithm: ring}, {}"}))) == 3
    (line,) = told(collective(), {"collective": "{size: 3}"})
    assert line.startswith("--set collective={size: 3}: got 3, which has no unit")


def test_a_run_leaves_pictures_of_each_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    cli = commands_in(tmp_path, monkeypatch, capsys)
    data = collective({"collective": [RING, SERVERS]}) | {"plots": {"kinds": ["timeline"], "points": "all"}}
    Path("whole.yaml").write_text(json.dumps(data), encoding="utf-8")
    assert cli("run", "whole.yaml", "--out", "done").code == 0
    names = {"timeline_ring.png", "timeline_parameter_server-4-servers.png"}
    assert {path.name for path in Path("done/plots").iterdir()} == names
    assert cli("run", "whole.yaml", "--out", "full", "--table", "full").out.count("parameter_server, 4 servers") >= 1
    told = cli("plot", "done", "--kind", "timeline", "--point", "collective={algorithm: ring}")
    assert told.out.strip() == f"picture: {Path('done', 'plots', 'timeline_ring.png')}"


def test_settings_by_key() -> None:
    assert flat({"cluster": {"world_size": 4}, "seed": 1}) == {"cluster.world_size": 4, "seed": 1}
    assert list(varied({"collective": [RING, 3], "seed": 3})) == ["collective.algorithm", "collective", "seed"]


# ---------------------------------------------------------------------------------- what only one of the settings reads


def test_ring_beside_an_axis_of_servers_is_the_same_at_each_number() -> None:
    data = collective({"collective.algorithm": ["ring", "parameter_server"]}, {"collective.servers.count": [1, 4]})
    scenario_validator().validate(data)
    assert [(name, count) for name, count, _ in chosen(data)] == [
        ("ring", None), ("ring", None), ("parameter_server", 1), ("parameter_server", 4),
    ]  # fmt: skip
    table = sweep(data)
    ring, others = table["time_s"][:2], table["time_s"][2:]
    assert len(set(ring)) == 1
    assert len(set(others)) == 2
    assert load_scenario(data).warnings == ()


def test_the_axis_still_names_such_a_point() -> None:
    data = collective({"collective.algorithm": ["ring", "parameter_server"]}, {"collective.servers.count": [1, 4]})
    all_points = points(load_scenario(data))
    assert matching(all_points, {"collective.algorithm": "ring", "collective.servers.count": 4}) == (1,)
    assert matching(all_points, {"collective.servers.count": 4}) == (1, 3)


@pytest.mark.parametrize(
    ("choice", "values", "option", "swept"),
    [
        ("training.sharding.strategy", ["ddp", "zero3"], "training.sharding.shard_size", [2, 4]),
        ("training.sharding", ["ddp", "zero3"], "training.sharding.shard_size", None),
        (
            "training",
            [{"sharding.strategy": "ddp"}, {"sharding.strategy": "zero3"}],
            "training.sharding.shard_size",
            [4],
        ),
        ("training.sharding.strategy", ["zero1", "zero3"], "training.sharding.gradient_sync", ["shard", "last"]),
        ("training.optimizer", ["adam", "momentum"], "training.learning.momentum", [0.5]),
    ],
)
def test_options_of_other_choices_are_left_out_too(choice: str, values: Any, option: str, swept: Any) -> None:
    if swept is None:  # an axis inside of another one, which sets the whole mapping
        (line,) = told(training({choice: values}, {option: [2]}))
        assert line == f"sweep.{option}: overlaps with {choice}, which is an axis too; keep one"
        return
    # Real training on one rank, where there are options of optimizers.
    keys = {"numerics": True, "steps": 1, "precision": "fp32"} if "learning" in option else {}
    shown = points(load_scenario(training({choice: values}, {option: swept}, gradient_accumulation_steps=2, **keys)))
    assert len(shown) == 2 * len(swept)
    name = option.rpartition(".")[2]
    spec = [point.scenario.training for point in shown]
    found = [getattr(one.learning if "learning" in option else one.sharding, name) for one in spec if one]
    assert found[len(swept) :] == swept
    assert len(set(found[: len(swept)])) == 1


def test_an_option_that_none_reads_is_still_refused() -> None:
    (line, *_) = told(collective({"collective.algorithm": ["ring", "tree"]}, {"collective.servers.count": [1]}))
    assert "collective.servers: only for parameter_server" in line
    (line, *_) = told(training({"training.sharding.strategy": ["ddp"]}, {"training.sharding.shard_size": [2]}))
    assert "has no sharding groups" in line


NO: dict[str, str] = {
    "activations": "activations on the GPU",
    "asynchronous": "synchronous",
    "balanced": "unbalanced",
    "compile": "not compiled",
    "dora": "no DoRA",
    "dropout": "no dropout",
    "float32_outputs": "no float32 logits returned",
    "numerics": "no real training",
    "overlap": "exchanges not overlapped",
    "payload": "no payload",
    "regather": "gathered inputs kept",
    "reshard_after_forward": "parameters kept after forward",
    "sensitivity": "",
    "sequence_parallel": "without sequence parallelism",
    "shared": "overflows not shared",
    "use_cache": "no keys and values returned",
}


def test_every_boolean_key_has_words_for_false() -> None:
    """The page of all keys lists the values of each key; `sensitivity` belongs to a plan and is in no legend."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "scenario_keys.md").read_text(encoding="utf-8")
    booleans = {
        line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "`true`, `false`" in line
    }
    assert booleans == set(NO)
    for name, words in NO.items():
        if words:
            assert setting_text({"strategy": "x", name: False}) == f"x ({words})"


def test_a_cable_with_equal_factors_in_both_directions_is_one_phrase() -> None:
    key = "cluster.link_factors"
    both = {"nic3->leaf3": 0.25, "leaf3->nic3": 0.25}
    assert label(key, both) == "nic3 <-> leaf3 at a quarter of its speed"
    assert label(key, both | {"leaf3->nic3": 0.5}) == "nic3->leaf3 at a quarter of its speed, leaf3->nic3 at half speed"
    assert label(key, {"nic3->*": 0.25}) == "nic3->* at a quarter of their speed"


def test_servers_have_the_same_words_in_a_training_and_in_a_collective() -> None:
    training = {"strategy": "parameter_server", "servers": 8, "servers_on": "workers"}
    assert label("training.sharding", training) == "parameter_server (8 servers on workers)"
    assert label("collective.servers", {"count": 8, "on": "workers"}) == "8 servers on workers"
    assert label("training.sharding", training | {"servers": 1, "servers_on": "own"}) == (
        "parameter_server (1 server of its own)"
    )


def test_a_loss_is_told_by_its_kernels() -> None:
    key = "training.parallelism.deferred_head_gradients"
    assert [label(key, count) for count in (0, 1, 2, "all")] == [
        "no head gradients deferred",
        "head gradients of 1 micro-batch deferred",
        "head gradients of 2 micro-batches deferred",
        "head gradients of all micro-batches deferred",
    ]
    assert [label("training.loss", kind) for kind in ("fused", "auto")] == ["fused loss", "loss as the framework"]


def test_an_optimizer_with_options_begins_with_its_name() -> None:
    assert label("training.optimizer", {"name": "muon", "distribution": "owners"}) == (
        "optimizer muon (distribution owners)"
    )
    assert label("training.optimizer", "lion") == "optimizer lion"
