"""One transformer layer, operation by operation: kernels forward and backward, and what is kept in between.

Rule: counts of one micro-batch; knows no GPU, no sharding, no schedule. After Korthikanti et al., "Reducing activation
recomputation in large transformer models", MLSys 2023: with dropout and scores in HBM a layer keeps 16 b s d p +
2 b s^2 H p + 2 b s d + b s^2 H bytes, and the norms' statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.model.shape import Transformer


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes through a layer at once, and how.

    Attributes
    ----------
    sequences, seq_len : int
        Of a micro-batch on one rank.
    itemsize : int
        Bytes of an activation [B].
    attention : {"flash", "standard"}
        Scores kept on chip, or written to HBM.
    dropout : bool
    statistics_itemsize : int
        Of the norms' means and deviations: 4 on GPUs [B].
    """

    sequences: int
    seq_len: int
    itemsize: int = 2
    attention: Literal["flash", "standard"] = "flash"
    dropout: bool = False
    statistics_itemsize: int = 4

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch."""
        return self.sequences * self.seq_len


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that the backward pass needs.

    Attributes
    ----------
    name : str
    nbytes : int
        [B]
    source : str
        The operation whose output it is, or "input" for the layer's own.
    """

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a layer.

    Attributes
    ----------
    name : str
    forward, backward : tuple of Kernel
    saved : tuple of Saved
        What it keeps for its backward pass.
    output : int
        Bytes of its output [B].
    quadratic : bool
        Whether its size grows with the square of the sequence (scores, softmax, their dropout).
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[Saved, ...] = ()
    output: int = 0
    quadratic: bool = False


def layer_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """A layer's operations in the order of the forward pass."""
    return (*_attention_block(model, batch), *_mlp_block(model, batch))


def saved_bytes(operations: tuple[Operation, ...]) -> int:
    """Bytes that a layer keeps for its backward pass [B]; a tensor that several operations need counts once."""
    return sum({saved.name: saved.nbytes for op in operations for saved in op.saved}.values())


def _linear(
    name: str, tokens: int, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool, groups: int = 1
) -> Operation:
    """A matrix: one matmul forward, two backward (input's and weight's gradient), the bias's gradient a reduction."""
    forward = (Matmul(name, tokens, n, k, groups),)
    backward: tuple[Kernel, ...] = (
        Matmul(f"{name} input gradient", tokens, k, n, groups),
        Matmul(f"{name} weight gradient", n, k, tokens, groups),
    )
    if bias:
        backward += (Elementwise(f"{name} bias gradient", tokens * groups * n * batch.itemsize, n * batch.itemsize),)
    return Operation(name, forward, backward, (saved,), tokens * groups * n * batch.itemsize)


def _norm(name: str, source: str, model: Transformer, batch: Batch) -> Operation:
    size = batch.tokens * model.hidden_size * batch.itemsize
    means = 2 if model.norm == "layernorm" else 1
    statistics = means * batch.tokens * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def _residual(name: str, model: Transformer, batch: Batch) -> Operation:
    """Dropout, where there is any, and the addition to the residual stream."""
    elements = batch.tokens * model.hidden_size
    size = elements * batch.itemsize
    forward = [Elementwise(f"{name} add", 2 * size, size, fusible=True)]
    backward: list[Kernel] = []
    saved: tuple[Saved, ...] = ()
    if batch.dropout:
        forward.insert(0, Elementwise(f"{name} dropout", size, size + elements, fusible=True))
        backward.append(Elementwise(f"{name} dropout gradient", size + elements, size, fusible=True))
        saved = (Saved(f"{name} mask", elements, name),)
    # The gradient of a sum is read and added where the residual stream and the block branch.
    backward.append(Elementwise(f"{name} gradient add", 2 * size, size, fusible=True))
    return Operation(name, tuple(forward), tuple(backward), saved, size)


