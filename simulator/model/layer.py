"""One transformer layer, operation by operation: kernels forward and backward, and what is kept in between.

Rule: counts of one micro-batch; knows no GPU, no sharding, no schedule. After Korthikanti et al., "Reducing activation
recomputation in large transformer models", MLSys 2023: with dropout and scores in HBM a layer keeps 16 b s d p +
2 b s^2 H p + 2 b s d + b s^2 H bytes, and the norms' statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from simulator.model.context import attention_communications, attention_kernels
from simulator.model.cut import ONE_PLACE, WHOLE, Communication, Cut, around_columns, around_rows
from simulator.model.experts import expert_communications
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.model.shape import LatentAttention, Transformer


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes through a layer at once, and how.

    Attributes
    ----------
    sequences, seq_len : int
        Of a micro-batch on one rank; sequences are whole here.
    itemsize : int
        Bytes of an activation [B].
    attention : {"flash", "standard"}
        Scores kept on chip, or written to HBM.
    dropout : bool
    statistics_itemsize : int
        Of the norms' means and deviations: 4 on GPUs [B].
    cut : Cut
        What of the model this rank computes.
    """

    sequences: int
    seq_len: int
    itemsize: int = 2
    attention: Literal["flash", "standard"] = "flash"
    dropout: bool = False
    statistics_itemsize: int = 4
    cut: Cut = WHOLE

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch that a rank has."""
        return self.sequences * self.seq_len // self.cut.context.ranks

    @property
    def tokens_between(self) -> int:
        """Tokens that a rank has between matrices, where sequences may be cut."""
        return self.tokens // self.cut.along_sequence


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
    communications : tuple of Communication
        Among the ranks that the model is cut over.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[Saved, ...] = ()
    output: int = 0
    quadratic: bool = False
    communications: tuple[Communication, ...] = ()


def layer_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """A layer's operations in the order of the forward pass; of a model whose layers differ those of its last."""
    return (*_attention_block(model, batch), *_mlp_block(model, batch))


def saved_bytes(operations: tuple[Operation, ...]) -> int:
    """Bytes that a layer keeps for its backward pass [B]; a tensor that several operations need counts once."""
    return sum({saved.name: saved.nbytes for op in operations for saved in op.saved}.values())


def _linear(
    name: str,
    tokens: int,
    n: int,
    k: int,
    batch: Batch,
    saved: Saved,
    *,
    bias: bool,
    groups: int = 1,
    communications: tuple[Communication, ...] = (),
) -> Operation:
    """A matrix: one matmul forward, two backward (input's and weight's gradient), the bias's gradient a reduction."""
    forward = (Matmul(name, tokens, n, k, groups),)
    backward: tuple[Kernel, ...] = (
        Matmul(f"{name} input gradient", tokens, k, n, groups),
        Matmul(f"{name} weight gradient", n, k, tokens, groups, of_weights=True),
    )
    if bias:
        read = tokens * groups * n * batch.itemsize
        backward += (Elementwise(f"{name} bias gradient", read, n * batch.itemsize, of_weights=True),)
    return Operation(
        name, forward, backward, (saved,), tokens * groups * n * batch.itemsize, communications=communications
    )


