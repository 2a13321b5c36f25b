"""Low-rank adapters (LoRA): which matrices of a frozen model have one, and what an adapter computes.

A frozen matrix W (n x k) gets two small trained matrices: y = W x + s B (A x), with A (r x k), B (n x r) and a fixed
scale s. Nothing else of the model is trained: no gradient, no optimizer state.

For T tokens, the kernels of a matrix with one adapter (PEFT's order):

    forward    W x        A x        B (A x)    scale    add to W x
    backward   W' dy      scale      B' (s dy)  A' (...) add to W' dy      gradient of B    gradient of A

References
----------
.. [1] Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022, arXiv:2106.09685.
.. [2] huggingface/peft, src/peft/tuners/lora/layer.py, `Linear.forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from simulator.model.kernel import Elementwise, Kernel, Matmul

# Matrices of a layer as Hugging Face names them, without "_proj": queries, keys, values, attention's output; and the
# feed-forward block's gate, up and down. A model without a gate has no "gate".
Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters of a model.

    Attributes
    ----------
    rank : int
        Columns of B and rows of A, r.
    targets : tuple of str
        Matrices with an adapter in every layer.
    """

    rank: int
    targets: tuple[Target, ...]

    def of(self, parts: Sequence[tuple[Target, int]]) -> tuple[tuple[Target, int], ...]:
        """Return the parts of a matrix that have an adapter, each with its number of outputs.

        Examples
        --------
        >>> Adapters(8, ("q", "v")).of([("q", 64), ("k", 16), ("v", 16)])
        (('q', 64), ('v', 16))
        """
        return tuple((target, outputs) for target, outputs in parts if target in self.targets)


@dataclass(frozen=True, slots=True)
class AdapterKernels:
    """Kernels of a matrix's adapters: forward pass, gradients of inputs, gradients of A and B."""

    forward: tuple[Kernel, ...] = ()
    inputs: tuple[Kernel, ...] = ()
    weights: tuple[Kernel, ...] = ()


def adapter_kernels(
    parts: Sequence[tuple[Target, int]], rank: int, tokens: int, inputs: int, itemsize: int
) -> AdapterKernels:
    """Return the kernels of a matrix's adapters on a micro-batch.

    Parameters
    ----------
    parts : sequence of (target, int)
        Adapted parts of the matrix, each with its number of outputs on this rank.
    rank, tokens, inputs : int
        r, rows of the micro-batch, and inputs of the matrix.
    itemsize : int
        Bytes of an activation element [B].
    """
    forward: list[Kernel] = []
    back: list[Kernel] = []
    weights: list[Kernel] = []
    entered = tokens * inputs * itemsize
    for target, outputs in parts:
        name, left = f"{target} adapter", tokens * outputs * itemsize
        forward += [
            Matmul(f"{name} A", tokens, rank, inputs),
            Matmul(f"{name} B", tokens, outputs, rank),
            Elementwise(f"{name} scale", left, left, fusible=True),
            Elementwise(f"{name} add", 2 * left, left, fusible=True),
        ]
        back += [
            Elementwise(f"{name} scale gradient", left, left, fusible=True),
            Matmul(f"{name} B input gradient", tokens, rank, outputs),
            Matmul(f"{name} A input gradient", tokens, inputs, rank),
            Elementwise(f"{name} gradient add", 2 * entered, entered, fusible=True),
        ]
        weights += [
            Matmul(f"{name} B weight gradient", outputs, rank, tokens, of_weights=True),
            Matmul(f"{name} A weight gradient", rank, inputs, tokens, of_weights=True),
        ]
    return AdapterKernels(tuple(forward), tuple(back), tuple(weights))
