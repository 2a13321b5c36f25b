"""The attention block of a layer, operation by operation.

Only counts (FLOPs, bytes, saved tensors), as in operation.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from simulator.model.context import attention_communications, attention_kernels
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.model.operation import Batch, Operation, Saved, columns, linear, rows, soft_cap
from simulator.model.partition import Communication, ModelPartition
from simulator.model.programs.bare import Heads, Parts, saved_as
from simulator.model.programs.tape import Array
from simulator.model.shape import LatentAttention, Transformer

_FLOAT32: Final = 4  # bytes of an element [B]


def attention_block(parts: Parts, hidden: Array) -> Array:
    """Return the output of a layer's attention, from queries, keys and values to the output projection, without norms
    and residual addition.
    """
    model, batch = parts.model, parts.batch
    heads = _projected(parts, hidden) if model.latent is None else _latent_projected(parts, hidden, model.latent)
    attended = (_flash if batch.attention == "flash" else _standard)(parts, heads)
    del heads
    # Latent attention's output has the values' width, not the queries'.
    width = model.attention_width if model.latent is None else model.num_heads * model.latent.value_dim
    output = rows(
        "proj", model.hidden_size, width, batch, saved_as(attended), bias=model.output_bias,
        parts=(("o", model.hidden_size),),
    )  # fmt: skip
    return parts.run(output, [attended], [parts.between(model.hidden_size)], batch)[0]


def _projected(parts: Parts, hidden: Array) -> Heads:
    """Return queries, keys and values made by a single matrix."""
    # Attention itself reads the activations' dtype.
    model, batch = parts.model, parts.batch.stream
    cut = batch.cut
    queries, keys = model.attention_width // cut.tensor, cut.kv_heads(model) * model.head_dim
    heads = parts.queries_keys_values(hidden)
    del hidden
    if model.qk_norm != "none":
        # A norm over all heads has a statistic for the queries and a statistic for the keys.
        count = 2 if model.qk_norm == "width" else model.num_heads // cut.tensor + cut.kv_heads(model)
        heads = Heads(*parts.qk_norm(heads.queries, heads.keys, batch.tokens * count), heads.values)
    if model.positions == "rotary":
        # Rotary positions turn queries and keys; values stay unchanged.
        turned = batch.tokens * (queries + keys) * batch.itemsize
        heads = Heads(*parts.rotary(heads.queries, heads.keys, turned), heads.values)
    return parts.attended(Heads(*map(parts.narrowed, (heads.queries, heads.keys, heads.values))))


def _latent_projected(parts: Parts, hidden: Array, latent: LatentAttention) -> Heads:
    """Return queries made from a short vector, keys and values from another, in multi-head latent attention.

    For a token of DeepSeek-V3 (128 heads):

        input 7168 -> query down 1536 -> norm -> query up 128 x (128 + 64)
        input 7168 -> kv down 512 + 64 -> norm of the 512 -> kv up 128 x (128 + 128); the 64 carry the keys' positions
    """
    model, batch = parts.model, parts.batch
    heads = model.num_heads // batch.cut.tensor
    shape = parts.inside(heads * latent.key_dim)
    if latent.query_rank:
        (queries,) = _short(parts, "query", hidden, latent.query_rank, 0, [shape])
    else:
        product = columns(
            "query", model.num_heads * latent.key_dim, model.hidden_size, batch, saved_as(hidden), bias=False
        )
        (queries,) = parts.run(product, [hidden], [shape], batch)
    plain, values = (parts.inside(heads * width) for width in (latent.plain_dim, latent.value_dim))
    keys, value = _short(parts, "kv", hidden, latent.kv_rank, latent.rotary_dim, [plain, values])
    # Queries have a rotary part per head; keys share a single rotary part, and are put together with it.
    turned = batch.tokens * (heads + 1) * latent.rotary_dim * batch.itemsize
    return Heads(*parts.latent_rotary(queries, keys, turned, shape), value)


def _short(
    parts: Parts, name: str, hidden: Array, rank: int, beside: int, shapes: list[tuple[int, ...]]
) -> list[Array]:
    """Return arrays with these shapes, made from a normed short vector with `rank` elements of each token; `beside` is
    the width of what the down matrix makes beside it.
    """
    model, batch = parts.model, parts.batch
    tokens = batch.tokens_between
    # The small down matrices are whole on every rank: each rank computes the short vectors of its own tokens, and
    # gathers every rank's before the up matrix, which is cut by columns.
    product = Matmul(f"{name} down", tokens, rank + beside, model.hidden_size)
    down = linear(product, batch, saved_as(hidden), bias=False)
    down = replace(down, communications=_positions_of_all(batch.tokens * beside, batch.cut))
    short = parts.run(down, [hidden], [parts.between(rank), *([parts.between(beside)] if beside else [])], batch)[0]
    normed = parts.short_norm(f"{name} norm", short)
    del short, hidden
    # Widths on all ranks together.
    width = sum(shape[-1] for shape in shapes) * batch.cut.tensor
    up = columns(f"{name} up", width, rank, batch, saved_as(normed), bias=False)
    return parts.run(up, [normed], shapes, batch)


def _positions_of_all(elements: int, cut: ModelPartition) -> tuple[Communication, ...]:
    """Return the exchanges for the keys' rotary part (`elements` elements) if tensor-parallel ranks cut the sequence;
    otherwise none.

    After NVIDIA/Megatron-LM, megatron/core/transformer/multi_latent_attention.py.
    """
    if not elements or cut.along_sequence == 1:
        return ()
    return (
        Communication("gather keys' positions", "all_gather", elements, False, 1, 1),
        Communication("scatter keys' positions gradient", "reduce_scatter", elements, True, 0, 0),
    )


def _flash(parts: Parts, attended: Heads) -> Array:
    """Return the output of flash attention on a rank's micro-batch: a kernel, or one for each step of a
    context-parallel ring.
    """
    model, batch = parts.model, parts.batch
    cut = batch.cut
    heads = model.num_heads // cut.tensor
    width = model.head_dim if model.latent is None else model.latent.value_dim
    # A rank has its Ulysses group's tokens, for a part of the heads.
    of_rank = Attention(
        "attention",
        batch.sequences,
        heads // cut.context.ulysses,
        parts.kv_heads // cut.context.ulysses,
        batch.seq_len // cut.context.ring,
        model.head_dim,
        causal=model.causal,
        backward=False,
        window=model.window,
        chunked=model.chunked,
        capped=model.score_cap,
        # Context-parallel ranks have an equal part of each document (Transformer Engine, `thd` format).
        documents=tuple(max(1, tokens // cut.context.ring) for tokens in batch.documents),
    )
    forward = attention_kernels(of_rank, cut.context)
    # Each forward step has a backward step over the same blocks.
    backward = tuple(replace(kernel, name="attention gradient", backward=True) for kernel in forward)
    inputs = {"queries": attended.queries, "keys": attended.keys, "values": attended.values}
    size = batch.tokens * heads * width * batch.itemsize
    operation = Operation(
        "attention",
        forward,
        backward,
        (
            *(saved_as(array, name) for name, array in inputs.items()),
            Saved("attention output", size, "attention"),
            # A float32 number per row and head, instead of the scores.
            Saved("log-sum-exp", 4 * batch.tokens * heads, "attention"),
        ),
        size,
        communications=attention_communications(model, batch.tokens, cut, len(forward)),
    )
    return parts.run(operation, list(inputs.values()), [parts.inside(heads * width)], batch)[0]


def _standard(parts: Parts, attended: Heads) -> Array:
    """Return the output of attention with scores in HBM: scores, softmax, dropout, weighted values; nothing skipped
    for causality or a window. Eager attention has a softmax in float32, and a kernel that casts the softmax back.
    """
    model, batch = parts.model, parts.batch
    # A score for each pair of positions, per sequence and head on this rank.
    shape = batch.sequences, model.num_heads // batch.cut.tensor * batch.seq_len, batch.seq_len
    elements = prod(shape)
    size = elements * batch.itemsize
    saved = saved_as(attended.queries, "queries"), saved_as(attended.keys, "keys")
    (weights,) = parts.run(_scores(model, batch, size, saved), [attended.queries, attended.keys], [shape], batch)
    if model.score_cap:
        (weights,) = parts.run(soft_cap("score soft-cap", size, quadratic=True), [weights], [shape], batch)
    if batch.attention == "eager" and batch.itemsize < _FLOAT32:
        for operation, of_result in zip(
            _float32_softmax(elements, size), (replace(batch, itemsize=_FLOAT32), batch), strict=True
        ):
            (weights,) = parts.run(operation, [weights], [shape], of_result)
    else:
        (weights,) = parts.run(_softmax(size), [weights], [shape], batch)
    if batch.dropout:
        # Values are weighted by the softmax after dropout: save this copy beside the softmax.
        (weights,) = parts.run(_attention_dropout(elements, size), [weights], [shape], batch)
    weighted = _weighted_values(model, batch, (saved_as(weights), saved_as(attended.values, "values")))
    width = model.attention_width // batch.cut.tensor
    return parts.run(weighted, [weights, attended.values], [parts.inside(width)], batch)[0]


def _softmax(size: int) -> Operation:
    """Return the operation of a softmax of scores with `size` bytes by one kernel."""
    # The backward pass reads the softmax and its output's gradient.
    forward, backward = Elementwise("softmax", size, size), Elementwise("softmax gradient", 2 * size, size)
    output = Saved("softmax output", size, "softmax")
    return Operation("softmax", (forward,), (backward,), (output,), size, quadratic=True)


def _float32_softmax(elements: int, size: int) -> tuple[Operation, Operation]:
    """Return the operations of a float32 softmax of `elements` scores with `size` bytes, and of its narrow copy.

    Transformers' eager attention (`softmax(..., dtype=torch.float32).to(query.dtype)`), and Megatron-LM's softmax
    without fused kernels (core/fusions/fused_softmax.py, `forward_torch_softmax`): autograd saves the float32 output,
    and without dropout the matmul with the values saves the copy.
    """
    wide = _FLOAT32 * elements
    softmax = Operation(
        "softmax",
        (Elementwise("softmax", size, wide),),
        (Elementwise("softmax gradient", 2 * wide, size),),
        (Saved("softmax output", wide, "softmax"),),
        wide,
        quadratic=True,
    )
    cast = Operation(
        "softmax cast",
        (Elementwise("softmax cast", wide, size, fusible=True),),
        (Elementwise("softmax cast gradient", size, wide, fusible=True),),
        output=size,
        quadratic=True,
    )
    return softmax, cast


def _scores(model: Transformer, batch: Batch, size: int, saved: tuple[Saved, ...]) -> Operation:
    """Return the matmul Q K^T with causal mask; the scores take `size` bytes, `saved` are queries and keys."""
    # Batched matmuls: one per sequence and head on this rank.
    s, hd, pairs = batch.seq_len, model.head_dim, batch.sequences * model.num_heads // batch.cut.tensor
    return Operation(
        "scores",
        (Matmul("scores", s, s, hd, pairs), Elementwise("mask", size, size, fusible=True)),
        (Matmul("query gradient", s, hd, s, pairs), Matmul("key gradient", s, hd, s, pairs)),
        saved,
        size,
        quadratic=True,
    )


def _attention_dropout(elements: int, size: int) -> Operation:
    """Return dropout of the softmax: `elements` numbers in `size` bytes, and a mask of 1 byte per element."""
    return Operation(
        "attention dropout",
        (Elementwise("attention dropout", size, size + elements, fusible=True),),
        (Elementwise("attention dropout gradient", size + elements, size, fusible=True),),
        (Saved("attention mask", elements, "attention dropout"),),
        size,
        quadratic=True,
    )


def _weighted_values(model: Transformer, batch: Batch, saved: tuple[Saved, ...]) -> Operation:
    """Return the operation that multiplies softmax and values; `saved` are these two tensors."""
    s, hd, pairs = batch.seq_len, model.head_dim, batch.sequences * model.num_heads // batch.cut.tensor
    return Operation(
        "attention",
        (Matmul("attention", s, hd, s, pairs),),
        (Matmul("weight gradient", s, s, hd, pairs), Matmul("value gradient", s, hd, s, pairs)),
        saved,
        batch.tokens * model.attention_width // batch.cut.tensor * batch.itemsize,
    )
