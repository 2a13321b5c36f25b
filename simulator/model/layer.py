"""A transformer layer, operation by operation: kernels forward and backward, and saved tensors.

Counts for a micro-batch, without GPU, sharding or schedule. After Korthikanti et al., "Reducing activation
recomputation in large transformer models", MLSys 2023: with dropout and scores in HBM a layer saves 16 b s d p + 2 b
s^2 H p + 2 b s d + b s^2 H bytes, plus the norms' statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.attention import attention_block
from simulator.model.feed_forward import feed_forward_block
from simulator.model.head import lookup
from simulator.model.kernel import Matmul
from simulator.model.operation import Batch, Operation, Saved, linear, norm, residual
from simulator.model.overlap import overlapped
from simulator.model.shape import Transformer


def layer_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return a layer's operations on a micro-batch, in forward order, for a model of equal layers (see
    `Transformer.of_layer`).
    """
    arranged = _parallel if model.form in ("parallel", "shared") else _in_sequence
    joined = _joined(model, batch) if model.mtp_layers else ()
    before = joined[-1].name if joined else "input"
    return (*joined, *(overlapped(operation, batch.cut) for operation in arranged(model, batch, before)))


def _joined(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations that join the hidden states with the embeddings of the next tokens, before a layer that
    predicts a further token: a lookup, two norms, a matrix with twice as many inputs as outputs.
    """
    tokens, d, stream = batch.tokens_between, model.hidden_size, batch.stream
    embedding = lookup(model, stream, "next token embedding")
    both = Saved("joined norms' outputs", 2 * tokens * d * batch.itemsize, "hidden norm")
    return (
        embedding,
        norm("next token norm", embedding.name, model, stream),
        norm("hidden norm", "input", model, stream),
        linear(Matmul("join", tokens, d, 2 * d), batch, both, bias=False),
    )


def _in_sequence(model: Transformer, batch: Batch, before: str) -> Iterator[Operation]:
    """Yield the operations of attention, then of the feed-forward block, with norms in the places of the model's form;
    `before` is the operation before the layer's first norm.
    """
    blocks, stream = (attention_block(model, batch), feed_forward_block(model, batch.stream)), batch.stream
    for number, block in enumerate(blocks, start=1):
        name, added, last = f"norm{number}", f"residual{number}", block[-1].name
        if model.form in ("pre", "both"):
            yield norm(name, before, model, stream)
        yield from block
        if model.form in ("post", "both"):
            yield norm(name if model.form == "post" else f"{name} after", last, model, stream)
        yield residual(added, model, stream)
        if model.form == "sum":
            yield norm(name, added, model, stream)
        before = added


def _parallel(model: Transformer, batch: Batch, before: str) -> Iterator[Operation]:
    """Yield attention and feed-forward block, which read the output of `before` and share one residual addition."""
    stream = batch.stream
    first = norm("norm1", before, model, stream)
    yield first
    yield from attention_block(model, batch)
    if model.form == "parallel":
        second = norm("norm2", before, model, stream)
        # Both norms save the same input.
        yield replace(second, saved=(first.saved[0], *second.saved[1:]))
    yield from feed_forward_block(model, stream)
    yield residual("residual2", model, stream, blocks=2)
