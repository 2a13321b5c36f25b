"""Recorded counts of tokens by expert: the fullest rank, and files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator import simulate
from simulator.basics.errors import ScenarioError
from simulator.model.expert_counts import fullest_rank, read_counts
from simulator.scenario.load import load_scenario

EXPERTS = {
    "model_type": "mixtral", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "vocab_size": 1024, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def scenario(imbalance: Any) -> dict[str, Any]:
    training = {
        "model": EXPERTS, "seq_len": 2048, "precision": "bf16", "sharding": "zero1", "framework": "bare",
        "parallelism": {"ep": 2, "experts": {"imbalance": imbalance}},
    }  # fmt: skip
    return {"name": "experts", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": training}


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "counts.csv"
    path.write_text(text)
    return str(path)


def test_each_layer_waits_for_its_fullest_rank(tmp_path: Path) -> None:
    path = written(tmp_path, "layer,expert,tokens\n0,0,30\n0,1,10\n0,2,10\n0,3,10\n1,0,10\n1,1,10\n1,2,10\n1,3,10\n")
    assert read_counts(path).tolist() == [[30, 10, 10, 10], [10, 10, 10, 10]]
    # Ranks of two experts: 40 and 20 of 30 in the mean; then as many on both.
    assert fullest_rank(path, 2) == pytest.approx((40 / 30 + 1) / 2)
    assert fullest_rank(path, 4) == pytest.approx((30 / 15 + 1) / 2)


def test_recorded_counts_act_as_the_factor_that_they_amount_to(tmp_path: Path) -> None:
    path = written(tmp_path, "expert,tokens\n0,25\n1,20\n2,10\n3,5\n")
    recorded = simulate(scenario({"recorded": path})).report.to_dict()
    assert recorded == simulate(scenario(1.5)).report.to_dict()
    assert recorded["step_time_s"] > simulate(scenario(1.0)).report.step_time_s


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("expert,count\n0,1\n", "line 1: got expert, count; must have expert and tokens"),
        ("expert,tokens\n0,1\n1,many\n", "line 3: needs an expert from 0 on"),
        ("layer,expert,tokens\n0,0,1\n0,1,1\n1,0,1\n", "layer 1 has tokens of 1 of 2 experts"),
        ("expert,tokens\n", "has no counts"),
        ("expert,tokens\n0,1\n1,1\n", "has counts of 2 experts, but"),
    ],
)
def test_wrong_counts_are_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        load_scenario(scenario({"recorded": written(tmp_path, text)}))


def test_another_mapping_is_told() -> None:
    with pytest.raises(ScenarioError, match=r"must be a number such as 1\.1"):
        load_scenario(scenario({"counts": "a.csv"}))
