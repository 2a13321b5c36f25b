"""Which operations does a head have with an implementation of the loss, and how many bytes does the loss hold?

The implementations are in losses.py. A chunked loss never holds all logits: 32 chunks of 256 tokens have 66 MB each in
Llama 3 8B with a micro-batch of 8,192 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulator.model.head import logits_memory
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.layer_list import LayerList
from simulator.model.model import last_operations
from simulator.model.operation import Batch, Operation, Saved
from simulator.step.kernels.losses import LOSSES, Pass

if TYPE_CHECKING:
    from simulator.model.shape import Transformer
    from simulator.step.spec import TrainingStep

_FLOAT32: Final = 4
_LABEL_BYTES: Final = 8
_CAST: Final = "logits to float32"
# Longest row that a kernel reads once although it makes several passes: 16,384 float32 numbers take an A100 as long as
# one read, 32,768 as three (linkedin/Liger-Kernel ead96b618e, benchmark/data/all_benchmark_data.csv, cross_entropy).
_SHORT_ROW: Final = 65536


def loss_operations(step: TrainingStep, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations after the last layer (norm, logits, loss) of a micro-batch, with a step's loss kernels."""
    operations, model = last_operations(step.model, batch), step.model
    if isinstance(model, LayerList):
        return operations
    # PyTorch's gradient of the loss is 1 unless a sum over micro-batches or a loss scale multiplies the loss.
    scaled = step.accumulation > 1 or step.loss_scaling is not None
    if step.loss_kernels == "chunked":
        return _chunked(operations, model, batch, scaled=scaled)
    loss, shift = LOSSES[step.loss_kernels], step.keys.logit_shift
    # Kernels read logits in their own dtype, unless the copy for them is made of a float32 copy.
    unused = "" if loss.cast in ("always", shift) else _CAST
    *before, ideal = (op for op in operations if op.name != unused)
    if shift != "none":
        place = len(before) - int(shift == "before_cast" and before[-1].name == _CAST)
        before.insert(place, _shifted(before[place - 1].output))
    sizes, source = _sizes(model, batch), before[-1]
    kept, labels, *mask = ideal.saved
    kept = Saved("logits", source.output, source.name) if loss.keeps_input else replace(kept, nbytes=sizes[loss.saved])
    if step.keys.float32_outputs:
        returned = Elementwise("returned logits", sizes["n"], sizes["w"], single=True)
        before.append(Operation("returned logits", (returned,), (), output=sizes["w"]))
    # The kernels read the last copy, whatever its dtype.
    sizes["n"] = source.output
    forward, backward = (
        _kernels(passes, sizes, labels.nbytes // _LABEL_BYTES, scaled=scaled)
        for passes in (loss.forward, loss.backward)
    )
    return (*before, replace(ideal, forward=forward, backward=backward, saved=(kept, labels, *mask)))


def _shifted(size: int) -> Operation:
    """Return the operation that copies logits of `size` bytes without each sequence's last token, one row of many.

    Backward, an array of zeros receives the copy's gradient.
    """
    name = "shifted logits"
    forward = Elementwise(name, size, size, fusible=True, single=True)
    backward = Elementwise(f"{name} gradient", size, 2 * size, fusible=True, single=True)
    return Operation(name, (forward,), (backward,), output=size)


def backward_bytes(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes that a transformer's loss holds in its backward pass beyond its saved tensors [B].

    A chunked loss holds one chunk's logits and the weight gradient of one chunk, though already in the forward pass,
    which the backward pass follows at once. A compiler never writes the arrays of merged kernels.
    """
    model = step.transformer
    if step.loss_kernels == "chunked":
        table = 0 if not batch.trains("logits.weight") else model.vocab_size * model.hidden_size
        return (min(chunk_tokens(model, batch), batch.tokens) * model.vocab_size + table) * batch.itemsize
    loss = LOSSES[step.loss_kernels]
    held = loss.held_backward
    for kernel in loss.backward if step.keys.compile else ():
        held = held.replace(kernel.written, "", 1) if kernel.fusible else held
    return _nbytes(held, _sizes(model, batch))


def forward_bytes(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes that a transformer's loss holds in its forward pass beyond its saved tensors, as far as the
    backward pass does not hold more anyway [B].

    Names of a function keep its arrays until it returns: logits, float32 copy and copy without last tokens. When it has
    returned, logits and the float32 copy that the model returns exist beside the saved tensors. A compiler merges the
    copies.
    """
    loss, shift = LOSSES[step.loss_kernels], step.keys.logit_shift
    sizes = _sizes(step.transformer, batch)
    if step.loss_kernels == "chunked" or step.keys.compile:
        return _nbytes(loss.held_forward, sizes)
    returned = "nw" if step.keys.float32_outputs else ""
    copies = {"none": "", "before_cast": "nn", "after_cast": "nn" if loss.cast == "never" else "ncc"}[shift]
    if loss.keeps_input:
        copies = copies[:-1]  # the kernel works on the last copy, and saves it
    elif shift == "before_cast" and loss.cast == "always":
        copies += "c"
    return max(_nbytes(letters, sizes) for letters in (loss.held_forward, copies, returned))


def freed_early(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes of the loss's saved tensors and buffers that are free when the head's backward matmuls begin
    [B]: all but the gradient of the logits; none of a chunked loss, whose matmuls run before.
    """
    if step.loss_kernels == "chunked":
        return 0
    sizes = _sizes(step.transformer, batch)
    saved = sizes[LOSSES[step.loss_kernels].saved]
    return max(0, saved + backward_bytes(step, batch) - sizes["n"])


def _sizes(model: Transformer, batch: Batch) -> dict[str, int]:
    """Return the bytes of the arrays that letters name in losses.py [B]."""
    memory = logits_memory(model, batch)
    gradient = memory.logits if memory.float32_copy else 0
    return {"n": memory.logits, "w": memory.log_probabilities, "c": memory.float32_copy, "g": gradient}


def _nbytes(letters: str, sizes: dict[str, int]) -> int:
    """Return the bytes of the arrays that the letters name together [B]."""
    return sum(sizes[letter] for letter in letters)


def _kernels(passes: Iterable[Pass], sizes: dict[str, int], tokens: int, *, scaled: bool) -> tuple[Elementwise, ...]:
    """Return the kernels of passes over arrays of `tokens` rows."""
    return tuple(
        Elementwise(
            kernel.name,
            _nbytes(kernel.read, sizes)
            + sum(sizes[letter] for letter in kernel.again if sizes[letter] > _SHORT_ROW * tokens),
            _nbytes(kernel.written, sizes),
            fusible=kernel.fusible,
            single=True,
        )
        for kernel in passes
        if scaled or not kernel.if_scaled
    )


def chunk_tokens(model: Transformer, batch: Batch) -> int:
    """Return the number of tokens in a chunk of a chunked loss.

    The logits of a chunk have about as many elements as the head's input for all tokens of the micro-batch; the number
    of tokens is rounded up to a power of two.

    Source: Liger-Kernel, ops/fused_linear_cross_entropy.py (`inc_factor`, `chunk_size`).

    128,256 words are 31.3 times as many as the 4,096 elements of a token, so 32 chunks: 8,192 / 32 tokens.

    >>> from simulator.model.load import load_model
    >>> chunk_tokens(load_model("llama3_8b"), Batch(sequences=1, seq_len=8192))
    256
    """
    parts = -(-model.vocab_size // model.hidden_size)
    return 1 << (-(-batch.tokens // parts) - 1).bit_length()


def _chunked(
    operations: tuple[Operation, ...], model: Transformer, batch: Batch, *, scaled: bool
) -> tuple[Operation, ...]:
    """Return the head's operations with logits, loss and both gradients computed chunk by chunk in the forward pass, in
    place of the operations from the logits on.

    A chunk's logits are multiplied and overwritten with their gradient; two matmuls make the gradients of the head's
    input and weights; the weight gradient is added to the sum over chunks. The backward pass only multiplies the saved
    gradients by the gradient of the loss, if that is not 1 (`scaled`).
    """
    loss = LOSSES["chunked"]
    words, width, chunk = model.vocab_size, model.hidden_size, chunk_tokens(model, batch)
    frozen = not batch.trains("logits.weight")
    table, entered = words * width * batch.itemsize, batch.tokens * width * batch.itemsize
    kernels: list[Kernel] = []
    for begin in range(0, batch.tokens, chunk):
        tokens = min(chunk, batch.tokens - begin)
        logits = tokens * words * batch.itemsize
        kernels += [
            Matmul("logits", tokens, words, width),
            *_kernels(loss.forward, {"n": logits}, tokens, scaled=scaled),
            Matmul("logits input gradient", tokens, width, words),
        ]
        if not frozen:
            kernels.append(Matmul("logits weight gradient", words, width, tokens))
            kernels.append(Elementwise("logits weight gradient add", 2 * table, table, single=True))
            if model.head_bias:
                kernels.append(Elementwise("logits bias gradient", logits, words * batch.itemsize))
    backward: list[Kernel] = []
    if scaled:
        backward.append(Elementwise("loss gradient times input gradient", entered, entered, single=True))
        if not frozen:
            name = "loss gradient times weight gradient"
            backward.append(Elementwise(name, table, table, of_weights=True, single=True))
    labels = Saved("labels", _LABEL_BYTES * batch.tokens, "input")
    gradient = Saved("head input gradient", entered, "cross entropy")
    before = operations[: [op.name for op in operations].index("logits")]
    return (*before, Operation("cross entropy", tuple(kernels), tuple(backward), (gradient, labels), _FLOAT32))
