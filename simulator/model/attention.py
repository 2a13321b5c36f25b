"""The attention block of a layer, operation by operation.

Only counts (FLOPs, bytes, saved tensors), as in operation.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from simulator.model.adapters import Target
from simulator.model.context import attention_communications, attention_kernels
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.model.operation import Batch, Operation, Saved, block_input, columns, linear, norm_of, rows, soft_cap
from simulator.model.partition import Communication, ModelPartition
from simulator.model.shape import LatentAttention, Transformer

_FLOAT32: Final = 4  # bytes of an element [B]


def attention_block(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a layer's attention on a micro-batch, from queries, keys and values to the output
    projection, without norms and residual addition.
    """
    projected = _projected(model, batch) if model.latent is None else _latent_projected(model, model.latent, batch)
    core = _flash if batch.attention == "flash" else _standard
    attended = core(model, batch, "rotary" if model.positions == "rotary" else "qkv")
    width = model.attention_width if model.latent is None else model.num_heads * model.latent.value_dim
    # Latent attention's output has the values' width, not the queries'.
    output = Saved("attention output", batch.tokens * width // batch.cut.tensor * batch.itemsize, "attention")
    return (
        *projected,
        *attended,
        rows(
            "proj", model.hidden_size, width, batch, output, bias=model.output_bias, parts=(("o", model.hidden_size),)
        ),
    )


def _projected(model: Transformer, batch: Batch) -> Iterator[Operation]:
    """Yield the operations that make queries, keys and values of a micro-batch with a single matrix."""
    # Attention itself reads the activations' dtype.
    batch = batch.stream
    d, cut = model.hidden_size, batch.cut
    widths = model.attention_width + 2 * model.kv_width
    normed = block_input(model, batch, "norm1")
    # Fewer key heads than ranks: a rank's columns do not hold whole heads, so the output is gathered.
    gathers = widths if cut.gathers_queries(model) else 0
    parts: tuple[tuple[Target, int], ...] = (("q", model.attention_width), ("k", model.kv_width), ("v", model.kv_width))
    yield columns("qkv", widths, d, batch, normed, bias=model.attention_bias, gathers=gathers, parts=parts)
    # Rotary positions turn queries and keys; values stay unchanged.
    turned = model.attention_width // cut.tensor + cut.kv_heads(model) * model.head_dim
    if model.qk_norm != "none":
        # A norm over all heads has a statistic for the queries and a statistic for the keys.
        heads = 2 if model.qk_norm == "width" else model.num_heads // cut.tensor + cut.kv_heads(model)
        yield norm_of("query and key norm", "qkv", batch.tokens * turned, batch.tokens * heads, batch)
    if model.positions == "rotary":
        yield _rotary(batch.tokens * turned * batch.itemsize)


def _latent_projected(model: Transformer, latent: LatentAttention, batch: Batch) -> Iterator[Operation]:
    """Yield the operations of multi-head latent attention that make queries from a short vector, keys and values from
    another.

    For a token of DeepSeek-V3 (128 heads):

        input 7168 -> query down 1536 -> norm -> query up 128 x (128 + 64)
        input 7168 -> kv down 512 + 64 -> norm of the 512 -> kv up 128 x (128 + 128); the 64 carry the keys' positions
    """
    tokens, d, p, cut = batch.tokens_between, model.hidden_size, batch.itemsize, batch.cut
    normed = block_input(model, batch, "norm1")
    queries = ("query", latent.query_rank, 0, model.num_heads * latent.key_dim)
    if not latent.query_rank:
        yield columns("query", model.num_heads * latent.key_dim, d, batch, normed, bias=False)
    parts = (
        *([queries] if latent.query_rank else []),
        ("kv", latent.kv_rank, latent.rotary_dim, model.num_heads * (latent.plain_dim + latent.value_dim)),
    )
    for name, rank, beside, width in parts:
        # The small down matrices are whole on every rank: each rank computes the short vectors of its own tokens, and
        # gathers every rank's before the up matrix, which is cut by columns.
        down = linear(Matmul(f"{name} down", tokens, rank + beside, d), batch, normed, bias=False)
        yield replace(down, communications=_positions_of_all(batch.tokens * beside, cut))
        yield norm_of(f"{name} norm", f"{name} down", tokens * rank, tokens, batch)
        short = Saved(f"{name} norm output", tokens * rank * p, f"{name} norm")
        yield columns(f"{name} up", width, rank, batch, short, bias=False)
    # Queries have a rotary part per head; keys share a single rotary part.
    yield _rotary(batch.tokens * (model.num_heads // cut.tensor + 1) * latent.rotary_dim * p)


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


def _rotary(turned: int) -> Operation:
    """Return the operation that applies rotary position embeddings to `turned` bytes of queries and keys."""
    return Operation(
        "rotary",
        (Elementwise("rotary", turned, turned, fusible=True),),
        (Elementwise("rotary gradient", turned, turned, fusible=True),),
        output=turned,
    )


def _qkv(model: Transformer, batch: Batch, source: str) -> tuple[Saved, Saved, Saved]:
    """Return queries, keys and values as saved tensors; `source` names the operation that made queries and keys."""
    # Latent keys are as wide as queries, and every head has its own: sharing heads saves nothing.
    if model.latent is not None:
        each = batch.tokens * model.num_heads // batch.cut.tensor * batch.itemsize
        wide, narrow = each * model.latent.key_dim, each * model.latent.value_dim
        return Saved("queries", wide, source), Saved("keys", wide, source), Saved("values", narrow, "kv up")
    # Grouped queries: keys and values shrink to the key heads on this rank.
    kv = batch.tokens * batch.cut.kv_heads(model) * model.head_dim * batch.itemsize
    q = batch.tokens * model.attention_width // batch.cut.tensor * batch.itemsize
    return Saved("queries", q, source), Saved("keys", kv, source), Saved("values", kv, "qkv")


def _flash(model: Transformer, batch: Batch, source: str) -> list[Operation]:
    """Return flash attention on a rank's micro-batch: a kernel, or one for each step of a context-parallel ring."""
    cut = batch.cut
    heads = model.num_heads // cut.tensor
    width = model.head_dim if model.latent is None else model.latent.value_dim
    attended = batch.tokens * heads * width * batch.itemsize
    # A float32 number per row and head, instead of the scores.
    logsumexp = 4 * batch.tokens * heads
    # A rank has its Ulysses group's tokens, for a part of the heads.
    of_rank = Attention(
        "attention",
        batch.sequences,
        heads // cut.context.ulysses,
        cut.kv_heads(model) // cut.context.ulysses,
        batch.seq_len // cut.context.ring,
        model.head_dim,
        causal=model.causal,
        backward=False,
        window=model.window,
        chunked=model.chunked,
        capped=model.score_cap,
    )
    forward = attention_kernels(of_rank, cut.context)
    # Each forward step has a backward step over the same blocks.
    backward = tuple(replace(kernel, name="attention gradient", backward=True) for kernel in forward)
    return [
        Operation(
            "attention",
            forward,
            backward,
            (
                *_qkv(model, batch, source),
                Saved("attention output", attended, "attention"),
                Saved("log-sum-exp", logsumexp, "attention"),
            ),
            attended,
            communications=attention_communications(model, batch.tokens, cut, len(forward)),
        )
    ]


def _standard(model: Transformer, batch: Batch, source: str) -> list[Operation]:
    """Return the operations of attention with scores in HBM: scores, softmax, dropout, weighted values; nothing skipped
    for causality or a window. Eager attention has a softmax in float32, and a kernel that casts the softmax back.
    """
    # A score for each pair of positions, per sequence and head on this rank.
    elements = batch.sequences * model.num_heads // batch.cut.tensor * batch.seq_len**2
    size = elements * batch.itemsize
    queries, keys, values = _qkv(model, batch, source)
    eager = batch.attention == "eager" and batch.itemsize < _FLOAT32
    softmax, weights = _float32_softmax(elements, size) if eager else _softmax(size)
    operations = [_scores(model, batch, size, (queries, keys))]
    if model.score_cap:
        operations.append(soft_cap("score soft-cap", size, quadratic=True))
    operations += softmax
    if batch.dropout:
        # Values are weighted by the softmax after dropout: save this copy beside the softmax.
        weights = Saved("dropped softmax output", size, "attention dropout")
        operations.append(_attention_dropout(elements, size))
    return [*operations, _weighted_values(model, batch, (weights, values))]


def _softmax(size: int) -> tuple[list[Operation], Saved]:
    """Return the operation of a softmax of scores with `size` bytes by one kernel, and its output."""
    output = Saved("softmax output", size, "softmax")
    # The backward pass reads the softmax and its output's gradient.
    forward, backward = Elementwise("softmax", size, size), Elementwise("softmax gradient", 2 * size, size)
    return [Operation("softmax", (forward,), (backward,), (output,), size, quadratic=True)], output


def _float32_softmax(elements: int, size: int) -> tuple[list[Operation], Saved]:
    """Return the operations of a float32 softmax of `elements` scores with `size` bytes, and its narrow copy.

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
    return [softmax, cast], Saved("softmax copy", size, "softmax cast")


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
