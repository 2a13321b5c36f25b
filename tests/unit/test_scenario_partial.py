"""Every fault of a file in one round: names, rules and shapes together, and nothing that is only a consequence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.scenario.load import load_scenario

MANY = """\
# How many faults?
name: many
name: again
seed: -1
cluster:
  topology: star_100gg
  world_size: 8.0
  gpu: a100_sxm_80gbb
  placement: [0, 1, 1]
  stragglers: {3: 0}
training:
  model: gpt22
  seq_len: 64
  sharding: {stratgy: zero3, shard_size: 3}
  precision: {params: float32, master: float32}
  numerics: true
  learning: {tokens: not_here.txt}
compare: {training.optimizer: [adam, adm]}
plots: [timeline, stepz]
"""


def lines(text: str, path: Path) -> list[str]:
    """Line, column and key of each fault, in order."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert caught.value.exit_code == 2
    found = [re.match(r".*\.yaml:(\d+:\d+): ([a-z_0-9.]+): ", line) for line in str(caught.value).splitlines()]
    return [" ".join(match.groups()) for match in found if match]


def test_every_fault_of_a_file_is_told_in_one_round(tmp_path: Path) -> None:
    assert lines(MANY, tmp_path / "many.yaml") == [
        "3:1 name",
        "4:7 seed",
        "6:13 cluster.topology",
        "7:15 cluster.world_size",
        "8:8 cluster.gpu",
        "9:21 cluster.placement.2",
        "10:19 cluster.stragglers.3",
        "12:10 training.model",
        "14:14 training.sharding.stratgy",
        "15:40 training.precision.master",
        "17:22 training.learning.tokens",
        "18:38 compare.training.optimizer.1",
        "19:19 plots.1",
    ]


def test_mending_them_one_by_one_brings_no_new_ones(tmp_path: Path) -> None:
    """What is told in the first round is all that could be known by then."""
    mended = {
        "name: again\n": "", "seed: -1\n": "seed: 1\n", "star_100gg": "star_100g", "8.0": "3", "80gbb": "80gb",
        "[0, 1, 1]": "[0, 1, 2]", "{3: 0}": "{2: 0.5}", "gpt22": "gpt2", "stratgy": "strategy",
        ", master: float32": "", "  learning: {tokens: not_here.txt}\n": "  micro_batch_size: 1\n", "adm]": "sgd]",
        "stepz": "loss", "model: gpt2": "model: {model_type: gpt2, n_layer: 1, n_embd: 8, n_head: 2, n_positions: 64, "
        "vocab_size: 16}",
    }  # fmt: skip
    text, path = MANY, tmp_path / "many.yaml"
    at_first = {line.split(" ")[1] for line in lines(text, path)}
    for wrong, right in list(mended.items())[:-2]:
        text = text.replace(wrong, right)
        # The GPT-2 of the catalog is too large for numpy, which nobody could know before it was named.
        assert {line.split(" ")[1] for line in lines(text, path)} <= at_first
    for wrong, right in list(mended.items())[-2:]:
        text = text.replace(wrong, right)
    path.write_text(text, encoding="utf-8")
    assert load_scenario(path).name == "many"


CLUSTER: dict[str, Any] = {"topology": "star_100g", "world_size": 4}


def told(**keys: Any) -> list[str]:
    data = {"name": "x", "cluster": CLUSTER, "collective": {"operation": "all_reduce", "size": "1 MiB"}} | keys
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data)
    return [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("keys", "faults"),
    [
        # What a wrong value was meant to be is not known, so no rule that looks at it says anything.
        ({"cluster": CLUSTER | {"world_size": "8", "placement": [0, 1]}}, ["cluster.world_size: got '8'"]),
        ({"cluster": CLUSTER | {"world_sise": 2, "placement": [0, 1, 2, 4, 5]}},
         ["cluster.placement: got 5 GPUs", "cluster.world_sise: unknown key"]),
        ({"cluster": {"topology": "dgx_h100", "world_sise": 16}},
         ["cluster.world_sise: unknown key", "cluster.world_size: missing"]),
        ({"cluster": CLUSTER | {"topology": 3, "world_size": 100_000}}, ["cluster.topology: got 3"]),
        # Of an axis each name is told, and nothing that hangs on the value that is not there.
        ({"compare": {"cluster.topology": ["star_100g", "stra", 5]}},
         ["compare.cluster.topology.1: got 'stra'", "compare.cluster.topology.2: got 5"]),
        ({"compare": {"collective.algorithm": ["rng", "nvls"]}}, ["compare.collective.algorithm.0: got 'rng'"]),
        ({"compare": {"cluster.gpu": [7]}, "seed": "x"}, ["compare.cluster.gpu.0: got 7", "seed: got 'x'"]),
        ({"sweep": 7, "cluster": CLUSTER | {"gpu": "h1000"}}, ["cluster.gpu: got 'h1000'", "sweep: got 7"]),
        # A mapping that is none leaves the others; its own keys are not missed.
        ({"cluster": [], "collective": {"operation": "gather", "size": "4 B", "chunks": 3}},
         ["cluster: got a list", "collective.chunks: "]),
        ({"collective": None, "cluster": CLUSTER | {"gpu": "h1000"}}, ["cluster.gpu: got 'h1000'", "collective: "]),
        ({"training": {"model": "gpt22", "seq_len": 64}},
         ["training: excludes collective", "training.model: got 'gpt22'"]),
        ({"cluster": CLUSTER | {"ecmp": {}, "gpu": "h1000"}},
         ["cluster.ecmp.hash: missing", "cluster.gpu: got 'h1000'"]),
    ],
)  # fmt: skip
def test_what_follows_from_another_fault_is_not_told(keys: dict[str, Any], faults: list[str]) -> None:
    found = sorted(told(**keys))
    assert len(found) == len(faults), found
    assert all(line.startswith(begin) for line, begin in zip(found, sorted(faults), strict=True)), found


