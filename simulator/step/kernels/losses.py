"""Which kernels compute the logits and the loss, and which arrays do they hold? One record for each implementation.

An array has an element for each token and word. Letters name the arrays: "n" has the dtype of the logits and "w" is
float32; "c" is a float32 copy of the logits, and "g" the gradient cast to their dtype, both absent if logits are
float32. Llama 3 8B, a micro-batch of 8,192 tokens, 128,256 words: "n" has 2.1 GB, "w" 4.2 GB. A chunked loss never
holds all logits: 32 chunks of 256 tokens have 66 MB each. Kernels that handle a number per token are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from simulator.model.head import logits_memory
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.layer_list import LayerList
from simulator.model.model import last_operations
from simulator.model.operation import Batch, LossKernels, Operation, Saved

if TYPE_CHECKING:
    from simulator.model.shape import Transformer
    from simulator.step.spec import TrainingStep

_FLOAT32: Final = 4
_LABEL_BYTES: Final = 8
_CAST: Final = "logits to float32"
# Longest row that a kernel reads once although it makes several passes: 16,384 float32 numbers take an A100 as long as
# one read, 32,768 as three (linkedin/Liger-Kernel ead96b618e, benchmark/data/all_benchmark_data.csv, cross_entropy).
_SHORT_ROW: Final = 65536


@dataclass(frozen=True, slots=True)
class ArrayPass:
    """A kernel that reads and writes whole arrays."""

    name: str
    read: str = ""
    written: str = ""
    again: str = ""  # arrays that the kernel reads once more, from HBM unless a row is short
    fusible: bool = False  # whether a compiler merges the kernel with its neighbours and never writes its array
    if_scaled: bool = False  # whether the kernel runs only if the gradient of the loss is not 1


@dataclass(frozen=True, slots=True)
class Loss:
    """An implementation of the cross entropy: its kernels after the logits, and the arrays that it holds."""

    forward: tuple[ArrayPass, ...]
    backward: tuple[ArrayPass, ...] = ()
    saved: str = "w"  # array kept from the forward to the backward pass
    held_forward: str = ""  # arrays that the forward pass holds at its end beyond the saved array
    held_backward: str = ""  # arrays that the backward pass holds beyond the saved array
    # Whether a kernel of its own casts the logits to float32, and the gradient back; "after_cast" only for a copy
    # without last tokens that is made in float32
    cast: Literal["always", "after_cast", "never"] = "always"

    @property
    def keeps_input(self) -> bool:
        """Return True if the saved array is the one that the kernels read."""
        return self.saved == "n" and self.cast == "after_cast"


def _in_place(*names: str) -> tuple[ArrayPass, ...]:
    """Return kernels that overwrite a float32 array."""
    return tuple(ArrayPass(name, "w", "w") for name in names)


def _pytorch(array: str) -> tuple[tuple[ArrayPass, ...], tuple[ArrayPass, ...]]:
    """Return the forward and the backward passes of PyTorch's cross entropy of logits in `array`.

    Log-softmax reads a row for its maximum, for the sum of exponentials, and for the result; its backward kernel reads
    the gradient for its sum, and again beside the log-probabilities. The gradient is first filled with zeros.
    Source: pytorch/pytorch 000cace5a4, aten/src/ATen/native/cuda/SoftMax.cu, cunn_SoftMaxForward and
    cunn_SoftMaxBackward; LossNLL.cu (zeros) is recalled.
    """
    zeros = ArrayPass("loss gradient", "", array, fusible=True)
    forward = ArrayPass("log-softmax", array, array, again=2 * array)
    return (forward,), (zeros, ArrayPass("log-softmax gradient", 2 * array, array, again=array))


# Megatron-LM's kernels over the float32 copy; the softmax overwrites it, and the gradient overwrites the softmax.
_MEGATRON: Final = (
    (
        ArrayPass("largest logit", "w"),
        *_in_place("shifted by largest logit", "exponentials"),
        ArrayPass("sum of exponentials", "w"),
        *_in_place("softmax"),
    ),
    _in_place("softmax times loss gradient"),
)

LOSSES: Final[Mapping[LossKernels, Loss]] = MappingProxyType(
    {
        # Each array moved once, gradients in place.
        "ideal": Loss(
            (ArrayPass("log-softmax", "w", "w"),),
            (ArrayPass("loss gradient", "", "w", fusible=True), ArrayPass("log-softmax gradient", "ww", "w")),
        ),
        # torch.nn.functional.cross_entropy of logits.float(): both gradients exist beside the log-probabilities.
        "separate": Loss(*_pytorch("w"), held_backward="ww"),
        "narrow": Loss(*_pytorch("n"), "n", held_backward="nn", cast="never"),
        # NVIDIA/Megatron-LM d98e8a64, core/tensor_parallel/cross_entropy.py
        "vocab_parallel": Loss(*_MEGATRON, held_backward="g"),
        # huggingface/nanotron e24d2483, parallel/tensor_parallel/functional.py (sharded_cross_entropy): as Megatron-LM,
        # but the shifted logits are an array of their own, beside logits and copy
        "sharded": Loss(*_MEGATRON, held_forward="nc", held_backward="g"),
        # NVIDIA/Megatron-LM d98e8a64, core/fusions/fused_cross_entropy.py: functions merged by torch.compile, cut where
        # ranks exchange numbers. A function that changes its input and also sums or scatters it writes a new array, and
        # copies it back (the file's comment in 0cb4a9c8; the peaks of tests/theory/test_megatron_memory.py confirm it).
        "native": Loss(
            (
                ArrayPass("cast and largest logit", "n", "w"),
                *_in_place("exponentials", "exponentials copied back", "softmax"),
            ),
            (*_in_place("softmax copy"), ArrayPass("softmax times loss gradient", "w", "wg")),
            held_backward="wg",
            cast="after_cast",
        ),
        # Dao-AILab/flash-attention 058ad35a39, flash_attn/ops/triton/cross_entropy.py, with `inplace_backward`
        "fused": Loss(
            (ArrayPass("fused cross entropy", "n"),),
            (ArrayPass("fused cross entropy gradient", "n", "n"),),
            "n",
            cast="after_cast",
        ),
        # linkedin/Liger-Kernel ead96b618e, ops/cross_entropy.py (liger_cross_entropy_kernel, cross_entropy_backward)
        "in_place": Loss(
            (ArrayPass("in-place cross entropy", "n", "n", again="n"),),
            (ArrayPass("loss gradient times logits gradient", "n", "n", if_scaled=True),),
            "n",
            cast="after_cast",
        ),
        # The same commit, ops/fused_linear_cross_entropy.py: head and loss of a chunk of tokens at a time, with matmuls
        # between (`_chunked`); recalled
        "chunked": Loss((ArrayPass("chunked cross entropy", "n", "n", again="n"),), saved="", cast="never"),
    }
)


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
    saved, labels, *mask = ideal.saved
    saved = (
        Saved("logits", source.output, source.name) if loss.keeps_input else replace(saved, nbytes=sizes[loss.saved])
    )
    if step.keys.float32_outputs:
        returned = Elementwise("returned logits", sizes["n"], sizes["w"])
        before.append(Operation("returned logits", (returned,), (), output=sizes["w"]))
    # The kernels read the last copy, whatever its dtype.
    sizes["n"] = source.output
    forward, backward = (
        _kernels(passes, sizes, labels.nbytes // _LABEL_BYTES, scaled=scaled)
        for passes in (loss.forward, loss.backward)
    )
    return (*before, replace(ideal, forward=forward, backward=backward, saved=(saved, labels, *mask)))


def _shifted(size: int) -> Operation:
    """Return the operation that copies logits of `size` bytes without each sequence's last token, one row of many.

    Backward, an array of zeros receives the copy's gradient.
    """
    name = "shifted logits"
    forward = Elementwise(name, size, size, fusible=True)
    backward = Elementwise(f"{name} gradient", size, 2 * size, fusible=True)
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
    arrays = loss.held_backward
    for kernel in loss.backward if step.keys.compile else ():
        arrays = arrays.replace(kernel.written, "", 1) if kernel.fusible else arrays
    return _nbytes(arrays, _sizes(model, batch))


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


def _kernels(
    passes: Iterable[ArrayPass], sizes: dict[str, int], tokens: int, *, scaled: bool
) -> tuple[Elementwise, ...]:
    """Return the kernels of passes over arrays of `tokens` rows."""
    return tuple(
        Elementwise(
            kernel.name,
            _nbytes(kernel.read, sizes)
            + sum(sizes[letter] for letter in kernel.again if sizes[letter] > _SHORT_ROW * tokens),
            _nbytes(kernel.written, sizes),
            fusible=kernel.fusible,
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
    loss, batch = LOSSES["chunked"], batch.narrow
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
            kernels.append(Elementwise("logits weight gradient add", 2 * table, table))
            if model.head_bias:
                kernels.append(Elementwise("logits bias gradient", logits, words * batch.itemsize))
    backward: list[Kernel] = []
    if scaled:
        backward.append(Elementwise("loss gradient times input gradient", entered, entered))
        if not frozen:
            name = "loss gradient times weight gradient"
            backward.append(Elementwise(name, table, table, of_weights=True))
    labels = Saved("labels", _LABEL_BYTES * batch.tokens, "input")
    gradient = Saved("head input gradient", entered, "cross entropy")
    before = operations[: [op.name for op in operations].index("logits")]
    return (*before, Operation("cross entropy", tuple(kernels), tuple(backward), (gradient, labels), _FLOAT32))
