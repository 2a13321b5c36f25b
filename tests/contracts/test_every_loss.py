"""Contract of every implementation of the loss: it gets the logits' gradient, and moves and holds what it declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, get_args

import pytest

from simulator.basics.registry import names
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.load import load_model
from simulator.model.operation import Batch, LossKernels, saved_bytes
from simulator.step.framework import load_framework
from simulator.step.kernels.losses import (
    LOSSES,
    backward_bytes,
    forward_bytes,
    freed_early,
    loss_operations,
)
from simulator.step.precision import Precision
from simulator.step.spec import TrainingStep, bare_step

LLAMA: Final = load_model("llama3_8b", 1024)
TOKENS, WIDTH, WORDS = 1024, 4096, 128256
BATCH: Final = Batch(1, TOKENS)
# A logit's arrays in bfloat16 and float32 [B].
N, W = 2 * TOKENS * WORDS, 4 * TOKENS * WORDS
# Traffic of the kernels over logits in the forward and the backward pass, and arrays beside the saved one at the end of
# the forward pass and during the backward pass [B], by hand.
EXPECTED: Final[dict[LossKernels, tuple[int, int, int, int]]] = {
    # Cast; log-softmax reads and writes. Zeros; two arrays read and one written; cast.
    "ideal": ((N + W) + 2 * W, W + 3 * W + (W + N), 0, 0),
    # Log-softmax reads three times; its gradient reads the incoming gradient twice.
    "separate": ((N + W) + 4 * W, W + 4 * W + (W + N), 0, 2 * W),
    "narrow": (4 * N, N + 4 * N, 0, 2 * N),
    # Cast, maximum, difference, exponentials, sum, quotient. Product, cast.
    "vocab_parallel": ((N + W) + W + 2 * W + 2 * W + W + 2 * W, 2 * W + (W + N), 0, N),
    "sharded": ((N + W) + W + 2 * W + 2 * W + W + 2 * W, 2 * W + (W + N), N + W, N),
    # Cast and maximum, exponentials and their copy, quotient. Copy; product written twice.
    "native": ((N + W) + 2 * W + 2 * W + 2 * W, 2 * W + (2 * W + N), 0, W + N),
    "fused": (N, 2 * N, 0, 0),
    "in_place": (3 * N, 0, 0, 0),
}


def step(loss: LossKernels, **facts: object) -> TrainingStep:
    return bare_step(LLAMA, TOKENS, 1, loss=loss, **facts)


def moved(given: TrainingStep, phase: str, batch: Batch = BATCH) -> float:
    """Bytes of the kernels behind the norm and the logits, without numbers per token."""
    kernels = [kernel for op in loss_operations(given, batch)[2:] for kernel in getattr(op, phase)]
    return sum(kernel.read + kernel.written for kernel in kernels if isinstance(kernel, Elementwise))


def test_every_implementation_is_a_word_of_the_key_and_counted_here() -> None:
    assert set(LOSSES) == set(get_args(LossKernels)) == {*EXPECTED, "chunked"}


@pytest.mark.parametrize("loss", EXPECTED)
def test_kernels_move_the_arrays_that_the_librarys_list_has(loss: LossKernels) -> None:
    forward, backward, *_ = EXPECTED[loss]
    # The ideal kernels read the labels, too.
    assert moved(step(loss), "forward") == forward
    assert moved(step(loss), "backward") == pytest.approx(backward, abs=8 * TOKENS)


@pytest.mark.parametrize("loss", EXPECTED)
def test_arrays_beside_the_saved_one(loss: LossKernels) -> None:
    *_, forward, backward = EXPECTED[loss]
    assert (forward_bytes(step(loss), BATCH), backward_bytes(step(loss), BATCH)) == (forward, backward)
    saved = W if loss not in ("narrow", "fused", "in_place") else N
    assert saved_bytes(loss_operations(step(loss), BATCH)[2:]) == saved + 8 * TOKENS
    # The gradient of the logits alone outlives the loss.
    assert freed_early(step(loss), BATCH) == saved + backward - N


@pytest.mark.parametrize("loss", LOSSES)
def test_the_matmuls_are_those_of_the_head(loss: LossKernels) -> None:
    kernels = [kernel for op in loss_operations(step(loss), BATCH) for kernel in (*op.forward, *op.backward)]
    assert sum(one.flops for one in kernels if isinstance(one, Matmul)) == 3 * 2 * TOKENS * WIDTH * WORDS


@pytest.mark.parametrize("loss", LOSSES)
def test_logits_in_float32_are_never_cast(loss: LossKernels) -> None:
    wide = step(loss, precision=Precision(params="float32").resolved())
    batch = replace(BATCH, itemsize=4)
    assert not [op.name for op in loss_operations(wide, batch) if "float32" in op.name]
    if loss in ("vocab_parallel", "sharded"):
        assert backward_bytes(wide, batch) == 0


@pytest.mark.parametrize(("words", "reads"), [(16384, 1), (32768, 3)])
def test_a_short_row_is_read_once(words: int, reads: int) -> None:
    """Rows of 64 KiB of float32 stay on the chip between the passes of a kernel, and longer rows do not."""
    model = replace(LLAMA, vocab_size=words)
    loss = loss_operations(replace(step("separate"), model=model), BATCH)[-1]
    (kernel,) = loss.forward
    assert isinstance(kernel, Elementwise)
    assert (kernel.read, kernel.written) == (reads * 4 * TOKENS * words, 4 * TOKENS * words)


@pytest.mark.parametrize("framework", names("framework"))
def test_a_framework_names_its_implementation_and_a_step_may_choose_another(framework: str) -> None:
    found = load_framework(framework)
    assert found.loss in LOSSES
    auto = replace(bare_step(LLAMA, TOKENS, 1), framework=found)
    assert auto.loss_kernels == found.loss
    assert replace(step("chunked"), framework=found).loss_kernels == "chunked"
