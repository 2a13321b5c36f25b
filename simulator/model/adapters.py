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
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from simulator.basics import reading
from simulator.basics.dtypes import find
from simulator.basics.errors import one_of
from simulator.basics.spec import Spec
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.quantised import FORMATS, QuantisedFormat

# Matrices of a layer as Hugging Face names them, without "_proj": queries, keys, values, attention's output; and the
# feed-forward block's gate, up and down. A model without a gate has no "gate".
Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)


# Words for several targets at once; PEFT's name for the first is "all-linear".
_ALL: Final = "all"
TARGET_GROUPS: Final = {"attention": ("q", "k", "v", "o"), "feed_forward": ("gate", "up", "down")}


def _targets() -> reading.ValueReader:
    """Return a validator for the adapted matrices: a word, or a list of names."""
    words = (_ALL, *TARGET_GROUPS)

    def reader(value: Any) -> Any:
        if value in ("all-linear", "all_linear"):
            return _ALL
        if isinstance(value, str):
            if value not in words:
                raise ValueError(f"got {value!r}; {one_of(words, value)}, or a list of {', '.join(TARGETS)}")
            return value
        if not isinstance(value, list | tuple) or value == []:
            raise ValueError(f"got {reading.shown(value)}; {one_of(words, '')}, or a list of {', '.join(TARGETS)}")
        names = tuple(str(name).removesuffix("_proj") for name in value)
        unknown = next((name for name in names if name not in TARGETS), None)
        if unknown is not None:
            raise ValueError(f"got {unknown!r}; {one_of(TARGETS, unknown)}")
        return tuple(target for target in TARGETS if target in names)

    schema = {"type": "array", "minItems": 1, "items": {"enum": [*TARGETS, *(f"{name}_proj" for name in TARGETS)]}}
    return reading.ValueReader(reader, lambda: {"anyOf": [{"enum": [*words, "all-linear"]}, schema]})


class Lora(Spec):
    """Low-rank adapters on a frozen model (keys of `lora`)."""

    rank: Annotated[int, reading.whole(0, 4096)] = Field(
        default=0, description="Rank of the adapters, which alone are trained; 0 trains every parameter."
    )
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], reading.choice(("float32", "bfloat16", "float16"))] = (
        Field(
            default="float32",
            description="Dtype of the adapters' parameters and arithmetic; PEFT's default is float32.",
        )
    )
    dropout: Annotated[bool | float, reading.yes_no_or_probability()] = Field(
        default=False, description="Dropout of the adapters' inputs: true (probability 0.1), false, or a probability."
    )
    base: Annotated[Literal["params", "nf4", "nf4_single", "gptq", "int8"], reading.choice(("params", *FORMATS))] = (
        Field(
            default="params",
            description=(
                "Format of the frozen matrices of layers: the dtype of parameters, 4-bit NF4 with double (nf4) or "
                "single quantisation (QLoRA), 4-bit GPTQ in groups of 128, or 8 bits, multiplied in 8 bits (int8, "
                "LLM.int8())."
            ),
        )
    )
    dora: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description="Whether each output of an adapted matrix has a trained length (DoRA), with PEFT's kernels.",
    )
    hidden: Annotated[Literal["params", "float32"], reading.choice(("params", "float32"))] = Field(
        default="params",
        description=(
            "Dtype of hidden states between matrices: the dtype of parameters (params), or float32, as after PEFT's "
            "prepare_model_for_kbit_training on nf4 and int8."
        ),
    )
    targets: Annotated[Any, _targets()] = Field(
        default=_ALL,
        description=(
            "Matrices with an adapter in every layer: all, attention, feed_forward, or a list of q, k, v, o, gate, up, "
            "down."
        ),
    )

    regather: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description=(
            "Under sequence parallelism, whether the backward pass gathers the input of an adapted matrix again, as "
            "that of a trained matrix; otherwise each rank keeps the whole input, as Megatron-Bridge by default."
        ),
    )

    @property
    def float32_hidden(self) -> bool:
        """True if hidden states are float32: outputs of norms, of matrices that read these, and the residual stream."""
        return self.hidden == "float32"

    @property
    def base_format(self) -> QuantisedFormat | None:
        """Format of the frozen matrices of layers; None if they are not quantised."""
        return FORMATS.get(self.base)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of A and B [B]."""
        return find(self.dtype).itemsize

    def of(self, parts: Sequence[tuple[Target, int]]) -> tuple[tuple[Target, int], ...]:
        """Return the parts of a matrix that have an adapter, each with its number of outputs.

        >>> Lora(rank=8, targets=("q", "v")).of([("q", 64), ("k", 16), ("v", 16)])
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
        >>> Lora(rank=8).kept_per_input(2), Lora(rank=8, dropout=True).kept_per_input(2)
        (4, 5)
        >>> Lora(rank=8, dtype="bfloat16").kept_per_input(2)
        0
        """
        copied = self.itemsize if self.dropout or self.itemsize != itemsize else 0
        return copied + bool(self.dropout)

    def keeps_gathered(self, itemsize: int) -> bool:
        """Return True if sequence-parallel ranks keep the gathered inputs of adapted matrices, whose elements have
        `itemsize` bytes: as they are, or as copies.
        """
        return not self.regather or self.kept_per_input(itemsize) > 0


# Adapters of no matrix: what they belong to is frozen.
FROZEN: Final = Lora(rank=1, targets=())


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
    adapters: Lora, target: Target, outputs: int, tokens: int, inputs: int, itemsize: int
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

    def moved(what: str, read: float, written: float, *, needed: bool = True) -> tuple[Kernel, ...]:
        return (Elementwise(f"{name} {what}", read, written, fusible=True),) if needed else ()

    def matmul(what: str, m: int, n: int, k: int, *, of_weights: bool = False) -> Matmul:
        return Matmul(f"{name} {what}", m, n, k, of_weights=of_weights, dtype=adapters.dtype)

    forward = (
        *moved("cast", itemsize * entered, wide * entered, needed=casts),
        *moved("dropout", wide * entered, (wide + 1) * entered, needed=bool(adapters.dropout)),
        matmul("A", tokens, rank, inputs),
        matmul("B", tokens, outputs, rank),
        *moved("scale", wide * left, wide * left),
        *moved("add", (itemsize + wide) * left, wide * left),
        *moved("cast back", wide * left, itemsize * left, needed=casts),
    )
    back = (
        *moved("gradient cast", itemsize * left, wide * left, needed=casts),
        *moved("scale gradient", wide * left, wide * left),
        matmul("B input gradient", tokens, rank, outputs),
        matmul("A input gradient", tokens, inputs, rank),
        *moved("dropout gradient", (wide + 1) * entered, wide * entered, needed=bool(adapters.dropout)),
        *moved("gradient cast back", wide * entered, itemsize * entered, needed=casts),
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

    >>> own = adapter_kernels(Lora(rank=2), "down", outputs=4, tokens=8, inputs=16, itemsize=2)
    >>> [kernel.name for kernel in until_saved((Matmul("down", 8, 4, 16), *own.forward))]
    ['down', 'down adapter cast', 'down adapter A']
    """
    names = [kernel.name for kernel in forward]
    ends = [place for place, name in enumerate(names) if name.endswith(" dora adapter product")]
    ends = ends or [place for place, name in enumerate(names) if name.endswith(" adapter B")]
    return tuple(forward[: ends[-1]]) if ends else tuple(forward)
