"""Played steps against measured ones: the errors that docs/validation.md prints.

Sources: llm-foundry's benchmark tables, torchtitan's performance pages (simulator/catalog/measured/training.csv).
"""

from __future__ import annotations

from functools import cache

import pytest

from simulator import load_scenario, simulate
from simulator.calibration.training_runs.cut_rows import measured_cut
from simulator.calibration.training_runs.playing import PlayedRow, play_rows
from simulator.calibration.training_runs.rows import measured
from simulator.calibration.training_runs.summary import by_source, errors, is_fitted

# One row of each kind that plays in well under a second.
FEW = (104, 112, 117, 126, 131, 139, 143, 155, 177, 185, 199, 207, 216, 222)


@cache
def few() -> tuple[PlayedRow, ...]:
    return play_rows([row for row in measured("foundry") if row.line in FEW], jobs=1)


@cache
def everything() -> tuple[PlayedRow, ...]:
    return play_rows(measured(), jobs=2)


@pytest.mark.parametrize("line", FEW)
def test_a_row_of_each_kind_is_within_twelve_per_cent_and_fits(line: int) -> None:
    found = next(outcome for outcome in few() if outcome.row.line == line)
    assert abs(found.error) <= 0.12
    assert found.fits


@pytest.mark.long
def test_fitted_rows_are_off_by_five_per_cent_in_the_middle_and_twelve_at_nine_of_ten() -> None:
    found = errors("", [outcome.error for outcome in everything() if is_fitted(outcome.row)])
    assert found.count == 113
    assert found.median <= 0.05
    assert found.most <= 0.12
    assert abs(found.bias) <= 0.02


@pytest.mark.long
def test_every_row_fits_when_played() -> None:
    assert [outcome.row.name for outcome in everything() if not outcome.fits] == []


@pytest.mark.long
def test_torchtitans_memory_is_within_a_tenth_of_what_was_printed() -> None:
    rows = [outcome for outcome in everything() if outcome.row.table == "torchtitan"]
    found = [outcome.memory_error for outcome in rows if outcome.memory_error is not None]
    assert len(found) == 6
    assert max(map(abs, found)) <= 0.10
    assert abs(sum(found) / len(found)) <= 0.03


@pytest.mark.long
@pytest.mark.parametrize(("gpus", "most"), [(8, 0.06), (128, 0.045)])
def test_torchtitans_steps_on_h100_are_at_most_so_far_off(gpus: int, most: float) -> None:
    """On 16 boxes measured steps take 4 % longer than on one, and simulated ones do not: from 5.4 % too slow to 1.1 %
    too fast on one box, from 2.4 % too slow to 4 % too fast on 16. Boards of 500 W lose by the square root of the
    power.
    """
    rows = [o for o in everything() if o.row.table == "torchtitan" and o.row.gpu.startswith("h100")]
    found = [o.error for o in rows if o.row.gpus == gpus]
    assert len(found) == 3
    assert max(map(abs, found)) <= most


@pytest.mark.long
def test_nanotron_without_model_parallelism_is_within_a_tenth_on_up_to_four_boxes() -> None:
    """8 to 32 H100: rows of the same cluster as those that its constants were fitted to, which are cut."""
    found = [o.error for o in everything() if o.row.table == "nanotron" and o.row.gpus <= 32]
    assert len(found) == 9
    assert max(map(abs, found)) <= 0.10


@pytest.mark.long
def test_steps_of_cut_models_are_as_far_off_as_the_page_says() -> None:
    """Every row; the medians are of a step's time (docs/validation_cut.md), rounded up."""
    found = {part.time.name: part for part in by_source(play_rows(measured_cut(), jobs=2))}
    most = {
        "vtrain": 0.08, "vtrain_composed": 0.095, "megatron_sc21": 0.055, "nanotron_cut": 0.09, "dgxc": 0.02,
        "simumax": 0.045, "llmq": 0.015, "internevo": 0.015, "mlperf": 0.06, "torchtitan_cut": 0.12,
    }  # fmt: skip
    assert {name: part.time.median <= most[name] for name, part in found.items()} == dict.fromkeys(most, True)
    assert sum(part.refused for part in found.values()) <= 0.01 * len(measured_cut())
    memory = found["simumax"].memory
    assert memory is not None
    assert memory.most <= 0.06


@pytest.mark.long
def test_blooms_step_is_within_a_tenth_with_the_framework_that_ran_it() -> None:
    """176B on 384 A100 in 48 nodes with 4 x 100 Gb/s, tensor 4, pipeline 12, data 8, 2,048 sequences of 2,048 tokens,
    recomputed: 105 s a step (bigscience, train/tr11-176B-ml/chronicles.md). Nothing was fitted to it.
    """
    model = {
        "model_type": "gpt2", "n_embd": 14336, "n_layer": 70, "n_head": 112, "n_positions": 2048, "vocab_size": 250880,
    }  # fmt: skip
    training = {
        "model": model, "seq_len": 2048, "micro_batch_size": 2, "global_batch": "2048seq", "attention": "standard",
        "parallelism": {"tp": 4, "pp": 12, "stages": {"first_less": 1, "last_less": 1}}, "sharding": "zero1",
        "activation_checkpointing": "full", "precision": {"params": "bfloat16", "grads": "float32"},
        "framework": "megatron_deepspeed",
    }  # fmt: skip
    cluster = {"topology": "a100_roce_4x100g", "world_size": 384, "gpu": "a100_sxm_80gb"}
    report = simulate(load_scenario({"name": "bloom", "cluster": cluster, "training": training})).report
    assert report.step_time_s == pytest.approx(105.0, rel=0.10)
