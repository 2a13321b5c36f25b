"""Which kernels compute the loss from the logits, and which arrays do they hold? One record for each implementation.

An array has an element for each token and word. Letters name the arrays: "n" has the dtype of the logits and "w" is
float32; "c" is a float32 copy of the logits, and "g" the gradient cast to their dtype, both absent if logits are
float32. Llama 3 8B, a micro-batch of 8,192 tokens, 128,256 words: "n" has 2.1 GB, "w" 4.2 GB. Kernels that handle a
number per token are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

LossKernels = Literal[
    "ideal", "separate", "narrow", "vocab_parallel", "sharded", "native", "fused", "in_place", "chunked"
]
# Copy of the logits without each sequence's last token, which has no next token: none, or of the logits before or after
# their cast to float32.
LogitShift = Literal["none", "before_cast", "after_cast"]


@dataclass(frozen=True, slots=True)
class Pass:
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

    forward: tuple[Pass, ...]
    backward: tuple[Pass, ...] = ()
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


def _in_place(*names: str) -> tuple[Pass, ...]:
    """Return kernels that overwrite a float32 array."""
    return tuple(Pass(name, "w", "w") for name in names)


def _pytorch(array: str) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """Return the forward and the backward passes of PyTorch's cross entropy of logits in `array`.

    Log-softmax reads a row for its maximum, for the sum of exponentials, and for the result; its backward kernel reads
    the gradient for its sum, and again beside the log-probabilities. The gradient is first filled with zeros.
    Source: pytorch/pytorch 000cace5a4, aten/src/ATen/native/cuda/SoftMax.cu, cunn_SoftMaxForward and
    cunn_SoftMaxBackward; LossNLL.cu (zeros) is recalled.
    """
    zeros = Pass("loss gradient", "", array, fusible=True)
    forward = Pass("log-softmax", array, array, again=2 * array)
    return (forward,), (zeros, Pass("log-softmax gradient", 2 * array, array, again=array))


# Megatron-LM's kernels over the float32 copy; the softmax overwrites it, and the gradient overwrites the softmax.
_MEGATRON: Final = (
    (
        Pass("largest logit", "w"),
        *_in_place("shifted by largest logit", "exponentials"),
        Pass("sum of exponentials", "w"),
        *_in_place("softmax"),
    ),
    _in_place("softmax times loss gradient"),
)

LOSSES: Final[Mapping[LossKernels, Loss]] = MappingProxyType(
    {
        # Each array moved once, gradients in place.
        "ideal": Loss(
            (Pass("log-softmax", "w", "w"),),
            (Pass("loss gradient", "", "w", fusible=True), Pass("log-softmax gradient", "ww", "w")),
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
                Pass("cast and largest logit", "n", "w"),
                *_in_place("exponentials", "exponentials copied back", "softmax"),
            ),
            (*_in_place("softmax copy"), Pass("softmax times loss gradient", "w", "wg")),
            held_backward="wg",
            cast="after_cast",
        ),
        # Dao-AILab/flash-attention 058ad35a39, flash_attn/ops/triton/cross_entropy.py, with `inplace_backward`
        "fused": Loss(
            (Pass("fused cross entropy", "n"),),
            (Pass("fused cross entropy gradient", "n", "n"),),
            "n",
            cast="after_cast",
        ),
        # linkedin/Liger-Kernel ead96b618e, ops/cross_entropy.py (liger_cross_entropy_kernel, cross_entropy_backward)
        "in_place": Loss(
            (Pass("in-place cross entropy", "n", "n", again="n"),),
            (Pass("loss gradient times logits gradient", "n", "n", if_scaled=True),),
            "n",
            cast="after_cast",
        ),
        # The same commit, ops/fused_linear_cross_entropy.py: head and loss of a chunk of tokens at a time, with matmuls
        # between (loss_operations.py); recalled
        "chunked": Loss((Pass("chunked cross entropy", "n", "n", again="n"),), saved="", cast="never"),
    }
)
