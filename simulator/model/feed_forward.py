"""The feed-forward block of a layer, operation by operation: an MLP, or a router and experts.

Only counts (FLOPs, bytes, saved tensors), as in operation.py.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.adapters import Target
from simulator.model.experts import around_expert_columns, around_expert_rows, expert_communications
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.operation import Batch, Operation, Saved, linear, rows, unquantised
from simulator.model.programs.bare import Parts, saved_as
from simulator.model.programs.tape import Array
from simulator.model.shape import Transformer


def feed_forward_block(parts: Parts, hidden: Array) -> Array:
    """Return the output of a layer's MLP or experts, without norms and residual addition."""
    return (_experts if parts.model.num_experts else _dense)(parts, hidden)


def _dense(parts: Parts, hidden: Array) -> Array:
    """Return the output of an MLP: first matrix, activation function, second matrix."""
    targets: tuple[tuple[Target, int], ...] = (("up", parts.model.ffn_size),)
    return _mlp(parts, "", hidden, parts.model.ffn_size, targets)


def _mlp(parts: Parts, name: str, hidden: Array, width: int, targets: tuple[tuple[Target, int], ...]) -> Array:
    """Return the output of an MLP of this width whose operations have a name before theirs; `targets` are what adapters
    may be added to in its first matrix, without the gate.
    """
    model, batch = parts.model, parts.batch.stream
    d = model.hidden_size
    activated = parts.operand(f"{name}down", parts.activated(name, hidden, width, targets))
    del hidden
    output: tuple[tuple[Target, int], ...] = (("down", d),) if targets else ()
    down = rows(f"{name}down", d, width, batch, saved_as(activated), bias=model.mlp_bias, parts=output)
    return parts.run(down, [activated], [parts.between(d)])[0]


