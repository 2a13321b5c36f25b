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

from simulator.basics.dtypes import find
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.quantised import FORMATS, Format

# Matrices of a layer as Hugging Face names them, without "_proj": queries, keys, values, attention's output; and the
# feed-forward block's gate, up and down. A model without a gate has no "gate".
Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters of a model."""

    rank: int  # columns of B and rows of A, r
    targets: tuple[Target, ...]  # matrices with an adapter in every layer
    # Dtype of A and B. If it is wider than the activations, an adapter's input and its output's gradient are cast
    # (PEFT's default is float32).
    dtype: str = "float32"
    dropout: bool = False  # whether an adapter's input passes a dropout of its own
    # Format of the frozen matrices of layers, a key of `FORMATS`; "" for the dtype of working parameters
    base: str = ""
    dora: bool = False  # whether each output of an adapted matrix has a trained length (model/dora.py)
    # Whether hidden states are float32: outputs of norms, of matrices that read these, and the residual stream
    float32_hidden: bool = False

    @property
    def base_format(self) -> Format | None:
        """Format of the frozen matrices of layers; None if they are not quantised."""
        return FORMATS.get(self.base)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of A and B [B]."""
        return find(self.dtype).itemsize

    def of(self, parts: Sequence[tuple[Target, int]]) -> tuple[tuple[Target, int], ...]:
        """Return the parts of a matrix that have an adapter, each with its number of outputs.

        Examples
        --------
        >>> Adapters(8, ("q", "v")).of([("q", 64), ("k", 16), ("v", 16)])
        (('q', 64), ('v', 16))
        """
        return tuple((target, outputs) for target, outputs in parts if target in self.targets)

    def kept_per_input(self, itemsize: int) -> int:
        """Return the bytes saved of each input element of an adapter for its own sake, beside the matrix's input: a
        cast or dropped copy, and the mask [B].

        Parameters
        ----------
        itemsize : int
            Bytes of an activation element [B].

        Examples
        --------
        >>> Adapters(8, ("q",)).kept_per_input(2), Adapters(8, ("q",), dropout=True).kept_per_input(2)
        (4, 5)
        >>> Adapters(8, ("q",), "bfloat16").kept_per_input(2)
        0
        """
        copied = self.itemsize if self.dropout or self.itemsize != itemsize else 0
        return copied + int(self.dropout)


# Adapters of no matrix: what they belong to is frozen.
FROZEN: Final = Adapters(1, ())


@dataclass(frozen=True, slots=True)
class AdapterKernels:
    """Kernels of a matrix's adapters: forward pass, gradients of inputs, gradients of A and B."""

    forward: tuple[Kernel, ...] = ()
    inputs: tuple[Kernel, ...] = ()
    weights: tuple[Kernel, ...] = ()

    def __add__(self, other: AdapterKernels) -> AdapterKernels:
        """Return the kernels of both, each pass in sequence."""
        return AdapterKernels(self.forward + other.forward, self.inputs + other.inputs, self.weights + other.weights)


def adapter_kernels(
    adapters: Adapters, target: Target, outputs: int, tokens: int, inputs: int, itemsize: int
) -> AdapterKernels:
    """Return the kernels of an adapter on a micro-batch.

    Parameters
    ----------
    outputs, inputs : int
        Outputs and inputs of the adapted matrix on this rank.
    tokens : int
        Rows of the micro-batch.
    itemsize : int
        Bytes of an activation element [B].
    """
    name, rank, wide = f"{target} adapter", adapters.rank, adapters.itemsize
    entered, left = tokens * inputs, tokens * outputs
    casts = wide != itemsize

    def moved(what: str, read: float, written: float, *, wanted: bool = True) -> tuple[Kernel, ...]:
        return (Elementwise(f"{name} {what}", read, written, fusible=True, single=True),) if wanted else ()

    def matmul(what: str, m: int, n: int, k: int, *, of_weights: bool = False) -> Matmul:
        return Matmul(f"{name} {what}", m, n, k, of_weights=of_weights, dtype=adapters.dtype)

    forward = (
        *moved("cast", itemsize * entered, wide * entered, wanted=casts),
        *moved("dropout", wide * entered, (wide + 1) * entered, wanted=adapters.dropout),
        matmul("A", tokens, rank, inputs),
        matmul("B", tokens, outputs, rank),
        *moved("scale", wide * left, wide * left),
        *moved("add", (itemsize + wide) * left, wide * left),
        *moved("cast back", wide * left, itemsize * left, wanted=casts),
    )
    back = (
        *moved("gradient cast", itemsize * left, wide * left, wanted=casts),
        *moved("scale gradient", wide * left, wide * left),
        matmul("B input gradient", tokens, rank, outputs),
        matmul("A input gradient", tokens, inputs, rank),
        *moved("dropout gradient", (wide + 1) * entered, wide * entered, wanted=adapters.dropout),
        *moved("gradient cast back", wide * entered, itemsize * entered, wanted=casts),
        *moved("gradient add", 2 * itemsize * entered, itemsize * entered),
    )
    weights = (
        matmul("B weight gradient", outputs, rank, tokens, of_weights=True),
        matmul("A weight gradient", rank, inputs, tokens, of_weights=True),
    )
    return AdapterKernels(forward, back, weights)


def until_saved(forward: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Return the forward kernels of an adapted matrix that run before the last tensor is saved for the backward pass.

    B saves A x when B begins, and what follows B saves nothing. DoRA's last product saves B A x when the product begins
    (model/dora.py).

    Examples
    --------
    >>> own = adapter_kernels(Adapters(2, ("down",)), "down", outputs=4, tokens=8, inputs=16, itemsize=2)
    >>> [kernel.name for kernel in until_saved((Matmul("down", 8, 4, 16), *own.forward))]
    ['down', 'down adapter cast', 'down adapter A']
    """
    names = [kernel.name for kernel in forward]
    ends = [place for place, name in enumerate(names) if name.endswith(" dora adapter product")]
    ends = ends or [place for place, name in enumerate(names) if name.endswith(" adapter B")]
    return tuple(forward[: ends[-1]]) if ends else tuple(forward)
