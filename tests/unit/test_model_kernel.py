"""Counts of kernels, and what a shape refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch

GPT2 = load_model("gpt2")


def test_a_matmul_reads_both_sides_and_writes_its_output_once() -> None:
    kernel = Matmul("x", m=3, n=5, k=7, batch=2)
    assert kernel.flops == 2 * 2 * 3 * 5 * 7
    assert kernel.nbytes(2) == 2 * 2 * (3 * 7 + 7 * 5 + 3 * 5)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_takes_two_matmuls_forward_and_five_backward(causal: bool) -> None:
    b, h, s, hd = 2, 4, 128, 16
    share = 2 if causal else 1
    forward, backward = (Attention("x", b, h, h, s, hd, causal, backward=way) for way in (False, True))
    assert forward.flops == 4 * b * h * s * s * hd / share
    assert backward.flops == 10 * b * h * s * s * hd / share


def test_flash_attention_moves_nothing_quadratic() -> None:
    short, long = (Attention("x", 1, 4, 2, s, 16, causal=True, backward=False) for s in (128, 256))
    assert short.nbytes(2) == 2 * 128 * 16 * (4 + 4 + 2 + 2) + 4 * 4 * 128
    assert long.nbytes(2) == 2 * short.nbytes(2)
    backward = replace(short, backward=True)
    assert 2 * short.nbytes(2) < backward.nbytes(2) < 3 * short.nbytes(2)


def test_elementwise_kernels_are_their_traffic() -> None:
    kernel = Elementwise("x", read=10, written=5)
    assert (kernel.flops, kernel.nbytes(8)) == (0, 15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers: got 0; must be at least 1"),
        ({"num_kv_heads": 5}, "num_kv_heads: got 5; must divide num_heads 12"),
        ({"num_experts": 4}, "active_experts: got 0; must be 1 .. num_experts 4"),
        ({"active_experts": 1}, "active_experts: got 1; must be 1 .. num_experts 0"),
    ],
)
def test_an_impossible_shape_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GPT2, **changes)  # type: ignore[arg-type]


def test_only_scores_softmax_and_their_dropout_are_quadratic() -> None:
    batch = Batch(1, 64, attention="standard", dropout=True)
    quadratic = [op.name for op in layer_operations(GPT2, batch) if op.quadratic]
    assert quadratic == ["scores", "softmax", "attention dropout"]
    assert not any(op.quadratic for op in layer_operations(GPT2, replace(batch, attention="flash")))


def test_a_router_learns_from_what_it_read_and_from_what_experts_gave() -> None:
    operations = {op.name: op for op in layer_operations(load_model("mixtral_8x7b"), Batch(1, 64))}
    assert [saved.name for saved in operations["router"].saved] == ["norm2 output", "routing weights"]
    assert [(saved.name, saved.source) for saved in operations["combine"].saved] == [("expert outputs", "down")]
    assert operations["combine"].saved[0].nbytes == 2 * 64 * 4096 * 2  # two choices, two bytes
