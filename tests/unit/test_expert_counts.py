"""Recorded counts of tokens by expert: the fullest rank, and files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator import simulate
from simulator.basics.errors import ScenarioError
from simulator.model.expert_counts import fullest_ranks, read_counts, walked_loads
from simulator.run.step_size import of_step
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
    counts = read_counts(path)
    assert counts.tolist() == [[[30, 10, 10, 10], [10, 10, 10, 10]]]
    # Ranks of two experts: 40 and 20 of 30 in the mean; then as many on both.
    assert fullest_ranks(counts, 2) == pytest.approx([(40 / 30 + 1) / 2])
    assert fullest_ranks(counts, 4) == pytest.approx([(30 / 15 + 1) / 2])


def test_each_recorded_step_is_the_step_with_its_own_factor(tmp_path: Path) -> None:
    # Rank 0 has 45, 30 and 60 of 60 tokens; the mean is 30.
    counts = ((25, 20, 10, 5), (15, 15, 15, 15), (30, 30, 0, 0))
    lines = [f"{step},{expert},{n}" for step, row in enumerate(counts) for expert, n in enumerate(row)]
    path = written(tmp_path, "step,expert,tokens\n" + "\n".join(lines) + "\n")
    report = simulate(scenario({"recorded": path})).report
    times = [simulate(scenario(factor)).report.step_time_s for factor in (1.5, 1.0, 2.0)]
    assert report.step_times_s == tuple(times)
    # The report is that of the median step.
    assert report.step_time_s == times[0]


def test_a_popularity_that_drifts_begins_as_the_one_that_does_not() -> None:
    loads = walked_loads(0.5, 0.2, 6, seed=3, layers=4, experts=8, ranks=4)
    # Experts dealt in turn: the first rank has the first and the fifth of eight.
    popularity = [n**-0.5 for n in range(1, 9)]
    assert loads[0] == pytest.approx(4 * (popularity[0] + popularity[4]) / sum(popularity))
    assert len(set(loads)) == 6
    assert loads == walked_loads(0.5, 0.2, 6, seed=3, layers=4, experts=8, ranks=4)
    assert loads != walked_loads(0.5, 0.2, 6, seed=4, layers=4, experts=8, ranks=4)
    # A wide walk ends with a few experts that have most tokens.
    assert walked_loads(0.1, 2.0, 40, 0, 4, 8, 4)[-1] > 2.0
    assert all(1.0 <= load <= 4.0 for load in walked_loads(0.1, 2.0, 40, 0, 4, 8, 4))


def test_steps_of_a_drifting_popularity_are_those_with_its_factors() -> None:
    report = simulate(scenario({"zipf": 0.5, "walk": 0.3, "steps": 4})).report
    loads = walked_loads(0.5, 0.3, 4, 0, layers=2, experts=4, ranks=2)
    assert report.step_times_s == tuple(simulate(scenario(round(load, 3))).report.step_time_s for load in loads)


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


@pytest.mark.parametrize("imbalance", [{"counts": "a.csv"}, {"zipf": 0.3, "walk": 0.1}, {"walk": 0.1, "steps": 4}])
def test_another_mapping_is_told(imbalance: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"must be a number such as 1\.1"):
        load_scenario(scenario(imbalance))


def test_steps_of_documents_and_of_loads_are_not_mixed(tmp_path: Path) -> None:
    counts = "step,expert,tokens\n" + "".join(f"{step},{expert},5\n" for step in (0, 1) for expert in range(4))
    for imbalance in ({"zipf": 0.3, "walk": 0.1, "steps": 4}, {"recorded": written(tmp_path, counts)}):
        data = scenario(imbalance)
        data["training"]["lengths"] = {"distribution": "lognormal", "median": 500, "sigma": 1.0, "steps": 2}
        with pytest.raises(ScenarioError, match="steps have other documents already"):
            load_scenario(data)


def test_every_step_with_another_load_counts_in_the_estimate(tmp_path: Path) -> None:
    """Loads of 1 and 2: three steps, of which two are simulated."""
    counts = [(5, 5, 5, 5), (10, 10, 0, 0), (5, 5, 5, 5)]
    rows = [f"{step},{expert},{tokens}\n" for step, of in enumerate(counts) for expert, tokens in enumerate(of)]
    path, cluster = written(tmp_path, "step,expert,tokens\n" + "".join(rows)), {"topology": "dgx_h100"}
    one, several = (
        of_step(load_scenario(data | {"cluster": cluster | {"world_size": 8192}}), {})
        for data in (scenario(1.5), scenario({"recorded": path}))
    )
    for name in ("seconds", "nbytes"):
        total_of_one, total = (sum(getattr(share, name) for share in shares) for shares in (one, several))
        assert total == pytest.approx(2 * total_of_one)
        assert total > 0
