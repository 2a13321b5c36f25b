"""The feed-forward block of a layer, operation by operation: an MLP, or a router and experts.

Only counts (FLOPs, bytes, saved tensors), as in operation.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.adapters import Target
from simulator.model.experts import around_expert_columns, around_expert_rows, expert_communications
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.operation import Batch, Operation, Saved, block_input, columns, linear, rows, unquantised
from simulator.model.shape import Transformer


def feed_forward_block(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a layer's MLP or experts on a micro-batch, without norms and residual addition."""
    return _experts(model, batch) if model.num_experts else _dense(model, batch)


def _dense(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of an MLP on a micro-batch: first matrix, activation function, second matrix."""
    d, f = model.hidden_size, model.ffn_size
    normed = block_input(model, batch, "norm2")
    activation = _activation(model, batch.tokens, f // batch.cut.tensor, batch)
    parts: tuple[tuple[Target, int], ...] = (("gate", f), ("up", f)) if model.gated else (("up", f),)
    output = Saved("activation output", activation.output, "activation")
    return (
        # A gated MLP's two projections are a single matmul of twice the width.
        columns("up", 2 * f if model.gated else f, d, batch, normed, bias=model.mlp_bias, parts=parts),
        activation,
        rows("down", d, f, batch, output, bias=model.mlp_bias, parts=(("down", d),)),
    )


def _activation(model: Transformer, tokens: int, width: int, batch: Batch) -> Operation:
    """Return the operation for the activation function on `tokens` rows with `width` outputs each."""
    before, after = (tokens * n * batch.itemsize for n in (2 * width if model.gated else width, width))
    return Operation(
        "activation",
        (Elementwise("activation", before, after, fusible=True),),
        # Reads the activation's input and the output's gradient.
        (Elementwise("activation gradient", before + after, before, fusible=True),),
        (Saved("activation input", before, "up"),),
        after,
    )


def _experts(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a layer's mixture of experts on a micro-batch: router, dispatch, experts' MLPs, combine.

    Each expert gets an even share of the tokens, scaled to the fullest rank's load. With tensor parallelism each rank
    sends the tokens of its part of the sequence; the ranks that cut an expert's matrices then gather their tokens.

    After an all-to-all the tokens are in the order of their senders. Ranks with several experts sort them once more,
    and the outputs back (Megatron-LM, core/transformer/moe/token_dispatcher.py: "Permutation 2" of
    MoEAlltoAllTokenDispatcher). DeepEP's exchange leaves the tokens unsorted, and one kernel copies and sorts them.
    """
    d, f, p, cut, tokens_here = (
        model.hidden_size,
        model.ffn_size,
        batch.itemsize,
        batch.cut.experts,
        batch.tokens_between,
    )
    # Experts on this rank.
    groups = model.num_experts // cut.ranks
    sent = cut.chosen(model, tokens_here)
    # Ranks that cut an expert gather each other's tokens first, hence `tensor` times as many rows.
    routed = cut.at_experts(model, tokens_here) * cut.tensor
    # A grouped matmul: `groups` experts with an equal number of rows each, rounded up.
    tokens = -(-routed // groups)
    dispatch, back = expert_communications(model, tokens_here, cut)
    activation = _activation(model, routed, f // cut.tensor, batch)
    dispatched = Saved("dispatched tokens", routed * d * p, "dispatch")
    activated = Saved("activation output", activation.output, "activation")
    wide = (2 * f if model.gated else f) // cut.tensor
    up = linear(Matmul("up", tokens, wide, d, groups, kind="grouped"), batch, dispatched, bias=model.mlp_bias)
    down = linear(
        Matmul("down", tokens, d, f // cut.tensor, groups, kind="grouped"), batch, activated, bias=model.mlp_bias
    )
    # A rank receives the tokens of each sender in turn, sorts them by its own experts, and sorts the outputs back.
    sorts = cut.exchange.dispatch == "all_to_all" and cut.ranks > 1 and groups > 1
    received = cut.at_experts(model, tokens_here) * d * p
    return (
        *_shared(model, batch),
        _router(model, batch),
        replace(_shuffle("dispatch", tokens_here * d * p, sent * d * p), communications=dispatch),
        *((_shuffle("sort by expert", received, received),) if sorts else ()),
        replace(up, communications=around_expert_columns(routed, model, cut, len(up.backward))),
        activation,
        replace(down, communications=around_expert_rows(routed, model, cut)),
        *((_shuffle("sort by sender", received, received),) if sorts else ()),
        replace(
            # Combine weights the outputs, so the backward pass needs the experts' outputs.
            _shuffle("combine", sent * d * p, tokens_here * d * p, Saved("expert outputs", sent * d * p, "down")),
            communications=back,
        ),
    )


def _shared(model: Transformer, batch: Batch) -> Iterator[Operation]:
    """Yield the operations of the shared experts, as a single MLP of their combined width; none without any."""
    if not model.shared_experts:
        return
    d, f = model.hidden_size, model.shared_experts * model.ffn_size
    normed = block_input(model, batch, "norm2")
    yield columns("shared up", 2 * f if model.gated else f, d, batch, normed, bias=model.mlp_bias)
    activation = _activation(model, batch.tokens, f // batch.cut.tensor, batch)
    # Needs a different name: `saved_bytes` counts tensors of equal name once, and routed experts have an activation
    # too.
    saved = Saved("shared activation input", activation.saved[0].nbytes, "shared up")
    yield replace(activation, name="shared activation", saved=(saved,))
    output = Saved("shared activation output", activation.output, "shared activation")
    yield rows("shared down", d, f, batch, output, bias=model.mlp_bias)
    if model.shared_gate:
        yield _shared_gate(model, batch, normed)


def _shared_gate(model: Transformer, batch: Batch, normed: Saved) -> Operation:
    """Return the scaling of the shared experts' output by a number per token: block input `normed` times a vector."""
    size = batch.tokens_between * model.hidden_size * batch.itemsize
    product = Matmul("shared gate", batch.tokens_between, 1, model.hidden_size)
    gate = linear(product, unquantised(batch), normed, bias=False)
    return replace(
        gate,
        forward=(*gate.forward, Elementwise("shared gate product", size, size, fusible=True)),
        # The gradients of the output and of the gate need each other's factor.
        backward=(Elementwise("shared gate product gradient", 2 * size, size, fusible=True), *gate.backward),
        saved=(*gate.saved, Saved("shared expert output", size, "shared down")),
        output=size,
    )


def _router(model: Transformer, batch: Batch) -> Operation:
    """Return the router's operation on a micro-batch: a matmul and a softmax over all experts."""
    # The router is whole on every rank, which routes its own tokens.
    tokens, experts, d = batch.tokens_between, model.num_experts, model.hidden_size
    size, frozen = tokens * experts * batch.itemsize, not batch.trains("router.weight")
    normed = block_input(model, batch, "norm2")
    of_weights = Matmul("router weight gradient", experts, d, tokens, of_weights=True)
    return Operation(
        "router",
        (Matmul("router", tokens, experts, d), Elementwise("routing softmax", size, size)),
        (
            Matmul("router input gradient", tokens, d, experts),
            *(() if frozen else (of_weights,)),
            Elementwise("routing softmax gradient", 2 * size, size),
        ),
        (*(() if frozen else (normed,)), Saved("routing weights", size, "router")),
        size,
    )


def _shuffle(name: str, read: int, written: int, *saved: Saved) -> Operation:
    """Return the operation that sorts tokens by expert, or back (sizes in bytes); `saved` are also read backward."""
    back = Elementwise(f"{name} gradient", written + sum(s.nbytes for s in saved), read)
    return Operation(name, (Elementwise(name, read, written),), (back,), saved, written)
