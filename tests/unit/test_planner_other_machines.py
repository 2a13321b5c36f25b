"""What a plan tells of machines that are not there, and of settings that nobody has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.basics.measured_tables import read_table
from simulator.cluster.build import build
from simulator.cluster.upgraded import cards, with_memory, with_network
from simulator.findings.measured_range import outside_of_measured
from simulator.planner.plan_question import PlanQuestion, shared_scenario
from simulator.planner.plan_report import sensitivity_sentence
from simulator.planner.search import SearchResult, search
from simulator.planner.sensitivity import MachineChange, sensitivity
from simulator.planner.setting import PlanSetting, scenario_of
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.scenario.plan_spec import PlanSpec
from simulator.sweeps.sweep import Backend

MODEL = {"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 256, "vocab_size": 512}
OF_A_MODEL: dict[str, Any] = {"model": MODEL, "seq_len": 256, "sharding": "zero1"}


def test_twice_the_network_is_twice_what_bytes_to_other_nodes_pass() -> None:
    before, after = build("dgx_a100", 16), build(with_network("dgx_a100", None, 2.0, one_node=False), 16)
    for src, dst, facts in before.graph.edges(data=True):
        inside = "nvswitch" in src + dst or {before.graph.nodes[end]["kind"] for end in (src, dst)} == {"host"}
        times = after.graph.edges[src, dst]["bandwidth"] / facts["bandwidth"]
        assert times == (1.0 if inside else 2.0), (src, dst)
    for name, library in before.collectives.items():
        twice = after.collectives[name]
        assert twice.cross_rate_cap == pytest.approx(2 * library.cross_rate_cap)
        assert replace(twice, cross_rate_cap=library.cross_rate_cap) == library


@pytest.mark.parametrize(("topology", "one_node"), [("dgx_h100", True), ("dgx_h100", False), ("fat_tree_1024", False)])
def test_once_the_network_and_twice_the_memory_change_no_time(topology: str, *, one_node: bool) -> None:
    ranks = 8 if one_node else 16
    cluster: dict[str, Any] = {"topology": topology, "world_size": ranks, "gpu": "h100_sxm"}
    scenario = load_scenario({"name": "base", "cluster": cluster, "training": OF_A_MODEL})
    same = with_network(topology, None, 1.0, one_node=one_node)
    assert same is not None
    more = with_memory("h100_sxm", topology, None, 2.0)
    times = {
        simulate(scenario.replaced(cluster=scenario.cluster.replaced(**change))).report.to_dict()["step_time_s"]
        for change in ({}, {"topology": same}, {"gpu": more})
    }
    assert len(times) == 1
    held = [build(topology, ranks, gpu=gpu).gpus[0].hbm_bytes for gpu in ("h100_sxm", more)]
    assert held[1] == 2 * held[0]


def planned(topology: str, gpus: int) -> tuple[SearchResult, list[MachineChange]]:
    base = shared_scenario(MODEL, {"topology": topology, "world_size": gpus}, 256, {})
    few = {"pp": (1,), "tp": (1, 2), "checkpointing": ("none",), "sharding": ("zero1", "zero3"), "micro_batch": (1, 4)}
    choices = PlanQuestion(base, PlanSpec(global_batch="32seq")).choices()
    choices = replace(choices, values={**choices.values, **few})
    *_, found = search(base, 32, choices, best=3)
    return found, list(sensitivity(found, Backend(1)))


def test_one_more_card_beside_one_is_twice_the_network() -> None:
    assert cards("h100_ethernet_100g", None) == 1
    found, (twice, one_more, memory) = planned("h100_ethernet_100g", 16)
    assert (twice.same, twice.best.report) == (one_more.same, one_more.best.report)
    # What the same setting takes is no less than what the fastest takes, and a faster network makes nothing slower.
    assert twice.best.step_time <= twice.same < twice.before == found.best[0].step_time
    assert (memory.same, memory.best.step_time) == (memory.before, memory.before)
    same = "With twice the memory, the best setting takes the same time and remains the fastest."
    assert sensitivity_sentence(memory) == same
    share = f"{100 * (1 - twice.same / twice.before):.1f} % less time"
    assert sensitivity_sentence(twice).startswith(
        f"With twice the bandwidth between nodes, the best setting takes {share}"
    )


def test_inside_one_node_there_are_no_cards() -> None:
    _, changed = planned("dgx_a100", 8)
    assert [one.change for one in changed] == ["twice the bandwidth inside the node", "twice the memory"]


USUAL = PlanSetting(8, 2, 2, 1, 1, "1f1b", 1, "zero1", None, 1, 8, "none", "none", None, "nanotron")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (USUAL, []),
        (replace(USUAL, sharding="zero2"), ["no measured run uses zero2"]),
        (replace(USUAL, schedule="zb_v"), ["no measured run uses schedule zb_v"]),
        (replace(USUAL, checkpointing="selective_op"),
         ["no measured run on h100_sxm has the combination of 1f1b, pp, selective_op checkpointing, tp, zero1"]),
        (replace(USUAL, gpus=4096, tp=8), ["no measured run has more than 3,072 GPUs"]),
        (replace(USUAL, framework="internevo"), ["no measured run of internevo has 1f1b, pp"]),
        (replace(USUAL, framework="bare"),
         [(
             "no framework is named, therefore kernels have no framework overhead; --set training.framework=nemo "
             "names a framework"
         )]),
        (replace(USUAL, offload="optimizer"), ["no measured run offloads optimizer states to the host"]),
    ],
)  # fmt: skip
def test_what_nobody_has_measured_is_said(setting: PlanSetting, told: list[str]) -> None:
    base = shared_scenario("llama3_8b", {"topology": "dgx_h100", "world_size": setting.gpus}, 4096, {})
    assert outside_of_measured(scenario_of(base, setting)) == told


def test_the_largest_measured_number_of_gpus_is_that_of_the_table() -> None:
    rows = [row for row in read_table("training_cut.csv") if row["how"] == "timed"]
    assert max(int(row["gpus"]) for row in rows) == 3072
    assert any(
        row["sharding"] == "zero1" and (row["tp"], row["pp"], row["gpu"]) == ("2", "2", "h100_sxm") for row in rows
    )
