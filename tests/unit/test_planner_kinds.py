"""The fastest setting of each kind of layout: a simulated time, or a bound that no setting of the kind undercuts."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.planner.plan_question import plan_question
from simulator.planner.search import search
from simulator.planner.setting import PlanSetting, scenario_of
from simulator.planner.space import InfeasibleCounts, settings
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario

# Eight wide layers: pipelines, tensor parallelism and copies all cost something.
WIDE = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 8, "n_head": 16, "n_positions": 512, "vocab_size": 4096}


@pytest.mark.parametrize("model", [WIDE, pytest.param("gpt2_medium", marks=pytest.mark.long)], ids=["wide", "medium"])
@pytest.mark.long
def test_no_setting_of_a_kind_is_faster_than_the_kind(model: Any) -> None:
    scenario = load_scenario(
        {
            "name": "kinds",
            "cluster": {"topology": "dgx_a100", "world_size": 4},
            "training": {"model": model, "seq_len": 512},
            "plan": {"global_batch": "16seq", "best": 2, "among": {"micro_batch": [1, 2], "checkpointing": ["none"]}},
        }
    )
    asked = plan_question(scenario)
    *_, found = search(asked.base, asked.sequences, asked.choices(), best=asked.plan.best)
    assert found.kinds[0].setting == found.best[0].setting
    times: dict[str, list[float]] = {}
    for setting, _ in settings(asked.choices(), asked.base, asked.sequences, InfeasibleCounts()):
        report = simulate(scenario_of(asked.base, setting)).report
        times.setdefault(setting.kind, []).append(report.to_dict()["step_time_s"])
    assert {one.setting.kind for one in found.kinds} == set(times)
    assert any(one.is_bound for one in found.kinds)
    for one in found.kinds:
        fastest = min(times[one.setting.kind])
        assert one.step_time <= fastest * (1 + 1e-9)
        if not one.is_bound:
            assert one.step_time == pytest.approx(fastest)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"sharding": "zero3"}, "FSDP, tp"),
        ({"sharding": "zero3", "shard_size": 8}, "HSDP, tp"),
        ({"sharding": "zero1", "pp": 2}, "ZeRO-1, tp, pp"),
        ({"sharding": "ddp", "tp": 1}, "DDP"),
        ({"sharding": "zero3", "gpus": 2}, "no sharding, tp"),
    ],
)
def test_kinds_have_the_names_of_the_field(change: dict[str, object], kind: str) -> None:
    facts = {
        "gpus": 64, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "schedule": "1f1b", "virtual_stages": 1, "sharding": "zero1",
        "shard_size": None, "micro_batch": 1, "micro_batches": 1, "checkpointing": "none", "offload": "none",
    }  # fmt: skip
    assert PlanSetting(**(facts | change)).kind == kind  # type: ignore[arg-type]
