"""What the formulas refuse."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.model.conventions import deepspeed_zero2, deepspeed_zero3, fsdp, live_bytes, paper
from simulator.model.flops import counted_parameters, model_flops_per_token, utilization
from simulator.model.load import load_model

GPT2 = load_model("gpt2")
UNKNOWN: Any = "half"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: counted_parameters(GPT2, UNKNOWN), "count: got 'half'; must be one of all, without_embedding, matr"),
        (lambda: model_flops_per_token(GPT2, 0), "seq_len: got 0; must be at least 1"),
        (lambda: model_flops_per_token(GPT2, 8, scores=UNKNOWN), "scores: got 'half'; must be one of full, causal"),
        (lambda: utilization(1, 1, 0), "peak_flops: got 0; must be more than 0"),
        (lambda: paper(1e9, 8, 4), "stage: got 4; must be one of 0, 1, 2, 3"),
        (lambda: paper(-1, 8, 1), "parameters and ranks: got -1 and 8; must be at least 0 and 1"),
        (lambda: deepspeed_zero2(1e9, 0), "parameters and ranks: got 1000000000.0 and 0"),
        (lambda: deepspeed_zero3(1, 1, 1, offload_parameters=True), "offload_parameters: got True; only together"),
        (lambda: fsdp(1e9, 0, 1), "parameters and ranks: got 1000000000.0 and 0"),
        (lambda: live_bytes("full", 0, 1, 2), "num_layers and every: got 0 and 1; must be at least 1"),
        (lambda: live_bytes("every", 4, 1, 2, every=0), "num_layers and every: got 4 and 0"),
        (lambda: live_bytes("full", 4, 3, 2), "boundary and quadratic: got 3 and 0.0; must be from 0 to layer 2"),
        (lambda: live_bytes("attention", 4, 1, 2, quadratic=3), "boundary and quadratic: got 1 and 3"),
        (lambda: live_bytes("listed", 4, 1, 2, listed=[4]), r"listed: got \[4\]; must be layers 0 .. 3"),
        (lambda: live_bytes(UNKNOWN, 4, 1, 2), "policy: got 'half'; must be one of none, full, sqrt"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_utilization_is_what_is_done_over_what_could_be() -> None:
    assert utilization(tokens_per_s=100, flops_per_token=3e9, peak_flops=1e12) == pytest.approx(0.3)