def test_a_fault_in_what_a_topology_names_has_its_file_and_line(tmp_path: Path) -> None:
    """The GPU of a topology: a name that nothing carries, a file that is wrong, one written out that is wrong."""
    star = "builder: star\noptions: {bandwidth: 1 GB/s, latency: 1 us}\n"
    (tmp_path / "gpu.yaml").write_text("sms: x\n", encoding="utf-8")
    cases = {
        "gpu: h100_sxmm\n": ["3:6: gpu: got 'h100_sxmm'; did you mean 'h100_sxm'?"],
        "gpu: gpu.yaml\n": [f"3:6: gpu: {tmp_path}/gpu.yaml:1:"] * 4,
        "gpu:\n  sms: x\n": ["3:1: gpu.hbm_bytes", "3:1: gpu.hbm_bandwidth", "3:1: gpu.host", "4:8: gpu.sms.value: "],
    }
    for text, begins in cases.items():
        (tmp_path / "own.yaml").write_text(star + text, encoding="utf-8")
        (tmp_path / "x.yaml").write_text(
            "name: x\nseed: -1\ncluster: {topology: own.yaml, world_size: 2}\n"
            "collective: {operation: all_reduce, size: 1 MiB}\n",
            encoding="utf-8",
        )
        with pytest.raises(ScenarioError) as caught:
            load_scenario(tmp_path / "x.yaml")
        first, *others = str(caught.value).splitlines()
        assert first == f"{tmp_path}/x.yaml:2:7: seed: got -1; must be at least 0"
        place = f"{tmp_path}/x.yaml:3:21: cluster.topology: {tmp_path}/own.yaml:"
        assert len(others) == len(begins), others
        assert all(any(line.startswith(place + begin) for line in others) for begin in begins), others


def test_rules_of_a_model_are_told_beside_sizes_that_do_not_multiply_out() -> None:
    """Four ranks are no multiple of 3 x 2; whatever their number, 12 heads and 1024 tokens are not cut so."""
    parallelism = {"tp": 5, "cp": 3, "ep": 2}
    with pytest.raises(ScenarioError) as caught:
        load_scenario(
            {"name": "x", "cluster": {"topology": "dgx_h100", "world_size": 4},
             "training": {"model": "gpt2", "seq_len": 1024, "parallelism": parallelism}}
        )  # fmt: skip
    beginnings = {
        "training.parallelism.tp: got 5; dp x tp x pp x cp must be world_size 4",
        "training.parallelism.tp: got 5; must divide the 12 heads of gpt2",
        "training.parallelism.cp: got 3; sequences of 1024 tokens cannot be cut",
        "training.parallelism.ep: got 2; gpt2 has no experts",
    }
    lines = [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]
    assert len(lines) == len(beginnings)
    assert all(any(line.startswith(beginning) for line in lines) for beginning in beginnings)


def test_kernels_that_a_gpu_does_not_have_are_told_with_other_faults() -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(
            {"name": "x", "cluster": {"topology": "dgx_a100", "world_size": 8}, "seed": -1,
             "training": {"model": "gpt2", "seq_len": 64, "attention_generation": 3}}
        )  # fmt: skip
    assert str(caught.value).splitlines() == [
        "<dict>: seed: got -1; must be at least 0",
        "<dict>: training.attention_generation: got 3; a100_sxm_80gb runs flash attention generations 1, 2, "
        "because generation 3 has kernels for Hopper GPUs only",
    ]


def test_options_of_a_topology_that_do_not_go_together_are_told_with_the_scenarios_faults(tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_text(
        "builder: nodes\noptions: {gpus: 8, inside: nvswitch, nics: 16, pcie_switches: 9, pcie_bandwidth: 20 GB/s, "
        "pcie_latency: 1 us}\ngpu: h100_sxmm\n",
        encoding="utf-8",
    )
    (tmp_path / "x.yaml").write_text(
        "name: x\ncluster: {topology: machine.yaml, world_size: 8}\ncollective: {operation: all_reduce, size: 3 B}\n",
        encoding="utf-8",
    )
    with pytest.raises(ScenarioError) as caught:
        load_scenario(tmp_path / "x.yaml")
    told = [line.partition("machine.yaml:")[2] for line in str(caught.value).splitlines()]
    assert [fault[: fault.find(";")] for fault in told if fault] == [
        "2:10: options: got nics 16",
        "2:10: options: got pcie_switches 9",
        "2:10: options: inside nvswitch needs link_bandwidt",
        "3:6: gpu: got 'h100_sxmm'",
    ]
    assert len(told) == 5
    assert ": collective.size: got 3 B; must be a multiple of 4 B" in str(caught.value)


def test_a_root_that_an_operation_has_not_is_told_beside_a_wrong_group() -> None:
    collective = {"operation": "all_reduce", "size": "1 MiB", "root": 1, "group": [0, 0]}
    assert told(collective=collective) == [
        "collective.group.1: got rank 0 twice; name each rank once",
        "collective.root: only for broadcast, reduce, scatter, gather; all_reduce has no root; remove the key",
    ]
