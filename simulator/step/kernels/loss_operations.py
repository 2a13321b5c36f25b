"""Which kernels compute the logits and the loss, and which memory do they hold? Six kinds, from separate to chunked.

Llama 3 8B, a micro-batch of 8,192 tokens, 128,256 words: the logits have 2.1 GB. Separate kernels also write a float32
copy and log-probabilities (4.2 GB each), and two float32 gradients in the backward pass. Narrow kernels are separate
too, and log-probabilities and both gradients have 2.1 GB each. Native kernels (Megatron-LM's native fusion) save a
float32 softmax, and write a second float32 array and the gradient (2.1 GB) in the backward pass. A fused kernel
overwrites the logits with their gradient; a kernel in place does so in the forward pass already. A chunked loss never
holds all logits: 32 chunks of 256 tokens have 66 MB each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulator.model.head import logits_memory
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.layer_list import LayerList
from simulator.model.model import last_operations
from simulator.model.operation import Batch, Operation, Saved

if TYPE_CHECKING:
    from simulator.model.shape import Transformer
    from simulator.step.spec import TrainingStep

_FLOAT32: Final = 4
_LABEL_BYTES: Final = 8
# Operations whose output a fused loss may read; it reads the last one.
_LOGITS: Final = ("logits", "logit soft-cap", "shifted logits")


def loss_operations(step: TrainingStep, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations after the last layer (norm, logits, loss) of a micro-batch, with a step's loss kernels."""
    # A fused kernel reads logits in their own dtype, unless the copy for it was made of a float32 copy.
    shifted = step.loss_kernels in ("fused", "in_place") and step.keys.logit_shift == "before_cast"
    narrow = step.loss_kernels == "narrow" or shifted
    operations = last_operations(step.model, batch, narrow=narrow, shift=step.keys.logit_shift)
    if isinstance(step.model, LayerList):
        return operations
    # PyTorch's gradient of the loss is 1 unless a sum over micro-batches or a loss scale multiplies the loss.
    scaled = step.accumulation > 1 or step.loss_scaling is not None
    if step.loss_kernels == "chunked":
        return _chunked(operations, step.model, batch, scaled=scaled)
    if step.loss_kernels == "native":
        return _native(operations, step.model, batch)
    fused = fused_loss(operations) if step.loss_kernels in ("fused", "in_place") else operations
    operations = _in_place(fused, scaled=scaled) if step.loss_kernels == "in_place" else fused
    if not step.keys.float32_outputs:
        return operations
    logits = logits_memory(step.model, batch, narrow=True).logits
    size = logits // batch.itemsize * _FLOAT32
    cast = Elementwise("returned logits", logits, size)
    return (*operations[:-1], Operation("returned logits", (cast,), (), output=size), operations[-1])


