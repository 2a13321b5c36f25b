"""Model states against the ZeRO paper's table, DeepSpeed's estimators and formulas worked out by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from simulator.model.conventions import ModelStates, deepspeed_zero2, deepspeed_zero3, fsdp, live_bytes, paper

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE_1 = list(csv.DictReader((GOLDEN / "zero_table1.csv").read_text().splitlines()))
ESTIMATES = list(csv.DictReader((GOLDEN / "deepspeed_estimator.csv").read_text().splitlines()))
STAGES = {"Pos": 1, "Pos+g": 2, "Pos+g+p": 3}


@pytest.mark.parametrize("row", TABLE_1, ids=lambda r: f"{r['params_B']}B-{r['dp']}-{r['stage']}")
def test_table_1_of_the_zero_paper_comes_out(row: dict[str, str]) -> None:
    found = paper(float(row["params_B"]) * 1e9, int(row["dp"]), STAGES[row["stage"]]).total / 1e9
    printed = row["GB_printed"]
    digits = len(printed.partition(".")[2])
    # Some cells are rounded and some cut, so the last digit printed may be one off.
    assert abs(found - float(printed)) < 10.0**-digits


def test_the_papers_example_of_7_5_billion_parameters_on_64_gpus_comes_out() -> None:
    assert [round(paper(7.5e9, 64, stage).total / 1e9, 1) for stage in range(4)] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(("parameters", "total"), [(0.5e9, 8e9), (3e9, 48e9), (7e9, 112e9), (70e9, 1120e9)])
def test_a_parameter_trained_in_mixed_precision_with_adam_takes_16_bytes(parameters: float, total: float) -> None:
    states = paper(parameters, 1, 0)
    assert (states.parameters, states.gradients, states.optimizer) == (2 * parameters, 2 * parameters, 12 * parameters)
    assert states.total == total


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 3, 64, 1000])
def test_a_stage_shares_what_the_stage_before_it_kept_whole(stage: int, ranks: int) -> None:
    p = 1e9
    expected = {1: 4 * p + 12 * p / ranks, 2: 2 * p + 14 * p / ranks, 3: 16 * p / ranks}[stage]
    assert paper(p, ranks, stage).total == pytest.approx(expected)
    assert paper(p, ranks, stage).total <= paper(p, ranks, stage - 1).total


def test_stage_1_on_many_ranks_needs_a_quarter() -> None:
    assert paper(1e9, 10**6, 1).total / paper(1e9, 1, 0).total == pytest.approx(1 / 4, rel=1e-4)


def estimate(row: dict[str, str]) -> ModelStates:
    parameters, largest = 2851e6, 32e6
    optimizer, weights = row["offload"].endswith("=cpu"), "param=cpu" in row["offload"]
    if row["estimator"].startswith("ZeRO-2"):
        return deepspeed_zero2(parameters, 8, offload_optimizer=optimizer, older=True)
    init = row["zero_init"] == "1"
    return deepspeed_zero3(
        parameters, 8, largest, offload_optimizer=optimizer, offload_parameters=weights, zero_init=init
    )


@pytest.mark.parametrize("row", ESTIMATES, ids=lambda r: f"{r['estimator']}-{r['offload']}-{r['zero_init']}")
def test_deepspeeds_estimators_come_out(row: dict[str, str]) -> None:
    gpu, host = estimate(row).total / 2**30, estimate(row).host / 2**30
    # "Live" rows are of the real model, whose parameters are printed in whole millions; "cold" rows of those millions.
    cold = "cold" in row["estimator"]
    assert gpu == pytest.approx(float(row["per_gpu_GB"]), abs=0.0051 if cold else 0.011)
    assert host == pytest.approx(float(row["per_cpu_GB"]), abs=0.0051 if cold else 0.05)


def test_deepspeeds_stage_2_of_today_shares_gradients_of_2_and_4_bytes() -> None:
    today, before = deepspeed_zero2(1e9, 8), deepspeed_zero2(1e9, 8, older=True)
    assert today.total == pytest.approx(2e9 + 18e9 / 8)
    assert before.total == pytest.approx(4e9 + 16e9 / 8)
    assert today.gradients == pytest.approx((2 + 4) * 1e9 / 8)


def test_deepspeeds_stage_3_gathers_the_largest_layer() -> None:
    states = deepspeed_zero3(1e9, 8, 50e6)
    assert states.transient == 4 * 50e6
    assert states.total == pytest.approx(18e9 / 8 + 200e6)


def test_the_host_of_two_nodes_holds_half_of_what_is_shared() -> None:
    one = deepspeed_zero3(1e9, 8, 0, offload_optimizer=True)
    two = deepspeed_zero3(1e9, 16, 0, offload_optimizer=True)
    assert (one.host, two.host) == (1.5 * 16e9, 1.5 * 8e9)
    # Built whole by every one of 4 processes, the model itself is the larger part.
    whole = deepspeed_zero3(1e9, 4, 0, ranks_per_node=8, offload_optimizer=True, zero_init=False)
    assert whole.host == 1.5 * max(4 * 4e9, 16e9)


def test_fsdp_keeps_shards_of_16_bytes_and_gathers_units_of_2() -> None:
    p, ranks, unit = 8e9, 64, 0.2e9
    full, grad = fsdp(p, ranks, unit), fsdp(p, ranks, unit, reshard_after_forward=False)
    assert full.parameters + full.gradients + full.optimizer == 16 * p / ranks
    assert full.transient == 2 * 2 * unit + 2 * unit  # the unit at work, the one prefetched, the gradient
    assert grad.transient == 2 * p + 2 * unit
    assert fsdp(p, ranks, unit, prefetch=0, gradient_bytes=4).transient == 2 * unit + 4 * unit
    assert fsdp(p, ranks, p, prefetch=3).transient == 2 * p + 2 * p  # no more than all is ever gathered


def test_a_small_model_may_need_more_in_stage_3_than_in_stage_2() -> None:
    p, ranks, unit = 1e9, 64, 0.5e9
    assert deepspeed_zero3(p, ranks, unit).total > paper(p, ranks, 3).total
    assert fsdp(p, ranks, unit).total > paper(p, ranks, 2).total


@pytest.mark.parametrize("layers", [1, 2, 7, 24])
def test_full_checkpointing_keeps_an_input_of_each_layer_and_one_layer_whole(layers: int) -> None:
    boundary, layer = 2, 34
    found = live_bytes("full", layers, boundary, layer)
    assert found.after_forward == layers * boundary
    assert found.backward_peak == (layers - 1) * boundary + layer


def test_without_checkpointing_the_end_of_the_forward_pass_is_the_peak() -> None:
    found = live_bytes("none", 24, 2, 34)
    assert found.after_forward == found.backward_peak == 24 * 34


def test_every_second_layer_keeps_its_input_alone() -> None:
    found = live_bytes("every", 5, 2, 34, every=2)
    assert found.after_forward == 3 * 2 + 2 * 34  # layers 0, 2, 4
    assert found.backward_peak == 2 * 2 + 2 * 34 + 34
    assert live_bytes("listed", 5, 2, 34, listed=[0, 2, 4]) == found
    assert live_bytes("every", 5, 2, 34, every=1) == live_bytes("full", 5, 2, 34)


@pytest.mark.parametrize("layers", [1, 4, 24, 80])
def test_sqrt_checkpointing_keeps_an_input_of_each_segment(layers: int) -> None:
    boundary, layer, segments = 2, 34, round(math.sqrt(layers))
    found = live_bytes("sqrt", layers, boundary, layer)
    assert found.after_forward == segments * boundary
    longest, shortest = math.ceil(layers / segments), layers // segments
    assert found.backward_peak <= (segments - 1) * boundary + longest * layer
    assert found.backward_peak >= (segments - 1) * boundary + shortest * layer


def test_selective_checkpointing_keeps_all_but_the_quadratic_part() -> None:
    found = live_bytes("attention", 96, 2, 114, quadratic=80)
    assert found.after_forward == 96 * 34
    assert found.backward_peak == 95 * 34 + 114


def test_no_policy_keeps_more_than_none_at_all() -> None:
    most = live_bytes("none", 24, 2, 114).backward_peak
    for policy in ("full", "sqrt", "every", "attention", "listed"):
        found = live_bytes(policy, 24, 2, 114, quadratic=80, every=3, listed=[1])
        assert found.after_forward <= found.backward_peak <= most