def _experts(parts: Parts, hidden: Array) -> Array:
    """Return the output of a layer's mixture of experts: router, dispatch, experts' MLPs, combine.

    Each expert gets an even share of the tokens, scaled to the fullest rank's load. With tensor parallelism each rank
    sends the tokens of its part of the sequence; the ranks that cut an expert's matrices then gather their tokens.

    After an all-to-all the tokens are in the order of their senders. Ranks with several experts sort them once more,
    and the outputs back (Megatron-LM, core/transformer/moe/token_dispatcher.py: "Permutation 2" of
    MoEAlltoAllTokenDispatcher). DeepEP's exchange leaves the tokens unsorted, and one kernel copies and sorts them.
    """
    model, batch = parts.model, parts.batch.stream
    d, f, p, cut, tokens_here = (
        model.expert_width,
        model.ffn_size,
        batch.itemsize,
        batch.cut.experts,
        batch.tokens_between,
    )
    shared = [_shared(parts, hidden)] if model.shared_experts else []
    router = _router(model, batch, saved_as(hidden))
    (weights,) = parts.run(router, [hidden], [parts.between(model.num_experts)], name="routing weights")
    if model.expert_latent:
        hidden = _latent(parts, "latent down", hidden, d)
    # Experts on this rank.
    groups = model.num_experts // cut.ranks
    sent = cut.chosen(model, tokens_here)
    # Ranks that cut an expert gather each other's tokens first, hence `tensor` times as many rows.
    routed = cut.at_experts(model, tokens_here) * cut.tensor
    # A grouped matmul: `groups` experts with an equal number of rows each, rounded up.
    tokens = -(-routed // groups)
    dispatch, back = expert_communications(model, tokens_here, cut)
    # A rank receives the tokens of each sender in turn, sorts them by its own experts, and sorts the outputs back.
    sorts = cut.exchange.dispatch == "all_to_all" and cut.ranks > 1 and groups > 1
    received = cut.at_experts(model, tokens_here) * d * p
    rows_of, rows_sent = (1, routed, d), (1, sent, d)
    handed = replace(_shuffle("dispatch", tokens_here * d * p, sent * d * p), communications=dispatch)
    (moved,) = parts.run(handed, [hidden], [rows_of])
    if sorts:
        (moved,) = parts.run(_shuffle("sort by expert", received, received), [moved], [rows_of])
    wide = (2 * f if model.gated else f) // cut.tensor
    first = Matmul("up", tokens, wide, d, groups, kind="grouped")
    up = linear(first, batch, saved_as(moved, "dispatched tokens"), bias=model.mlp_bias)
    up = replace(up, communications=around_expert_columns(routed, model, cut, len(up.backward)))
    (product,) = parts.run(up, [moved], [(1, routed, wide)])
    del moved, hidden
    activated = parts.activation("activation", product, f // cut.tensor)
    del product
    second = Matmul("down", tokens, d, f // cut.tensor, groups, kind="grouped")
    down = linear(second, batch, saved_as(activated), bias=model.mlp_bias)
    (outputs,) = parts.run(
        replace(down, communications=around_expert_rows(routed, model, cut)), [activated], [rows_sent]
    )
    del activated
    if sorts:
        (outputs,) = parts.run(_shuffle("sort by sender", received, received), [outputs], [rows_sent])
        # The order is another; what is saved are the experts' outputs.
        outputs.storage.part = "down"
    # Combine weights the outputs, so the backward pass needs the experts' outputs.
    saved = saved_as(outputs, "expert outputs")
    combine = replace(_shuffle("combine", sent * d * p, tokens_here * d * p, saved), communications=back)
    if not model.expert_latent:
        return parts.run(combine, [outputs, weights, *shared], [parts.between(d)])[0]
    (combined,) = parts.run(combine, [outputs, weights], [parts.between(d)])
    del outputs, weights
    combined = _latent(parts, "latent up", combined, model.hidden_size)
    return parts.residual("shared add", combined, *shared) if shared else combined


def _latent(parts: Parts, name: str, hidden: Array, width: int) -> Array:
    """Return the product of tokens with a matrix around latent experts, which is whole on every rank.

    After NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_layer.py: fc1_latent_proj between router and dispatch,
    fc2_latent_proj between combine and the addition of the shared experts.
    """
    batch = parts.batch.stream
    product = Matmul(name, batch.tokens_between, width, hidden.shape[-1])
    return parts.run(linear(product, batch, saved_as(hidden), bias=False), [hidden], [parts.between(width)])[0]


def _shared(parts: Parts, hidden: Array) -> Array:
    """Return the output of the shared experts, computed as a single MLP of their combined width."""
    model, batch = parts.model, parts.batch.stream
    output = _mlp(parts, "shared ", hidden, model.shared_experts * model.ffn_size, ())
    if not model.shared_gate:
        return output
    gate = _shared_gate(model, batch, saved_as(hidden), saved_as(output))
    return parts.run(gate, [hidden, output], [parts.between(model.hidden_size)])[0]


def _shared_gate(model: Transformer, batch: Batch, normed: Saved, output: Saved) -> Operation:
    """Return the scaling of the shared experts' output by a number per token: block input `normed` times a vector."""
    size = batch.tokens_between * model.hidden_size * batch.itemsize
    product = Matmul("shared gate", batch.tokens_between, 1, model.hidden_size)
    gate = linear(product, unquantised(batch), normed, bias=False)
    return replace(
        gate,
        forward=(*gate.forward, Elementwise("shared gate product", size, size, fusible=True)),
        # The gradients of the output and of the gate need each other's factor.
        backward=(Elementwise("shared gate product gradient", 2 * size, size, fusible=True), *gate.backward),
        saved=(*gate.saved, output),
        output=size,
    )


def _router(model: Transformer, batch: Batch, normed: Saved) -> Operation:
    """Return the router's operation on a micro-batch: a matmul and a softmax over all experts."""
    # The router is whole on every rank, which routes its own tokens.
    tokens, experts, d = batch.tokens_between, model.num_experts, model.hidden_size
    size, frozen = tokens * experts * batch.itemsize, not batch.trains("router.weight")
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