def _columns(name: str, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool, gathers: int = 0) -> Operation:
    """A matrix that is cut by columns; of `gathers` columns the output is gathered among all ranks."""
    communications = around_columns(name, batch.tokens * k, batch.cut, 3 if bias else 2)
    if gathers:
        elements = batch.tokens * gathers
        communications += (
            Communication(f"gather {name} output", "all_gather", elements, False, 1, 1),
            Communication(f"scatter {name} output gradient", "reduce_scatter", elements, True, 0, 0),
        )
    return _linear(name, batch.tokens, n // batch.cut.tensor, k, batch, saved, bias=bias, communications=communications)


def _rows(name: str, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool) -> Operation:
    """A matrix that is cut by rows."""
    communications = around_rows(name, batch.tokens * n, batch.cut)
    return _linear(name, batch.tokens, n, k // batch.cut.tensor, batch, saved, bias=bias, communications=communications)


def _norm(name: str, source: str, model: Transformer, batch: Batch) -> Operation:
    size = batch.tokens_between * model.hidden_size * batch.itemsize
    means = 2 if model.norm == "layernorm" else 1
    statistics = means * batch.tokens_between * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def _residual(name: str, model: Transformer, batch: Batch) -> Operation:
    """Dropout, where there is any, and the addition to the residual stream."""
    elements = batch.tokens_between * model.hidden_size
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
    projected = _projected(model, batch) if model.latent is None else _latent_projected(model, model.latent, batch)
    core = _flash if batch.attention == "flash" else _standard
    attended = core(model, batch, "rotary" if model.positions == "rotary" else "qkv")
    width = model.attention_width if model.latent is None else model.num_heads * model.latent.value_dim
    output = Saved("attention output", batch.tokens * width // batch.cut.tensor * batch.itemsize, "attention")
    return (
        _norm("norm1", "input", model, batch),
        *projected,
        *attended,
        _rows("proj", model.hidden_size, width, batch, output, bias=model.output_bias),
        _residual("residual1", model, batch),
    )


def _projected(model: Transformer, batch: Batch) -> Iterator[Operation]:
    """Queries, keys and values of one matrix."""
    d, cut = model.hidden_size, batch.cut
    widths = model.attention_width + 2 * model.kv_width
    normed = Saved("norm1 output", batch.tokens_between * d * batch.itemsize, "norm1")
    gathers = widths if cut.gathers_queries(model) else 0
    yield _columns("qkv", widths, d, batch, normed, bias=model.attention_bias, gathers=gathers)
    turned = model.attention_width // cut.tensor + cut.kv_heads(model) * model.head_dim
    if model.qk_norm:
        heads = model.num_heads // cut.tensor + cut.kv_heads(model)
        yield _norm_of("query and key norm", "qkv", batch.tokens * turned, batch.tokens * heads, batch)
    if model.positions == "rotary":
        yield _rotary(batch.tokens * turned * batch.itemsize)


def _latent_projected(model: Transformer, latent: LatentAttention, batch: Batch) -> Iterator[Operation]:
    """Queries from one short vector, keys and values from another; the keys' part with positions from the input."""
    tokens, d, p = batch.tokens, model.hidden_size, batch.itemsize
    normed = Saved("norm1 output", tokens * d * p, "norm1")
    parts = (
        ("query", latent.query_rank, 0, model.num_heads * latent.key_dim),
        ("kv", latent.kv_rank, latent.rotary_dim, model.num_heads * (latent.plain_dim + latent.value_dim)),
    )
    for name, rank, beside, width in parts:
        yield _linear(f"{name} down", tokens, rank + beside, d, batch, normed, bias=False)
        yield _norm_of(f"{name} norm", f"{name} down", tokens * rank, tokens, batch)
        short = Saved(f"{name} norm output", tokens * rank * p, f"{name} norm")
        yield _linear(f"{name} up", tokens, width, rank, batch, short, bias=False)
    yield _rotary(tokens * (model.num_heads + 1) * latent.rotary_dim * p)


def _rotary(turned: int) -> Operation:
    """So many bytes turned by their positions."""
    return Operation(
        "rotary",
        (Elementwise("rotary", turned, turned, fusible=True),),
        (Elementwise("rotary gradient", turned, turned, fusible=True),),
        output=turned,
    )


def _norm_of(name: str, source: str, elements: int, rows: int, batch: Batch) -> Operation:
    """A norm over rows of so many elements in all, without means."""
    size, statistics = elements * batch.itemsize, rows * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def _qkv(model: Transformer, batch: Batch, source: str) -> tuple[Saved, Saved, Saved]:
    if model.latent is not None:
        each = batch.tokens * model.num_heads * batch.itemsize
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


def _mlp_block(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    body = _experts(model, batch) if model.num_experts else _dense(model, batch)
    return (_norm("norm2", "residual1", model, batch), *body, _residual("residual2", model, batch))


def _dense(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    d, f = model.hidden_size, model.ffn_size
    normed = Saved("norm2 output", batch.tokens_between * d * batch.itemsize, "norm2")
    activation = _activation(model, batch.tokens, f // batch.cut.tensor, batch)
    return (
        _columns("up", 2 * f if model.gated else f, d, batch, normed, bias=model.mlp_bias),
        activation,
        _rows("down", d, f, batch, Saved("activation output", activation.output, "activation"), bias=model.mlp_bias),
    )


def _activation(model: Transformer, tokens: int, width: int, batch: Batch) -> Operation:
    before, after = (tokens * n * batch.itemsize for n in (2 * width if model.gated else width, width))
    return Operation(
        "activation",
        (Elementwise("activation", before, after, fusible=True),),
        (Elementwise("activation gradient", before + after, before, fusible=True),),
        (Saved("activation input", before, "up"),),
        after,
    )


def _experts(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Each expert gets its even share of the tokens' choices, or as many as the fullest rank's do."""
    d, f, p, cut = model.hidden_size, model.ffn_size, batch.itemsize, batch.cut.experts
    groups = model.num_experts // cut.ranks
    if cut == ONE_PLACE:
        sent = batch.tokens * model.active_experts // groups * groups
        tokens = sent // groups
    else:
        sent, tokens = cut.chosen(model, batch.tokens), cut.at_each_expert(model, batch.tokens)
    normed, handed, routed = batch.tokens * d * p, sent * d * p, tokens * groups * d * p
    there, back = expert_communications(model, batch.tokens, cut)
    activation = _activation(model, tokens * groups, f, batch)
    return (
        *_shared(model, batch),
        _router(model, batch),
        replace(_shuffle("dispatch", normed, handed), communications=there),
        _linear(
            "up", tokens, 2 * f if model.gated else f, d, batch, Saved("dispatched tokens", routed, "dispatch"),
            bias=model.mlp_bias, groups=groups,
        ),
        activation,
        _linear(
            "down", tokens, d, f, batch, Saved("activation output", activation.output, "activation"),
            bias=model.mlp_bias, groups=groups,
        ),
        replace(_shuffle("combine", handed, normed, Saved("expert outputs", handed, "down")), communications=back),
    )  # fmt: skip


def _shared(model: Transformer, batch: Batch) -> Iterator[Operation]:
    """Experts that see every token, as one MLP that is as wide as all of them."""
    if not model.shared_experts:
        return
    d, f, p = model.hidden_size, model.shared_experts * model.ffn_size, batch.itemsize
    normed = Saved("norm2 output", batch.tokens * d * p, "norm2")
    yield _linear("shared up", batch.tokens, 2 * f if model.gated else f, d, batch, normed, bias=model.mlp_bias)
    activation = _activation(model, batch.tokens, f, batch)
    kept = Saved("shared activation input", activation.saved[0].nbytes, "shared up")
    yield replace(activation, name="shared activation", saved=(kept,))
    output = Saved("shared activation output", activation.output, "shared activation")
    yield _linear("shared down", batch.tokens, d, f, batch, output, bias=model.mlp_bias)


def _router(model: Transformer, batch: Batch) -> Operation:
    tokens, experts, d = batch.tokens, model.num_experts, model.hidden_size
    size = tokens * experts * batch.itemsize
    return Operation(
        "router",
        (Matmul("router", tokens, experts, d), Elementwise("routing softmax", size, size)),
        (
            Matmul("router input gradient", tokens, d, experts),
            Matmul("router weight gradient", experts, d, tokens, of_weights=True),
            Elementwise("routing softmax gradient", 2 * size, size),
        ),
        (Saved("norm2 output", tokens * d * batch.itemsize, "norm2"), Saved("routing weights", size, "router")),
        size,
    )


def _shuffle(name: str, read: int, written: int, *saved: Saved) -> Operation:
    """Tokens put in the order of their experts, or back; weighed on the way back, so that outputs are kept."""
    back = Elementwise(f"{name} gradient", written + sum(s.nbytes for s in saved), read)
    return Operation(name, (Elementwise(name, read, written),), (back,), saved, written)