def loss_buffers(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes that a transformer's loss holds in its backward pass beyond its saved tensors [B].

    A fused loss holds none: it overwrites the logits. A native loss holds a copy of its softmax and the gradient's
    cast, with every framework. A chunked loss holds one chunk's logits and the weight gradient of one chunk, though
    already in the forward pass, which the backward pass follows at once. Megatron-LM's unfused loss overwrites a
    float32 copy of the logits with the softmax and then with the gradient, and allocates the gradient's cast besides:
    `keeps_logits` alone.
    """
    model, framework = step.transformer, step.framework
    if step.loss_kernels in ("fused", "in_place"):
        return 0
    if step.loss_kernels == "chunked":
        table = 0 if not batch.trains("logits.weight") else model.vocab_size * model.hidden_size
        return (min(chunk_tokens(model, batch), batch.tokens) * model.vocab_size + table) * batch.itemsize
    memory = logits_memory(model, batch, narrow=step.loss_kernels == "narrow")
    if step.loss_kernels == "native":
        # The compiled backward pass copies the softmax before it changes the targets' entries, and casts the product.
        return memory.float32_gradient + memory.gradient
    gradients = memory.backward_peak - memory.log_probabilities if framework.loss_buffers else 0
    logits = memory.logits if framework.keeps_logits else 0
    # Merged kernels never write half of the gradients to HBM.
    return logits + (gradients // 2 if step.keys.compile else gradients)


def logit_temporaries(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes that a transformer's loss holds in its forward pass beyond its saved tensors, if it copies the
    logits without last tokens, or if the model returns the logits in float32 [B].

    Names of a function keep its arrays until it returns: logits, float32 copy and copy without last tokens. When it has
    returned, logits and their float32 copy exist beside the saved tensors. Without either copy the backward pass always
    holds more. A compiler merges the copies.
    """
    if step.loss_kernels == "chunked" or step.keys.compile:
        return 0
    memory = logits_memory(step.transformer, batch, narrow=step.loss_kernels == "narrow")
    copied = returned = 0
    if step.keys.float32_outputs:
        returned = memory.logits + memory.logits // batch.itemsize * _FLOAT32
    if step.keys.logit_shift != "none":
        cast = memory.float32_copy if step.keys.logit_shift == "after_cast" else 0
        copied = memory.logits + (cast or memory.logits) + memory.float32_copy
        if step.loss_kernels == "fused":
            # The last copy is saved.
            copied = memory.logits + cast
    return max(copied, returned)


def freed_early(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes of the loss's saved tensors and buffers that are free when the head's backward matmuls begin
    [B]: all but the gradient of the logits; none of a chunked loss, whose matmuls run before.
    """
    if step.loss_kernels == "chunked":
        return 0
    memory = logits_memory(step.transformer, batch, narrow=step.loss_kernels == "narrow")
    gradient = memory.gradient or memory.float32_gradient
    return max(0, memory.log_probabilities + loss_buffers(step, batch) - gradient)


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

    A chunk's logits are multiplied, read twice and overwritten with their gradient; two matmuls make the gradients of
    the head's input and weights; the weight gradient is added to the sum over chunks. The backward pass only multiplies
    the saved gradients by the gradient of the loss, if that is not 1 (`scaled`).
    Source: Liger-Kernel, ops/fused_linear_cross_entropy.py; recalled.
    """
    words, width, chunk = model.vocab_size, model.hidden_size, chunk_tokens(model, batch)
    frozen = not batch.trains("logits.weight")
    table, entered = words * width * batch.itemsize, batch.tokens * width * batch.itemsize
    kernels: list[Kernel] = []
    for begin in range(0, batch.tokens, chunk):
        tokens = min(chunk, batch.tokens - begin)
        logits = tokens * words * batch.itemsize
        kernels += [
            Matmul("logits", tokens, words, width),
            Elementwise("chunked cross entropy", 2 * logits + tokens * _LABEL_BYTES, logits),
            Matmul("logits input gradient", tokens, width, words),
        ]
        if not frozen:
            kernels.append(Matmul("logits weight gradient", words, width, tokens))
            kernels.append(Elementwise("logits weight gradient add", 2 * table, table))
            if model.head_bias:
                kernels.append(Elementwise("logits bias gradient", logits, words * batch.itemsize))
    backward: list[Kernel] = []
    if scaled:
        backward.append(Elementwise("loss gradient times input gradient", entered, entered))
        if not frozen:
            backward.append(Elementwise("loss gradient times weight gradient", table, table, of_weights=True))
    labels = Saved("labels", _LABEL_BYTES * batch.tokens, "input")
    gradient = Saved("head input gradient", entered, "chunked cross entropy")
    name = "chunked cross entropy"
    before = operations[: [op.name for op in operations].index("logits")]
    return (*before, Operation(name, tuple(kernels), tuple(backward), (gradient, labels), _FLOAT32))


def _native(operations: tuple[Operation, ...], model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the head's operations with Megatron-LM's native fusion in place of the float32 copy and the softmax.

    torch.compile merges each function of the loss. Forward: cast and largest logit; exponentials and their sum, in
    place; division, in place. The functions are cut where ranks exchange numbers. Backward: a copy of the softmax, in
    which the targets' entries change; its product with the loss's gradient, written back to the softmax and, in the
    logits' dtype, to a new array.
    Source: Megatron-LM d98e8a64, core/fusions/fused_cross_entropy.py. That the compiled function copies its input
    follows from measured peaks (tests/theory/test_megatron_memory.py).
    """
    memory = logits_memory(model, batch)
    narrow, wide = memory.logits, memory.log_probabilities
    *before, loss = (op for op in operations if op.name != "logits to float32")
    labels = tuple(saved for saved in loss.saved if saved.name != "log-probabilities")
    return (
        *before,
        Operation(
            "native cross entropy",
            (
                Elementwise("cast and largest logit", narrow, wide),
                Elementwise("exponentials", wide, wide),
                Elementwise("softmax", wide, wide),
            ),
            (
                Elementwise("softmax copy", wide, wide),
                Elementwise("softmax times loss gradient", wide, wide + memory.gradient),
            ),
            (Saved("log-probabilities", wide, "native cross entropy"), *labels),
            _FLOAT32,
            communications=loss.communications,
        ),
    )


def fused_loss(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the operations of embedding-to-loss with a fused cross entropy after the logits and their soft-cap, in
    place of the float32 copy and the softmax.

    The forward pass reads and saves the logits; the backward pass reads them and overwrites them with their gradient,
    as the flash-attention package's loss does with `inplace_backward`.
    """
    replaced: list[Operation] = []
    last = next((op.name for op in reversed(operations) if op.name in _LOGITS), "")
    for op in operations:
        replaced.append(op)
        if op.name == last:
            size = op.output
            return (
                *replaced,
                Operation(
                    "fused cross entropy",
                    (Elementwise("fused cross entropy", size, 0),),
                    (Elementwise("fused cross entropy gradient", size, size),),
                    (Saved("logits", size, last),),
                    _FLOAT32,
                    # With a vocabulary-parallel head, ranks exchange as much as without fusion.
                    communications=operations[-1].communications,
                ),
            )
    return tuple(replaced)


def _in_place(fused: tuple[Operation, ...], *, scaled: bool) -> tuple[Operation, ...]:
    """Return the operations of a fused cross entropy with Liger's stand-alone kernel in its place.

    The forward pass reads the logits for the largest and the sum of exponentials, reads them again, and overwrites
    them with their gradient. The backward pass multiplies the gradient by the gradient of the loss, if that is not 1
    (`scaled`).
    Source: linkedin/Liger-Kernel ead96b618e, ops/cross_entropy.py, `liger_cross_entropy_kernel` ("2 loads + 1 store")
    and `cross_entropy_backward`.
    """
    *before, loss = fused
    size = next(saved.nbytes for saved in loss.saved if saved.name == "logits")
    name = "in-place cross entropy"
    forward = Elementwise(name, 2 * size, size)
    backward = (Elementwise("loss gradient times logits gradient", size, size),) if scaled else ()
    return (*before, replace(loss, name=name, forward=(forward,), backward=backward))
