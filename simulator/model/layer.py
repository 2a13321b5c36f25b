"""A transformer layer, operation by operation: kernels forward and backward, and saved tensors.

Counts for a micro-batch, without GPU, sharding or schedule. After Korthikanti et al., "Reducing activation
recomputation in large transformer models", MLSys 2023: with dropout and scores in HBM a layer saves 16 b s d p + 2 b
s^2 H p + 2 b s d + b s^2 H bytes, plus the norms' statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final

from simulator.model.attention import attention_block
from simulator.model.feed_forward import feed_forward_block
from simulator.model.head import lookup
from simulator.model.kernel import Matmul
from simulator.model.mamba import mamba_block
from simulator.model.operation import Batch, Operation, linear
from simulator.model.overlap import overlapped
from simulator.model.programs.bare import Parts, saved_as
from simulator.model.programs.tape import Array
from simulator.model.shape import Transformer

# Blocks with the names of their norm and of their residual addition.
_BLOCKS: Final = {
    "M": (mamba_block, "mamba norm", "mamba residual"),
    "*": (attention_block, "norm1", "residual1"),
    "-": (feed_forward_block, "norm2", "residual2"),
    "E": (feed_forward_block, "norm2", "residual2"),
}
# Operations whose outputs only the next layer reads, where a layer ends with them.
LAST_UNNEEDED: Final = ("mamba out", "mamba residual", "proj", "residual1", "latent up", "shared add", "residual2")


@dataclass(frozen=True, slots=True)
class LayerProgram:
    """The kernels of a layer's passes, operation by operation, and the memory of its arrays."""

    operations: tuple[Operation, ...]
    # `temporaries`, `temporaries_without_saving`: Most bytes of arrays that are allocated at once in the forward pass
    # beyond the tensors that it saves (temporary arrays and the output), and in a forward pass that saves nothing, as
    # where a layer is recomputed [B].
    temporaries: int
    temporaries_without_saving: int
    # Most bytes of gradients of activations and of temporary arrays in the backward pass, minus the bytes of saved
    # tensors that are freed by then [B].
    gradients: int


def layer_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return a layer's operations on a micro-batch, in forward order, for a model of equal layers (see
    `Transformer.of_layer`).
    """
    parts = _parts(model, batch)
    parts.tape.backward(_output(parts))
    return _operations(parts)


def layer_program(model: Transformer, batch: Batch) -> LayerProgram:
    """Return the program of a layer on a micro-batch, for a model of equal layers (see `Transformer.of_layer`)."""
    parts, unsaved = _parts(model, batch), _parts(model, batch)
    unsaved.tape.saves = False
    _output(unsaved)
    output = _output(parts)
    # The tape counts saved tensors and the output, not the layer's input.
    tape, before = parts.tape, parts.tape.live
    temporaries = tape.most - (before - output.nbytes)
    # The gradient of the output, which comes from the next layer, is one of the layer's gradients.
    tape.backward(output)
    return LayerProgram(_operations(parts), temporaries, unsaved.tape.most, tape.most - before)


def _parts(model: Transformer, batch: Batch) -> Parts:
    """Return the parts of the micro-batch's program, whose file is imported for a framework that has it."""
    parts: Parts = import_module(f"simulator.model.programs.{batch.program}").PARTS(model, batch.narrow)
    return parts


def _operations(parts: Parts) -> tuple[Operation, ...]:
    return tuple(overlapped(part.operation, parts.batch.cut) for part in parts.tape.parts)


def _output(parts: Parts) -> Array:
    """Return the output of a layer whose forward pass is put on the tape of `parts`."""
    hidden = parts.entered()
    if parts.model.mtp_layers:
        hidden = _joined(parts, hidden)
    hidden = (_parallel if parts.model.form in ("parallel", "shared") else _in_sequence)(parts, hidden)
    parts.alive.clear()
    return hidden


def _joined(parts: Parts, hidden: Array) -> Array:
    """Return the hidden states joined with the embeddings of the next tokens, before a layer that predicts a further
    token: a lookup, two norms, a matrix with twice as many inputs as outputs.
    """
    model, batch = parts.model, parts.batch
    width = model.hidden_size
    (embedding,) = parts.run(lookup(model, batch.stream, "next token embedding"), [], [parts.between(width)])
    embedding, hidden = parts.norm("next token norm", embedding), parts.norm("hidden norm", hidden)
    entered = saved_as(embedding), saved_as(hidden)
    product = linear(Matmul("join", batch.tokens_between, width, 2 * width), batch, entered[0], bias=False)
    product = replace(product, saved=entered if product.saved else ())
    return parts.run(product, [embedding, hidden], [parts.between(width)])[0]


def _in_sequence(parts: Parts, hidden: Array) -> Array:
    """Return the layer's output: its blocks in order, with norms in the places of the model's form."""
    form = parts.model.form
    for letter in parts.model.layer_blocks:
        block, name, added = _BLOCKS[letter]
        entered = hidden
        if form in ("pre", "both"):
            hidden = parts.norm(name, hidden)
        hidden = block(parts, hidden)
        if form in ("post", "both"):
            hidden = parts.norm(name if form == "post" else f"{name} after", hidden)
        hidden = parts.residual(added, entered, hidden)
        if form == "sum":
            hidden = parts.norm(name, hidden)
        del entered
    return hidden


def _parallel(parts: Parts, hidden: Array) -> Array:
    """Return the layer's output: attention and feed-forward block read the same input and share one residual
    addition.
    """
    first = parts.norm("norm1", hidden)
    attended = attention_block(parts, first)
    second = parts.norm("norm2", hidden) if parts.model.form == "parallel" else first
    del first
    return parts.residual("residual2", hidden, attended, feed_forward_block(parts, second))
