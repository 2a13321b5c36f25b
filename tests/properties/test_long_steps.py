"""A long step told from two shorter ones: every figure of its report equals the whole step's, or it is not told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from simulator.planner.search import search
from simulator.planner.space import Choices
from simulator.records.timeline import Timeline
from simulator.run.long_steps import long_step_report, repeats
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.step.pipelines.schedule import SCHEDULES

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
# Both hold every micro-batch's activations.
NOT_TOLD = {"gpipe", "looped_bfs"}


# Launches of so small a model would take longer than its kernels.
LAUNCHED = {"model": LLAMA, "seq_len": 128, "cuda_graphs": "full_iteration"}


def scenario(training: dict[str, Any], cluster: dict[str, Any] | None = None) -> Scenario:
    machine = {"topology": "dgx_h100", "world_size": 8} | (cluster or {})
    return load_scenario({"name": "long", "cluster": machine, "training": LAUNCHED | training})


def figures(report: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each value of a report, bottleneck excluded."""
    for key, value in report.items() if isinstance(report, dict) else enumerate(report):
        if isinstance(value, dict | list | tuple):
            yield from figures(value, f"{path}{key}.")
        elif not f"{path}{key}".startswith("bottleneck"):
            yield f"{path}{key}", value


def is_told_and_equal(asked: Scenario) -> bool:
    """Return True if the step is told from shorter ones; every figure then equals the whole step's."""
    told = long_step_report(asked, Clusters())
    if told is None:
        return False
    found = dict(figures(told[0].to_dict()))
    whole = dict(figures(simulate(asked, limit_memory=False).report.to_dict()))
    assert found.keys() == whole.keys()
    time = whole["step_time_s"]
    for name, value in whole.items():
        if name.startswith("intervals"):
            # The mean length of exposed collectives, which widens intervals, changes a little.
            assert found[name] == pytest.approx(value, rel=2e-3), name
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9 * time), name
        else:
            assert found[name] == value, name
    return True


@pytest.mark.parametrize("schedule", SCHEDULES.names())
@pytest.mark.one_of(3)
def test_a_pipeline_that_repeats_itself_is_told_exactly(schedule: str) -> None:
    chunks = SCHEDULES.find(schedule).chunks
    parallelism = {"pp": 4, "schedule": schedule} | ({} if chunks else {"virtual_stages": 2})
    asked = scenario({"gradient_accumulation_steps": 160, "sharding": "zero1", "parallelism": parallelism})
    assert is_told_and_equal(asked) is (schedule not in NOT_TOLD)


@pytest.mark.parametrize(
    "training",
    [
        {"sharding": "zero3"},
        {"sharding": "zero3", "activation_checkpointing": "full", "micro_batch_size": 2},
        {"sharding": "zero2", "parallelism": {"tp": 2}},
        {"sharding": "ddp", "framework": "nanotron"},
        {"sharding": "zero1", "framework": "nemo", "parallelism": {"pp": 2, "tp": 2}},
        {"sharding": {"strategy": "zero3", "shard_size": 4}, "parallelism": {"cp": 2}},
        pytest.param(
            {"sharding": "zero1", "framework": "megatron_2021", "parallelism": {"pp": 2}},
            # Exposed time of a send and a reduce-scatter at once goes to either kind.
            marks=pytest.mark.xfail(strict=True),
        ),
        {"sharding": "zero3", "collectives": "played"},
    ],
    ids=str,
)
@pytest.mark.one_of(3)
def test_other_steps_are_told_exactly(training: dict[str, Any]) -> None:
    assert is_told_and_equal(scenario({"gradient_accumulation_steps": 61} | training))


def test_what_is_hidden_only_in_the_beginning_is_not_told() -> None:
    """Sums of gradients, a micro-batch each, that take longer than the next micro-batch's kernels fall behind.

    Whatever is told stays equal to the whole step; at some bandwidth a queue forms, and nothing is told from its start.
    """
    for bandwidth in ("1 GB/s", "3 GB/s", "5 GB/s", "8 GB/s", "20 GB/s", "100 GB/s"):
        star = {"builder": "star", "options": {"bandwidth": bandwidth, "latency": "1 us"}}
        asked = scenario(
            {"gradient_accumulation_steps": 61, "sharding": "zero2", "micro_batch_size": 4},
            {"topology": star, "world_size": 4, "gpu": "a100_sxm_80gb"},
        )
        is_told_and_equal(asked)


@pytest.mark.parametrize(
    ("training", "cluster"),
    [
        ({}, {"stragglers": {0: 0.5}}),
        ({}, {"jitter": {"compute": 0.1}}),
        ({"offload": "optimizer"}, {}),
        ({"gradient_accumulation_steps": 12}, {}),
    ],
    ids=str,
)
def test_steps_that_do_not_repeat_themselves_or_are_short_are_simulated(
    training: dict[str, Any], cluster: dict[str, Any]
) -> None:
    asked = scenario({"gradient_accumulation_steps": 60, "sharding": "zero3"} | training, cluster)
    assert long_step_report(asked, Clusters()) is None


def test_a_span_that_comes_a_little_later_than_its_group_does_not_repeat() -> None:
    def timeline(groups: int, late: float = 0.0) -> Timeline:
        asked = scenario({"gradient_accumulation_steps": groups, "sharding": "zero3"})
        made = simulate(asked, keep=(0,)).timeline
        kernels = [one for one in made.spans if one.stream == "compute"]
        middle = kernels[len(kernels) // 2]
        return replace(made, spans=tuple(replace(s, start=s.start + late) if s is middle else s for s in made.spans))

    assert repeats(timeline(6), timeline(7))
    assert not repeats(timeline(6), timeline(7, late=1e-7))


def test_a_plan_of_long_steps_is_the_plan_of_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {
        "gpus": (8,), "tp": (1, 2), "pp": (1, 2), "cp": (1,), "ep": (1,), "schedule": ("1f1b",), "virtual_stages": (1,),
        "sharding": ("zero1", "zero3"), "shard_size": (None,), "micro_batch": (1,), "checkpointing": ("none",),
        "offload": ("none",), "precision": (None,), "framework": (None,), "optimizer": (None,), "rank": (None,),
        "base": (None,),
    }  # fmt: skip
    base = scenario({})
    *_, told = search(base, 512, Choices(values), best=4)
    monkeypatch.setattr("simulator.run.long_steps.long_step_report", lambda *_: None)
    *_, whole = search(base, 512, Choices(values), best=4)
    assert [one.setting for one in told.best] == [one.setting for one in whole.best]
    assert [one.step_time for one in told.best] == pytest.approx([one.step_time for one in whole.best], rel=1e-9)