def _attention_block(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    tokens, p, d = batch.tokens, batch.itemsize, model.hidden_size
    normed = tokens * d * p
    operations = [
        _norm("norm1", "input", model, batch),
        _linear(
            "qkv", tokens, model.attention_width + 2 * model.kv_width, d, batch,
            Saved("norm1 output", normed, "norm1"), bias=model.attention_bias,
        ),
    ]  # fmt: skip
    if model.positions == "rotary":
        turned = tokens * (model.attention_width + model.kv_width) * p
        operations.append(
            Operation(
                "rotary",
                (Elementwise("rotary", turned, turned, fusible=True),),
                (Elementwise("rotary gradient", turned, turned, fusible=True),),
                output=turned,
            )
        )
    core = _flash if batch.attention == "flash" else _standard
    operations += core(model, batch, "rotary" if model.positions == "rotary" else "qkv")
    attended = tokens * model.attention_width * p
    operations.append(
        _linear(
            "proj", tokens, d, model.attention_width, batch,
            Saved("attention output", attended, "attention"), bias=model.output_bias,
        )
    )  # fmt: skip
    return (*operations, _residual("residual1", model, batch))


def _qkv(model: Transformer, batch: Batch, source: str) -> tuple[Saved, Saved, Saved]:
    kv = batch.tokens * model.kv_width * batch.itemsize
    q = batch.tokens * model.attention_width * batch.itemsize
    return Saved("queries", q, source), Saved("keys", kv, source), Saved("values", kv, "qkv")


def _flash(model: Transformer, batch: Batch, source: str) -> list[Operation]:
    sizes = (batch.sequences, model.num_heads, model.num_kv_heads, batch.seq_len, model.head_dim)
    attended = batch.tokens * model.attention_width * batch.itemsize
    logsumexp = 4 * batch.sequences * model.num_heads * batch.seq_len
    return [
        Operation(
            "attention",
            (Attention("attention", *sizes, causal=True, backward=False),),
            (Attention("attention gradient", *sizes, causal=True, backward=True),),
            (
                *_qkv(model, batch, source),
                Saved("attention output", attended, "attention"),
                Saved("log-sum-exp", logsumexp, "attention"),
            ),
            attended,
        )
    ]


def _standard(model: Transformer, batch: Batch, source: str) -> list[Operation]:
    """Scores, softmax, dropout, values: each through HBM, nothing skipped for causality."""
    elements = batch.sequences * model.num_heads * batch.seq_len**2
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
    s, hd, pairs = batch.seq_len, model.head_dim, batch.sequences * model.num_heads
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
    s, hd, pairs = batch.seq_len, model.head_dim, batch.sequences * model.num_heads
    return Operation(
        "attention",
        (Matmul("attention", s, hd, s, pairs),),
        (Matmul("weight gradient", s, s, hd, pairs), Matmul("value gradient", s, hd, s, pairs)),
        saved,
        batch.tokens * model.attention_width * batch.itemsize,
    )


def _mlp_block(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    d, f, p = model.hidden_size, model.ffn_size, batch.itemsize
    groups = max(1, model.num_experts)
    # Each expert gets its even share of the tokens' choices.
    tokens = batch.tokens * max(1, model.active_experts) // groups
    wide = 2 * f if model.gated else f
    normed = batch.tokens * d * p
    routed = tokens * groups * d * p
    operations = [_norm("norm2", "residual1", model, batch)]
    source = Saved("norm2 output", normed, "norm2")
    if model.num_experts:
        operations += [_router(model, batch), _shuffle("dispatch", normed, routed)]
        source = Saved("dispatched tokens", routed, "dispatch")
    before, after = tokens * groups * wide * p, tokens * groups * f * p
    operations += [
        _linear("up", tokens, wide, d, batch, source, bias=model.mlp_bias, groups=groups),
        Operation(
            "activation",
            (Elementwise("activation", before, after, fusible=True),),
            (Elementwise("activation gradient", before + after, before, fusible=True),),
            (Saved("activation input", before, "up"),),
            after,
        ),
        _linear(
            "down", tokens, d, f, batch, Saved("activation output", after, "activation"),
            bias=model.mlp_bias, groups=groups,
        ),
    ]  # fmt: skip
    if model.num_experts:
        operations.append(_shuffle("combine", routed, normed, Saved("expert outputs", routed, "down")))
    return (*operations, _residual("residual2", model, batch))


def _router(model: Transformer, batch: Batch) -> Operation:
    tokens, experts, d = batch.tokens, model.num_experts, model.hidden_size
    size = tokens * experts * batch.itemsize
    return Operation(
        "router",
        (Matmul("router", tokens, experts, d), Elementwise("routing softmax", size, size)),
        (
            Matmul("router input gradient", tokens, d, experts),
            Matmul("router weight gradient", experts, d, tokens),
            Elementwise("routing softmax gradient", 2 * size, size),
        ),
        (Saved("norm2 output", tokens * d * batch.itemsize, "norm2"), Saved("routing weights", size, "router")),
        size,
    )


def _shuffle(name: str, read: int, written: int, *saved: Saved) -> Operation:
    """Tokens put in the order of their experts, or back; weighed on the way back, so that outputs are kept."""
    back = Elementwise(f"{name} gradient", written + sum(s.nbytes for s in saved), read)
    return Operation(name, (Elementwise(name, read, written),), (back,), saved, written)
