"""A model as a list of layers with operations: any network, in place of a transformer's sizes.

A layer has parameters by name, and operations with kernels and saved tensors. Every count is a fixed part plus a part
per sample of the micro-batch, hence a list holds for any micro-batch size. A file with layers (`layer_file.py`) and a
traced PyTorch module (`traced_file.py`) give the same record.

Example, a linear layer of 1,024 inputs and 4,096 outputs on one token per sample: the forward matmul has m = 1 per
sample, n = 4,096 and k = 1,024; on a micro-batch of 8 samples it is `Matmul(m=8, n=4096, k=1024)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from simulator.basics.work_unit import SAMPLE, TOKEN
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul, MatmulKind
from simulator.model.operation import Batch, Operation, Saved
from simulator.model.parameters import Module, Parameter

if TYPE_CHECKING:
    from simulator.model.adapters import Lora


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number that grows with the samples of a micro-batch: `fixed + per_sample * samples`."""

    fixed: int = 0
    per_sample: int = 0

    def of(self, samples: int) -> int:
        """Return the number for a micro-batch of `samples` samples."""
        return self.fixed + self.per_sample * samples

    def __add__(self, other: Count) -> Count:
        """Return the sum of two counts."""
        return Count(self.fixed + other.fixed, self.per_sample + other.per_sample)

    def times(self, factor: int) -> Count:
        """Return the count multiplied by a whole number."""
        return Count(self.fixed * factor, self.per_sample * factor)


NO_COUNT = Count()


@dataclass(frozen=True, slots=True)
class Amount:
    """Size of a tensor, or traffic of a kernel: elements in the activations' dtype, and bytes of other dtypes."""

    elements: Count = NO_COUNT  # elements with as many bytes as an activation
    nbytes: Count = NO_COUNT  # bytes of elements whose dtype never changes: labels, masks, float32 statistics [B]

    def of(self, batch: Batch) -> int:
        """Return the bytes for a micro-batch [B]."""
        return self.elements.of(batch.sequences) * batch.itemsize + self.nbytes.of(batch.sequences)

    def __add__(self, other: Amount) -> Amount:
        """Return the sum of two amounts."""
        return Amount(self.elements + other.elements, self.nbytes + other.nbytes)

    def times(self, factor: int) -> Amount:
        """Return the amount multiplied by a whole number."""
        return Amount(self.elements.times(factor), self.nbytes.times(factor))


@dataclass(frozen=True, slots=True)
class MatmulCounts:
    """A matmul kernel out[m, n] = a[m, k] b[k, n], `batch` times, on any number of samples."""

    name: str
    m: Count
    n: Count
    k: Count
    batch: Count = Count(1)
    of_weights: bool = False
    # Elements of an operand that repeat other elements of it and are read from HBM only once: those of overlapping
    # patches in a convolution
    reread: Count = NO_COUNT
    convolution: bool = False  # whether the matmul is a convolution, without a matrix of patches

    def kernel(self, batch: Batch) -> Kernel:
        """Return the matmul for a micro-batch."""
        m, n, k, times, reread = (c.of(batch.sequences) for c in (self.m, self.n, self.k, self.batch, self.reread))
        kind: MatmulKind = "convolution" if self.convolution else "matmul"
        return Matmul(self.name, m, n, k, times, of_weights=self.of_weights, reread=reread, kind=kind)


@dataclass(frozen=True, slots=True)
class AttentionCounts:
    """An attention kernel that keeps its scores on the chip, on any number of samples; `batch` is the number of
    sequences.
    """

    name: str
    batch: Count
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    causal: bool
    backward: bool
    keys: int | None = None

    def kernel(self, batch: Batch) -> Kernel:
        """Return the attention kernel for a micro-batch."""
        sequences = self.batch.of(batch.sequences)
        sizes = self.heads, self.kv_heads, self.seq_len, self.head_dim
        return Attention(self.name, sequences, *sizes, causal=self.causal, backward=self.backward, keys=self.keys)


@dataclass(frozen=True, slots=True)
class ElementwiseCounts:
    """A kernel limited by HBM traffic, on any number of samples."""

    name: str
    read: Amount
    written: Amount
    fusible: bool = False
    of_weights: bool = False

    def kernel(self, batch: Batch) -> Kernel:
        """Return the elementwise kernel for a micro-batch."""
        moved = self.read.of(batch), self.written.of(batch)
        # A list names every kernel: none stands for several of them.
        return Elementwise(self.name, *moved, fusible=self.fusible, of_weights=self.of_weights)


