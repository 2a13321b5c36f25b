"""Embedding, logits and cross entropy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.model.head import embedding_operations, head_operations, logits_memory
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.operation import Batch, Operation, saved_bytes
from simulator.model.shape import Transformer

GPT = Transformer("gpt", 2, 64, 4, 4, 16, 256, 1000, 128)
LLAMA = replace(GPT, norm="rmsnorm", gated=True, positions="rotary", tied=False)
BATCH = Batch(sequences=3, seq_len=50, itemsize=2)
TOKENS, D, V = 150, 64, 1000


def names(operations: tuple[Operation, ...]) -> list[str]:
    return [op.name for op in operations]


def traffic(operations: tuple[Operation, ...], itemsize: float) -> dict[str, float]:
    return {k.name: k.nbytes(itemsize) for op in operations for k in (*op.forward, *op.backward)}


def test_a_model_looks_up_tokens_and_positions_only_where_it_learns_them() -> None:
    assert names(embedding_operations(GPT, BATCH)) == ["token embedding", "position embedding"]
    assert names(embedding_operations(LLAMA, BATCH)) == ["token embedding"]
    assert names(embedding_operations(LLAMA, replace(BATCH, dropout=True))) == ["token embedding", "embedding dropout"]


def test_embedding_keeps_ids_and_a_mask_and_computes_nothing() -> None:
    operations = embedding_operations(GPT, replace(BATCH, dropout=True))
    assert saved_bytes(operations) == 8 * TOKENS + TOKENS * D
    assert all(k.flops == 0 for op in operations for k in (*op.forward, *op.backward))
    assert all(op.output == TOKENS * D * 2 for op in operations)


def test_the_gradient_of_a_token_table_is_as_large_as_the_table() -> None:
    moved = traffic(embedding_operations(LLAMA, BATCH), 2)
    assert moved["token embedding"] == 2 * TOKENS * D * 2 + 8 * TOKENS
    assert moved["token gradient fill"] == V * D * 2
    assert moved["token gradient"] == 3 * TOKENS * D * 2 + 8 * TOKENS
    assert "tied gradient add" not in moved
    assert traffic(embedding_operations(GPT, BATCH), 2)["tied gradient add"] == 3 * V * D * 2


def test_the_head_is_norm_logits_cast_and_cross_entropy() -> None:
    assert names(head_operations(GPT, BATCH)) == ["norm", "logits", "logits to float32", "cross entropy"]
    assert names(head_operations(GPT, replace(BATCH, itemsize=4))) == ["norm", "logits", "cross entropy"]


def test_a_tied_head_multiplies_like_one_of_its_own() -> None:
    assert head_operations(replace(GPT, tied=False), BATCH) == head_operations(GPT, BATCH)


def test_logits_take_a_matmul_forward_and_two_backward() -> None:
    logits = head_operations(LLAMA, BATCH)[1]
    (forward,) = logits.forward
    assert isinstance(forward, Matmul)
    assert forward.flops == 2 * TOKENS * V * D
    assert [k.flops for k in logits.backward] == [forward.flops, forward.flops]
    assert logits.output == TOKENS * V * 2


@pytest.mark.parametrize(("model", "means"), [(GPT, 2), (LLAMA, 1)])
def test_the_head_keeps_both_sides_of_its_norm_log_probabilities_and_labels(model: Transformer, means: int) -> None:
    norm = 2 * TOKENS * D * 2 + means * TOKENS * 4
    assert saved_bytes(head_operations(model, BATCH)) == norm + 4 * TOKENS * V + 8 * TOKENS


def test_logits_are_held_in_two_four_and_four_bytes() -> None:
    n = TOKENS * V
    memory = logits_memory(GPT, BATCH)
    assert (memory.logits, memory.float32_copy, memory.log_probabilities) == (2 * n, 4 * n, 4 * n)


def test_without_a_cast_there_is_no_copy() -> None:
    n = TOKENS * V
    memory = logits_memory(GPT, replace(BATCH, itemsize=4))
    assert (memory.logits, memory.float32_copy, memory.log_probabilities) == (4 * n, 0, 4 * n)
    operations = head_operations(GPT, replace(BATCH, itemsize=4))
    assert traffic(operations, 4)["log-softmax"] == 8 * n


def test_softmax_and_cast_move_their_tensors_once() -> None:
    n = TOKENS * V
    moved = traffic(head_operations(LLAMA, BATCH), 2)
    assert moved["logits to float32"] == moved["logits gradient cast"] == 6 * n
    assert moved["log-softmax"] == 8 * n
    assert moved["loss gradient"] == 4 * n + 8 * TOKENS
    assert moved["log-softmax gradient"] == 12 * n


def test_a_compiler_merges_casts_but_not_softmax() -> None:
    kernels = [k for op in head_operations(LLAMA, BATCH) for k in (*op.forward, *op.backward)]
    fusible = {k.name for k in kernels if isinstance(k, Elementwise) and k.fusible}
    assert fusible == {"norm", "norm gradient", "logits to float32", "logits gradient cast", "loss gradient"}
