"""FLOPs of training, and measured utilisations computed again from measured tokens per second."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.model.flops import (
    counted_parameters,
    model_flops_per_token,
    utilization,
)
from simulator.model.load import load_model
from simulator.model.parameters import total

MPT = list(csv.DictReader((Path(__file__).parents[1] / "golden" / "mpt_training.csv").read_text().splitlines()))


def peak(row: dict[str, str]) -> float:
    """Dense peak of all GPUs of a row [FLOP/s]; data sheets of A100 and H100 SXM."""
    each = 312e12 if row["gpu"].startswith("a100") else 1978.9e12 if row["precision"] == "amp_fp8" else 989.4e12
    return each * int(row["gpus"])


@pytest.mark.parametrize("row", MPT, ids=lambda r: f"{r['model']}-{r['seq_len']}-{r['gpus']}-{r['gpu']}")
def test_a_measured_mfu_follows_from_tokens_per_s_and_all_parameters(row: dict[str, str]) -> None:
    model, seq_len = load_model(f"mpt_{row['model']}", seq_len=int(row["seq_len"])), int(row["seq_len"])
    expected = 6 * int(row["params"]) + 12 * model.num_layers * model.hidden_size * seq_len
    assert model_flops_per_token(model, seq_len) == expected
    mfu = utilization(float(row["tokens_per_s"]), expected, peak(row))
    assert 100 * mfu == pytest.approx(float(row["mfu_pct"]), abs=0.015)


def test_no_other_count_of_parameters_gives_the_measured_mfu() -> None:
    row = next(r for r in MPT if (r["model"], r["seq_len"]) == ("125m", "65536"))
    model = load_model("mpt_125m", seq_len=65536)
    for count in ("without_embedding", "matrices"):
        flops = model_flops_per_token(model, 65536, count=count)
        assert abs(100 * utilization(float(row["tokens_per_s"]), flops, peak(row)) - float(row["mfu_pct"])) > 1


def test_causal_counting_halves_attention_and_nothing_else() -> None:
    model = load_model("llama3_8b")
    attention = 12 * 32 * 4096 * 8192
    full, causal = (model_flops_per_token(model, 8192, scores=scores) for scores in ("full", "causal"))
    assert full == 6 * total(model) + attention
    assert causal == full - attention / 2


def test_p_can_leave_out_tables_that_are_only_looked_up() -> None:
    tied, untied = load_model("gpt2_xl"), load_model("llama3_8b")
    assert counted_parameters(tied, "without_embedding") == total(tied) - 1024 * 1600  # positions
    assert counted_parameters(untied, "without_embedding") == total(untied) - 128_256 * 4096
    biases_and_norms = 48 * 13 * 1600 + 2 * 1600
    assert counted_parameters(tied, "matrices") == total(tied) - 1024 * 1600 - biases_and_norms


def test_of_experts_only_the_active_ones_count() -> None:
    model = load_model("mixtral_8x7b")
    layer = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 8 * 4096 + 2 * 3 * 14336 * 4096
    assert counted_parameters(model, "matrices") == 32 * layer + 32000 * 4096
