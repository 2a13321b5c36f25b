"""The batch of a step as tokens or sequences: how many micro-batches follow, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.scenario.resolve import resolved
from simulator.scenario.schema import schema
from simulator.sweeps.sweep import sweep, with_axes
from tests.schemas import scenario_validator

TINY = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 64}


def scenario(ranks: int = 8, **training: Any) -> dict[str, Any]:
    given = {"model": TINY, "seq_len": 64, "micro_batch_size": 2} | training
    return {"name": "demo", "cluster": {"topology": "dgx_h100", "world_size": ranks}, "training": given}


def told(data: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data)
    return str(caught.value).removeprefix("<dict>: ")


@pytest.mark.parametrize(
    ("written", "more", "steps"),
    [
        ("64seq", {}, 4),  # 64 sequences / (8 ranks x 2)
        ("4k", {}, 4),  # 4,096 tokens of 64 a sequence
        (4096, {}, 4),
        ("64 seq", {"micro_batch_size": 1}, 8),
        ("64seq", {"parallelism": {"tp": 2, "pp": 2}}, 16),  # 2 data-parallel ranks
    ],
)
def test_micro_batches_follow(written: str | int, more: dict[str, Any], steps: int) -> None:
    data = scenario(global_batch=written, **more)
    scenario_validator().validate(data)
    loaded = load_scenario(data)
    assert loaded.training is not None
    assert loaded.training.gradient_accumulation_steps == steps
    said = load_scenario(scenario(gradient_accumulation_steps=steps, **more))
    assert simulate(loaded).report == simulate(said).report


def test_points_of_a_sweep_each_have_their_own() -> None:
    data = scenario(global_batch="64seq") | {"sweep": {"cluster.world_size": [1, 2, 8]}}
    found = [point.scenario.training for point in points(load_scenario(data))]
    assert [one.gradient_accumulation_steps for one in found if one is not None] == [32, 16, 4]


def test_what_is_written_out_is_the_same_scenario() -> None:
    for data in (
        scenario(global_batch="64seq"),
        scenario(global_batch="64seq", gradient_accumulation_steps=4),
        scenario() | {"sweep": {"training.global_batch": ["64seq", "128seq"]}},
    ):
        loaded = load_scenario(data)
        assert "gradient_accumulation_steps" not in resolved(loaded)["training"]
        assert load_scenario(resolved(loaded)) == loaded


def test_a_batch_that_ranks_cannot_share_is_told_with_those_that_they_can() -> None:
    assert told(scenario(global_batch="60seq")) == (
        "training.global_batch: got 60seq, 60 sequences; must be a multiple of 16 (8 data-parallel ranks x "
        "micro_batch_size 2); write 48seq or 64seq, or another micro_batch_size"
    )
    assert "write 16seq, or another" in told(scenario(global_batch="8seq"))
    assert "must be a multiple of 4 (2 data-parallel ranks" in told(
        scenario(global_batch="6seq", parallelism={"tp": 4})
    )
    assert "100 tokens are not a multiple of seq_len 64; write 64, or 1seq; for 100 sequences write 100seq" in told(
        scenario(global_batch=100)
    )
    assert "must be tokens, such as 4M, or sequences, such as 512seq" in told(scenario(global_batch={"tokens": 1}))
    assert "got a list; must be a single value; write 'global_batch: 1'" in told(scenario(global_batch=[1]))


def test_another_number_of_micro_batches_contradicts_it() -> None:
    assert told(scenario(global_batch="64seq", gradient_accumulation_steps=2)) == (
        "training.gradient_accumulation_steps: got 2, but global_batch 64seq needs 4; omit one key"
    )
    assert load_scenario(scenario(global_batch="64seq", gradient_accumulation_steps=4)).training is not None


def test_a_rule_of_micro_batches_sees_those_that_follow() -> None:
    piped = {"pp": 4, "schedule": "interleaved", "virtual_stages": 2}
    wide = {"model": TINY | {"n_layer": 8}, "micro_batch_size": 1}
    assert load_scenario(scenario(global_batch="8seq", parallelism=piped, **wide)).training is not None
    assert "(gradient_accumulation_steps)" in told(scenario(global_batch="12seq", parallelism=piped, **wide))


def test_it_is_an_axis_of_a_file_and_of_python() -> None:
    table = sweep(scenario(), {"training.global_batch": ["16seq", "64seq"]})
    one, four = table["tokens_per_s"] * table["step_time_s"]
    assert one == pytest.approx(16 * 64)
    assert four == pytest.approx(64 * 64)
    with pytest.raises(ScenarioError, match="must be a multiple of 16"):
        with_axes(load_scenario(scenario()), {"training.global_batch": ["24seq"]})
    axes = schema()["properties"]["sweep"]["properties"]
    assert axes["training.global_batch"]["items"]["anyOf"]


def test_a_plan_says_it_itself() -> None:
    data = scenario(global_batch="64seq") | {"plan": {"global_batch": "64seq"}}
    del data["training"]["micro_batch_size"]
    assert "training.global_batch: is given by plan.global_batch; remove the key" in told(data)