KernelCounts = MatmulCounts | AttentionCounts | ElementwiseCounts


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that is kept for the backward pass; `source` is the operation whose output it is, "input" for the
    layer's input.
    """

    name: str
    size: Amount
    source: str


@dataclass(frozen=True, slots=True)
class LayerOperation:
    """An operation of a layer: kernels of both passes, saved tensors, output; see `Operation`."""

    name: str
    forward: tuple[KernelCounts, ...] = ()
    backward: tuple[KernelCounts, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    output: Amount = Amount()

    def of(self, batch: Batch) -> Operation:
        """Return the operation on a micro-batch. A frozen one computes no gradients of weights, and a frozen matrix or
        convolution needs no saved input.
        """
        forward, backward = (
            tuple(kernel.kernel(batch) for kernel in kernels) for kernels in (self.forward, self.backward)
        )
        saved = tuple(Saved(part.name, part.size.of(batch), part.source) for part in self.saved)
        if not batch.trains(f"{self.name}.weight"):
            bias = batch.trains(f"{self.name}.bias")
            backward = tuple(
                part for part in backward if not part.of_weights or (bias and isinstance(part, Elementwise))
            )
            saved = () if any(isinstance(kernel, MatmulCounts) for kernel in self.forward) else saved
        return Operation(self.name, forward, backward, saved, self.output.of(batch))


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a list: what is gathered, recomputed and placed on a pipeline stage as one."""

    parameters: tuple[Parameter, ...]  # parameters, in the order of use
    operations: tuple[LayerOperation, ...]  # operations in forward order
    output: Amount  # output, which the next layer reads

    def without_own_output(self) -> Layer:
        """Return the layer without its saved output, for a next layer that saves the same tensor as its input."""
        if not self.operations:
            return self
        last = self.operations[-1]
        saved = tuple(tensor for tensor in last.saved if tensor.source != last.name or tensor.size != self.output)
        return replace(self, operations=(*self.operations[:-1], replace(last, saved=saved)))

    @property
    def saves_input(self) -> bool:
        """True if the layer keeps its input for the backward pass."""
        return any(tensor.source == "input" for operation in self.operations for tensor in operation.saved)


@dataclass(frozen=True)
class LayerList:
    """A model given by its layers; the first also prepares the input, the last also computes the loss.

    Attributes
    ----------
    first, last : Layer
        Units that stand where a transformer has embedding and head.
    """

    name: str
    first: Layer
    layers: tuple[Layer, ...]  # layers between them
    last: Layer
    tokens: int = 1  # tokens of a sample, 1 for a sample that is no sequence, as an image
    unknown: tuple[str, ...] = ()  # kinds of operations without a cost of their own, which count as limited by HBM

    @property
    def num_layers(self) -> int:
        """Number of layers between the first and the last."""
        return len(self.layers)

    @property
    def adapters(self) -> Lora | None:
        """None: a list of layers has no low-rank adapters yet."""
        return None

    @property
    def tied(self) -> bool:
        """False: layers share no parameters."""
        return False

    @property
    def mtp_layers(self) -> int:
        """0: layers that predict further tokens belong to transformers."""
        return 0

    @property
    def num_experts(self) -> int:
        """0: experts of a list of layers lie on every rank."""
        return 0

    @cached_property
    def kinds(self) -> Mapping[Layer, tuple[int, ...]]:
        """Kinds of layers in order of their first layer, each with the numbers of its layers."""
        numbers_of: dict[Layer, list[int]] = {}
        for number, layer in enumerate(self.layers):
            numbers_of.setdefault(layer, []).append(number)
        return {layer: tuple(numbers) for layer, numbers in numbers_of.items()}

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """First layer, layers and last layer with their parameters; equal layers share a tuple of parameters."""
        parameters_of = {layer: layer.parameters for layer in (self.first, *self.kinds, self.last)}
        names = ("embedding", *(f"layer {number}" for number in range(self.num_layers)), "head")
        return tuple(
            Module(name, parameters_of[layer])
            for name, layer in zip(names, (self.first, *self.layers, self.last), strict=True)
        )

    @cached_property
    def forward_flops_per_sample(self) -> float:
        """Floating-point operations of the forward matmuls, convolutions and attention on a sample [FLOP]."""
        return sum(
            kernel.flops
            for layer in (self.first, *self.layers, self.last)
            for operation in layer.operations
            for kernel in operation.of(Batch(1, self.tokens)).forward
        )

    @property
    def work_unit(self) -> str:
        """The unit in which work and speed are told: samples if a sample is no sequence and counts as one token."""
        return SAMPLE if self.tokens == 1 else TOKEN

    @property
    def has_attention(self) -> bool:
        """True if an attention kernel is among the model's kernels."""
        return any(
            isinstance(kernel, AttentionCounts)
            for layer in (self.first, *self.kinds, self.last)
            for operation in layer.operations
            for kernel in operation.forward
        )

    def entry_of(self, layer: int) -> Amount:
        """Return the size of the input of the layer with this number."""
        return self.layers[layer - 1].output if layer else self.first.output


def joined(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """Yield consecutive layers without tensors that are saved twice: a layer's output that the next layer saves as
    its input counts as the next layer's.
    """
    for layer, following in zip(layers, (*layers[1:], None), strict=True):
        yield layer.without_own_output() if following is not None and following.saves_input else layer
