"""Kernels between matmuls of programs without a recording, counted by hand after the frameworks' code.

Bytes of an element: 2 in bfloat16, 4 in float32. A layer has T tokens, d wide hidden states, keys and values of k each,
and a gated feed-forward block of width f. Statistics of norms (4 bytes a token) and weights are neglected.
"""

from __future__ import annotations

from typing import Final

import pytest

from simulator.model.kernel import Elementwise, Kernel
from simulator.model.layer import layer_program
from simulator.model.operation import Batch, ProgramName
from simulator.model.shape import Transformer

D: Final = 512
K: Final = 128
F: Final = 1408
BATCH: Final = (2, 1024)
T: Final = 2 * 1024
LLAMA: Final = Transformer(
    "llama", 1, D, 8, 2, D // 8, F, 4096, 4096,
    norm="rmsnorm", gated=True, positions="rotary", attention_bias=False, output_bias=False, mlp_bias=False,
)  # fmt: skip
MPT: Final = Transformer(
    "mpt", 1, D, 8, 8, D // 8, 4 * D, 4096, 4096, attention_bias=False, output_bias=False, mlp_bias=False
)


def moved(kernels: list[Kernel]) -> float:
    """Bytes read and written by elementwise kernels, for a token."""
    return sum(kernel.read + kernel.written for kernel in kernels if isinstance(kernel, Elementwise)) / T


def passes(model: Transformer, program: ProgramName) -> tuple[list[Kernel], list[Kernel]]:
    operations = layer_program(model, Batch(*BATCH, program=program)).operations
    forward = [kernel for operation in operations for kernel in operation.forward]
    return forward, [kernel for operation in operations for kernel in operation.backward]


# Two residual additions: read 2 d, write d.
ADDITIONS = 2 * 2 * 3 * D
# Two sums of the gradients of the residual stream and of a block: the same.
SUMS = 2 * 2 * 3 * D


def test_nanotron_copies_between_layouts() -> None:
    forward, backward = passes(LLAMA, "nanotron")
    norms = 2 * 2 * 2 * D
    parts = 2 * 2 * (D + 2 * K)  # queries, keys and values out of their product
    packed = 2 * 2 * 2 * (2 * K)  # keys and values into one array, and the pair behind the tokens
    rotary = 2 * 2 * (D + K)
    activation = 2 * (2 * F + 3 * F)  # silu of a view; times the other view
    assert moved(forward) == pytest.approx(norms + parts + packed + rotary + activation + ADDITIONS, rel=0.01)
    norms = 2 * 2 * 3 * D
    # The queries' gradient is copied and turned, the keys' turned in its place.
    rotary = 2 * (2 * D + 2 * D + 2 * K)
    # Two products with the gradient, silu's gradient, and the join of both halves.
    activation = 2 * (3 * F + 3 * F + 3 * F + 4 * F)
    packed = 2 * 2 * 2 * K
    assert moved(backward) == pytest.approx(norms + parts + packed + rotary + activation + SUMS, rel=0.02)


def test_internevo_norms_a_float32_copy_twice() -> None:
    forward, backward = passes(LLAMA, "internevo")
    norm = (2 + 4) * D + (4 + 2) * D  # the copy, and the norm with an output in bfloat16
    rotary = 2 * 2 * (D + K)
    activation = 2 * 3 * F
    assert moved(forward) == pytest.approx(2 * norm + rotary + activation + ADDITIONS, rel=0.01)
    # The norm again, the gradient of its input, that of its weight, and the cast.
    norms = 2 * (norm + (2 + 4 + 4) * D + (2 + 4) * D + (4 + 2) * D)
    assert moved(backward) == pytest.approx(
        norms + rotary + 2 * 5 * F + SUMS + 2 * 3 * D, rel=0.02
    )  # the gate's and the second matrix' gradients are summed, too


def test_llm_foundry_joins_the_gradients_of_queries_keys_and_values() -> None:
    forward, backward = passes(MPT, "llm_foundry")
    norms = 2 * 2 * 2 * D
    activation = 2 * 2 * 4 * D
    assert moved(forward) == pytest.approx(norms + activation + ADDITIONS, rel=0.01)
    # The gradients of a norm's input (read 2 d, write d) and weight (read 2 d); the join of 3 d; gelu's gradient.
    assert moved(backward) == pytest.approx(2 * 2 * 5 * D + 2 * 2 * 3 * D + 2 * 3 * 4 * D + SUMS, rel=0.02)


def test_torchtitan_of_2024_turns_complex_numbers_and_repeats_keys() -> None:
    forward, _ = passes(LLAMA, "torchtitan_2024")
    # float(), pow, mean, product with the root, cast, product with the weight.
    norm = (2 + 4) * D + 8 * D + 4 * D + 8 * D + (4 + 2) * D + 4 * D
    rotary = ((2 + 4) + 8 + (4 + 2)) * (D + K)
    repeated = 2 * (2 * K + 2 * D)
    activation = 2 * (2 * F + 3 * F)
    assert moved(forward) == pytest.approx(2 * norm + rotary + repeated + activation + ADDITIONS, rel=0.02)
