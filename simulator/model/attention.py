"""The attention block of a layer, operation by operation.

Rule: counts only, as in operation.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.context import attention_communications, attention_kernels
from simulator.model.cut import Communication, Cut
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.model.operation import Batch, Operation, Saved, columns, linear, norm, norm_of, residual, rows
from simulator.model.shape import LatentAttention, Transformer


def attention_block(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    projected = _projected(model, batch) if model.latent is None else _latent_projected(model, model.latent, batch)
    core = _flash if batch.attention == "flash" else _standard
    attended = core(model, batch, "rotary" if model.positions == "rotary" else "qkv")
    width = model.attention_width if model.latent is None else model.num_heads * model.latent.value_dim
    output = Saved("attention output", batch.tokens * width // batch.cut.tensor * batch.itemsize, "attention")
    return (
        norm("norm1", "input", model, batch),
        *projected,
        *attended,
        rows("proj", model.hidden_size, width, batch, output, bias=model.output_bias),
        residual("residual1", model, batch),
    )


def _projected(model: Transformer, batch: Batch) -> Iterator[Operation]:
    """Queries, keys and values of one matrix."""
    d, cut = model.hidden_size, batch.cut
    widths = model.attention_width + 2 * model.kv_width
    normed = Saved("norm1 output", batch.tokens_between * d * batch.itemsize, "norm1")
    gathers = widths if cut.gathers_queries(model) else 0
    yield columns("qkv", widths, d, batch, normed, bias=model.attention_bias, gathers=gathers)
    turned = model.attention_width // cut.tensor + cut.kv_heads(model) * model.head_dim
    if model.qk_norm:
        heads = model.num_heads // cut.tensor + cut.kv_heads(model)
        yield norm_of("query and key norm", "qkv", batch.tokens * turned, batch.tokens * heads, batch)
    if model.positions == "rotary":
        yield _rotary(batch.tokens * turned * batch.itemsize)


def _latent_projected(model: Transformer, latent: LatentAttention, batch: Batch) -> Iterator[Operation]:
    """Queries from one short vector, keys and values from another; the keys' part with positions from the input."""
    tokens, d, p, cut = batch.tokens_between, model.hidden_size, batch.itemsize, batch.cut
    normed = Saved("norm1 output", tokens * d * p, "norm1")
    parts = (
        ("query", latent.query_rank, 0, model.num_heads * latent.key_dim),
        ("kv", latent.kv_rank, latent.rotary_dim, model.num_heads * (latent.plain_dim + latent.value_dim)),
    )
    for name, rank, beside, width in parts:
        # Every rank makes the short vectors of its own tokens, and gathers those of all before the matrix behind.
        down = linear(f"{name} down", tokens, rank + beside, d, batch, normed, bias=False)
        yield replace(down, communications=_positions_of_all(batch.tokens * beside, cut))
        yield norm_of(f"{name} norm", f"{name} down", tokens * rank, tokens, batch)
        short = Saved(f"{name} norm output", tokens * rank * p, f"{name} norm")
        yield columns(f"{name} up", width, rank, batch, short, bias=False)
    yield _rotary(batch.tokens * (model.num_heads // cut.tensor + 1) * latent.rotary_dim * p)


def _positions_of_all(elements: int, cut: Cut) -> tuple[Communication, ...]:
    """The part of a key that tells positions is every head's: where sequences are cut all ranks gather it.

    After NVIDIA/Megatron-LM, megatron/core/transformer/multi_latent_attention.py.
    """
    if not elements or cut.along_sequence == 1:
        return ()
    return (
        Communication("gather keys' positions", "all_gather", elements, False, 1, 1),
        Communication("scatter keys' positions gradient", "reduce_scatter", elements, True, 0, 0),
    )


def _rotary(turned: int) -> Operation:
    """So many bytes turned by their positions."""
    return Operation(
        "rotary",
        (Elementwise("rotary", turned, turned, fusible=True),),
        (Elementwise("rotary gradient", turned, turned, fusible=True),),
        output=turned,
    )


def _qkv(model: Transformer, batch: Batch, source: str) -> tuple[Saved, Saved, Saved]:
    if model.latent is not None:
        each = batch.tokens * model.num_heads // batch.cut.tensor * batch.itemsize
        wide, narrow = each * model.latent.key_dim, each * model.latent.value_dim
        return Saved("queries", wide, source), Saved("keys", wide, source), Saved("values", narrow, "kv up")
    kv = batch.tokens * batch.cut.kv_heads(model) * model.head_dim * batch.itemsize
    q = batch.tokens * model.attention_width // batch.cut.tensor * batch.itemsize
    return Saved("queries", q, source), Saved("keys", kv, source), Saved("values", kv, "qkv")


def _flash(model: Transformer, batch: Batch, source: str) -> list[Operation]:
    cut = batch.cut
    heads = model.num_heads // cut.tensor
    width = model.head_dim if model.latent is None else model.latent.value_dim
    attended = batch.tokens * heads * width * batch.itemsize
    logsumexp = 4 * batch.tokens * heads
    # A rank has all tokens of its Ulysses group, of some of the heads.
    own = Attention(
        "attention",
        batch.sequences,
        heads // cut.context.ulysses,
        cut.kv_heads(model) // cut.context.ulysses,
        batch.seq_len // cut.context.ring,
        model.head_dim,
        causal=True,
        backward=False,
    )
    forward = attention_kernels(own, cut.context)
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
    """Scores, softmax, dropout, values: each through HBM, nothing skipped for causality."""
    elements = batch.sequences * model.num_heads // batch.cut.tensor * batch.seq_len**2
    size = elements * batch.itemsize
    queries, keys, values = _qkv(model, batch, source)
    weights = Saved("softmax output", size, "softmax")
    softmax = Operation(
        "softmax",
        (Elementwise("softmax", size, size),),
        (Elementwise("softmax gradient", 2 * size, size),),
        (weights,),
        size,
        quadratic=True,
    )
    operations = [_scores(model, batch, size, (queries, keys)), softmax]
    if batch.dropout:
        # Values are weighed by what dropout left, so that is kept besides the softmax.
        weights = Saved("dropped softmax output", size, "attention dropout")
        operations.append(_attention_dropout(elements, size))
    return [*operations, _weighted_values(model, batch, (weights, values))]


def _scores(model: Transformer, batch: Batch, size: int, saved: tuple[Saved, ...]) -> Operation:
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
    """The mask takes a byte an element."""
    return Operation(
        "attention dropout",
        (Elementwise("attention dropout", size, size + elements, fusible=True),),
        (Elementwise("attention dropout gradient", size + elements, size, fusible=True),),
        (Saved("attention mask", elements, "attention dropout"),),
        size,
        quadratic=True,
    )


def _weighted_values(model: Transformer, batch: Batch, saved: tuple[Saved, ...]) -> Operation:
    s, hd, pairs = batch.seq_len, model.head_dim, batch.sequences * model.num_heads // batch.cut.tensor
    return Operation(
        "attention",
        (Matmul("attention", s, hd, s, pairs),),
        (Matmul("weight gradient", s, s, hd, pairs), Matmul("value gradient", s, hd, s, pairs)),
        saved,
        batch.tokens * model.attention_width // batch.cut.tensor * batch.itemsize,
    )
