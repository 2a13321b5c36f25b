"""Records for the operations of a layer, and the common operations: matrices, norms, the residual addition.

Counts for a micro-batch, without GPU, sharding or schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from simulator.model.adapters import AdapterKernels, Lora, Target, adapter_kernels
from simulator.model.dora import dora_kernels, dora_peaks, kept_by_dora
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.partition import WHOLE, Communication, ModelPartition, around_columns, around_rows
from simulator.model.quantised import product
from simulator.model.shape import Transformer

# Bytes of an element in float32, and in float16 and bfloat16 [B].
_FLOAT32: Final = 4
_HALF: Final = 2

# Operations of frameworks with a matrix for each, and the merged matrix that has their parameters.
_MERGED: Final = {"queries": "qkv", "keys": "qkv", "values": "qkv", "gating": "up", "shared gating": "shared up"}

AttentionKernels = Literal["flash", "standard", "eager"]
# Whose kernels compute the parts of a layer: files of simulator/model/programs with a PARTS.
ProgramName = Literal[
    "bare",
    "foak",
    "internevo",
    "llm_foundry",
    "nanotron",
    "torchtitan",
    "torchtitan_2024",
    "torchtune",
    "transformers",
]
# Implementations of the loss: the records of simulator/step/kernels/losses.py.
LossKernels = Literal[
    "ideal", "separate", "narrow", "vocab_parallel", "sharded", "native", "fused", "in_place", "chunked"
]
# Operations of a layer by the scope of a CUDA graph that contains them, in Megatron-Core's words (cuda_graph_scope);
# "mlp" is that of layers without experts.
GRAPH_SCOPES: Final[Mapping[str, frozenset[str]]] = MappingProxyType({
    "attn": frozenset((
        "norm1", "qkv", "queries", "keys", "values", "query", "query down", "query norm", "query up", "kv down",
        "kv norm", "kv up", "query and key norm", "rotary", "latent rotary", "repeated heads", "attention", "proj",
        "norm1 after", "residual1",
    )),
    "mamba": frozenset(("mamba norm", "mamba in", "mamba scan", "mamba out", "mamba residual")),
    "mlp": frozenset(("norm2", "gating", "up", "activation", "activation product", "down", "norm2 after", "residual2")),
    "moe_router": frozenset(("norm2", "router", "shared up", "shared activation", "shared down")),
    "moe_preprocess": frozenset(("latent down", "dispatch")),
})  # fmt: skip
FULL_ITERATION: Final = "full_iteration"


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch on a rank, and how a layer computes it.

    Attributes
    ----------
    sequences, seq_len : int
        Sequences of the micro-batch, and tokens of a whole sequence (before any cut).
    itemsize : int
        Bytes of an activation element [B].
    attention : {"flash", "standard", "eager"}
        Scores stay on the chip, or are written to HBM; eager: with a softmax in float32.
    dropout : bool
        True if the model trains with dropout.
    statistics_itemsize : int
        Bytes of a norm's mean or deviation, 4 on GPUs [B].
    cut : ModelPartition
        The rank's part of the model.
    adapters : Lora or None
        Low-rank adapters of a frozen model; None if every parameter is trained.
    float16 : bool
        Whether activations are float16; only quantised matrices and scans ask.
    trained : frozenset of str
        Parameters that are trained although `adapters` freeze the model, by operation: "qkv.weight" (see
        `operation_parameter`).
    begins : bool
        Whether nothing before the first of `trained` needs a gradient.
    written_itemsize : int
        Bytes of an element of a quantised matrix when written out, and of its matmul's operands; 0 for `itemsize` [B].
    documents : tuple of int
        Tokens of each document, if sequences are packed with several; empty if every sequence is one document.
    program : {"bare", "torchtitan", "transformers", ...}
        Framework whose kernels compute a layer's parts; "bare" for kernels without a framework's overhead.
    autocast : bool
        Whether PyTorch's autocast runs matrices and attention in two bytes beside float32 parameters and hidden states.
    """

    sequences: int
    seq_len: int
    itemsize: int = 2
    attention: AttentionKernels = "flash"
    dropout: bool = False
    statistics_itemsize: int = 4
    cut: ModelPartition = WHOLE
    adapters: Lora | None = None
    float16: bool = False
    trained: frozenset[str] = frozenset()
    begins: bool = False
    written_itemsize: int = 0
    documents: tuple[int, ...] = ()
    program: ProgramName = "bare"
    autocast: bool = False

    @property
    def narrow(self) -> Batch:
        """The micro-batch for what matrices and attention make: in two bytes under autocast."""
        return replace(self, itemsize=_HALF) if self.autocast else self

    @property
    def stream(self) -> Batch:
        """The micro-batch for operations on hidden states, which may be wider beside quantised matrices."""
        if self.adapters is None or not self.adapters.float32_hidden or self.written_itemsize:
            return self
        return replace(self, itemsize=_FLOAT32, written_itemsize=self.itemsize)

    def trains(self, parameter: str) -> bool:
        """Return True if the parameter of an operation, such as "qkv.weight", has a gradient."""
        if self.adapters is None:
            return True
        name, _, kind = parameter.rpartition(".")
        return f"{_MERGED.get(name, name)}.{kind}" in self.trained

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch on a rank."""
        return self.sequences * self.seq_len // self.cut.context.ranks

    @property
    def tokens_between(self) -> int:
        """Tokens on a rank between matrices (fewer with sequence parallelism)."""
        return self.tokens // self.cut.along_sequence


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved tensor: an array kept for the backward pass."""

    name: str
    nbytes: int  # size [B]
    source: str  # operation whose output it is, or "input" for the layer's input


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a layer: kernels, saved tensors and exchanges.

    Attributes
    ----------
    forward, backward : tuple of Kernel
        Kernels of each pass, in order.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[Saved, ...] = ()  # saved tensors
    output: int = 0  # bytes of the output [B]
    quadratic: bool = False  # True if the size grows with the square of the sequence (scores, softmax, their dropout)
    communications: tuple[Communication, ...] = ()  # exchanges among the ranks that share the model
    # Most bytes allocated at once in the forward pass, saved tensors and output included; 0 without temporary arrays
    # [B]
    forward_peak: int = 0
    # Most bytes allocated at once in the backward pass, beside saved tensors and the gradient of the output; 0 if these
    # are the gradient of the input alone [B]
    backward_peak: int = 0

    @property
    def of_inputs(self) -> int:
        """Number of backward kernels that compute gradients of inputs."""
        return sum(not kernel.of_weights for kernel in self.backward)

    @property
    def saves_own(self) -> bool:
        """Return True if the operation saves a tensor that it makes itself: an output, or rows of an adapter."""
        return any(saved.source == self.name for saved in self.saved)


def saved_bytes(operations: tuple[Operation, ...]) -> int:
    """Return the bytes that a layer's operations save for the backward pass [B]; tensors of equal name count once."""
    # Several operations may need the same tensor, which exists once: deduplicate by name.
    return sum({saved.name: saved.nbytes for op in operations for saved in op.saved}.values())


def linear(
    out: Matmul, batch: Batch, saved: Saved, *, bias: bool, parts: tuple[tuple[Target, int], ...] = ()
) -> Operation:
    """Return the operation for a linear layer: a matmul forward, two backward (input and weight gradient), and a bias
    reduction.

    A frozen matrix has no weight gradient. Its input is saved for its adapters, and by bitsandbytes if the matrix is in
    eight bits.

    Parameters
    ----------
    out : Matmul
        The forward matmul: rows, outputs and inputs, for each of `batch` independent matrices (experts).
    saved : Saved
        The saved input.
    bias : bool
        True if the matrix has a bias.
    parts : tuple of (target, int)
        What adapters may be added to, each with its number of outputs on this rank.
    """
    name, tokens, n, k, groups = out.name, out.m, out.n, out.k, out.batch
    back = Matmul(f"{name} input gradient", tokens, k, n, groups, kind=out.kind)
    forward: tuple[Kernel, ...] = (out,)
    backward: tuple[Kernel, ...] = (back,)
    size = tokens * groups * n * batch.itemsize
    tensors: tuple[Saved, ...] = (saved,)
    peaks = 0, 0
    if batch.trains(f"{name}.weight"):
        backward += (Matmul(f"{name} weight gradient", n, k, tokens, groups, of_weights=True, kind=out.kind),)
        if batch.autocast:
            wide, narrow = (itemsize * groups * n * k for itemsize in (_FLOAT32, _HALF))
            forward = (Elementwise(f"{name} weight cast", wide, narrow), *forward)
            backward += (Elementwise(f"{name} weight gradient cast", narrow, wide, of_weights=True),)
            tensors += (Saved(f"{name} narrow weight", narrow, name),)
    elif batch.adapters is not None:
        adapters, adapted = batch.adapters, batch.adapters.of(parts)
        outliers = 0
        if adapters.base_format is not None:
            stored = batch.written_itemsize or batch.itemsize
            frozen = product(adapters.base_format, (out, back), parts or ((name, n),), stored, float16=batch.float16)
            forward, backward, outliers = frozen.forward, frozen.backward, frozen.outliers
            if stored != batch.itemsize:
                forward, backward = _between_casts(name, tokens * groups, n, k, batch, forward, backward)
        added = AdapterKernels()
        for target, outputs in adapted:
            added += adapter_kernels(adapters, target, outputs, tokens, k, batch.itemsize)
            if adapters.dora:
                added += dora_kernels(adapters, target, outputs, tokens, k, batch.itemsize)
        forward += added.forward
        backward += (*added.inputs, *added.weights)
        # The gradient of A needs the adapter's input, the gradient of B the output of A.
        input_bytes = tokens * k * adapters.kept_per_input(batch.itemsize)
        # A saved input of fewer bytes than the matmul's is this rank's part of a sequence.
        if saved.nbytes < (gathered := tokens * k * batch.itemsize) and not adapters.regather:
            saved = Saved(f"{name} gathered input", gathered, name)
        inputs = (
            [Saved(f"{target} adapter input", input_bytes, name) for target, _ in adapted] if input_bytes else [saved]
        )
        rows = tokens * adapters.rank * adapters.itemsize
        tensors = (*inputs, *(Saved(f"{target} adapter rows", rows, name) for target, _ in adapted)) if adapted else ()
        if adapters.dora:
            sizes = [
                (target, kept_by_dora(adapters, outputs, tokens, k, batch.itemsize)) for target, outputs in adapted
            ]
            tensors = (*tensors, *(Saved(f"{target} dora products", nbytes, name) for target, nbytes in sizes))
            peaks = _peaks_with_dora(adapters, [outputs for _, outputs in adapted], tokens, k, batch.itemsize)
        if outliers:
            tensors = (*dict.fromkeys((saved, *tensors)), Saved(f"{name} outlier inputs", outliers, name))
    # A bias gradient sums the output gradient over tokens: a reduction bound by HBM, not a matmul.
    if bias and batch.trains(f"{name}.bias"):
        read = tokens * groups * n * batch.itemsize
        backward += (Elementwise(f"{name} bias gradient", read, n * batch.itemsize, of_weights=True),)
        if batch.autocast:
            forward = (Elementwise(f"{name} bias cast", _FLOAT32 * n, _HALF * n), *forward)
            backward += (Elementwise(f"{name} bias gradient cast", _HALF * n, _FLOAT32 * n, of_weights=True),)
    return Operation(name, forward, backward, tensors, size, forward_peak=peaks[0], backward_peak=peaks[1])


def _between_casts(
    name: str, rows: int, n: int, k: int, batch: Batch, forward: tuple[Kernel, ...], backward: tuple[Kernel, ...]
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the kernels of a matrix whose input and output are wider than its matmul's operands, with casts before and
    after in each pass.
    """
    wide, narrow = batch.itemsize, batch.written_itemsize

    def cast(what: str, elements: int, *, widens: bool) -> Elementwise:
        read, written = (narrow, wide) if widens else (wide, narrow)
        return Elementwise(f"{name} {what}", read * elements, written * elements)

    return (
        (cast("input cast", rows * k, widens=False), *forward, cast("output cast", rows * n, widens=True)),
        (
            cast("output gradient cast", rows * n, widens=False),
            *backward,
            cast("input gradient cast", rows * k, widens=True),
        ),
    )


def _peaks_with_dora(adapters: Lora, outputs: list[int], tokens: int, inputs: int, itemsize: int) -> tuple[int, int]:
    """Return the most bytes allocated at once in the forward and the backward pass of matrices that share an input
    (`Operation`); the matrices, with these numbers of outputs, run one after the other.
    """
    forward = backward = before = 0
    saved = tokens * (inputs * adapters.kept_per_input(itemsize) + adapters.rank * adapters.itemsize)
    for left in outputs:
        forward = max(forward, before + dora_peaks(adapters, left, tokens, inputs, itemsize)[0])
        before += saved + kept_by_dora(adapters, left, tokens, inputs, itemsize) + tokens * left * itemsize
    entered, freed = tokens * inputs * itemsize, 0
    # Backward, the last matrix comes first. Gradients of the input arrive one after the other, and are summed.
    for left in reversed(outputs):
        summed = entered if freed else 0
        backward = max(backward, summed + dora_peaks(adapters, left, tokens, inputs, itemsize)[1] - freed)
        freed += saved + kept_by_dora(adapters, left, tokens, inputs, itemsize)
        # Two gradients and their sum, when the matrix has freed its saved tensors.
        backward = max(backward, 3 * entered - freed)
    return forward, backward


def needed_backward(operations: tuple[Operation, ...], batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a module, without backward pass and saved tensors where no gradient is needed: before
    the first trained parameter of the model.
    """
    if not batch.begins:
        return operations
    names = {operation.rpartition(".")[0] for operation in batch.trained}
    begins = next((place for place, operation in enumerate(operations) if operation.name in names), 0)
    still = tuple(
        replace(
            operation,
            backward=(),
            saved=(),
            communications=tuple(part for part in operation.communications if not part.backward),
        )
        for operation in operations[:begins]
    )
    return (*still, *operations[begins:])


def columns(
    name: str,
    n: int,
    k: int,
    batch: Batch,
    saved: Saved,
    *,
    bias: bool,
    gathers: int = 0,
    parts: tuple[tuple[Target, int], ...] = (),
) -> Operation:
    """Return the operation for a linear layer (k inputs, n outputs) with a matrix cut by columns over tensor-parallel
    ranks.

    The output of `gathers` columns is gathered by all ranks. `parts` are what adapters may be added to, each with its
    number of outputs on all ranks together.
    """
    of_rank = tuple((target, outputs // batch.cut.tensor) for target, outputs in parts)
    operation = linear(Matmul(name, batch.tokens, n // batch.cut.tensor, k), batch, saved, bias=bias, parts=of_rank)
    adapters = None if batch.trains(f"{name}.weight") else batch.adapters
    again = adapters is None or not adapters.keeps_gathered(batch.itemsize)
    counts = operation.of_inputs, len(operation.backward)
    communications = around_columns(name, batch.tokens * k, batch.cut, *counts, again=again)
    if gathers:
        elements, after = batch.tokens * gathers, len(operation.forward)
        communications += (
            Communication(f"gather {name} output", "all_gather", elements, False, after, after),
            Communication(f"scatter {name} output gradient", "reduce_scatter", elements, True, 0, 0),
        )
    return replace(operation, communications=communications)


def rows(
    name: str,
    n: int,
    k: int,
    batch: Batch,
    saved: Saved,
    *,
    bias: bool,
    parts: tuple[tuple[Target, int], ...] = (),
) -> Operation:
    """Return the operation for a linear layer (k inputs, n outputs) with a matrix cut by rows over tensor-parallel
    ranks; `parts` are what adapters may be added to, each with its number of outputs.
    """
    operation = linear(Matmul(name, batch.tokens, n, k // batch.cut.tensor), batch, saved, bias=bias, parts=parts)
    communications = around_rows(name, batch.tokens * n, batch.cut, len(operation.forward))
    return replace(operation, communications=communications)


def norm(name: str, source: str, model: Transformer, batch: Batch) -> Operation:
    """Return the operation for a norm over the hidden size, on a micro-batch; `source` is the operation that made its
    input.
    """
    # With sequence parallelism each rank norms its part of the sequence.
    size = batch.tokens_between * model.hidden_size * batch.itemsize
    # LayerNorm saves mean and deviation, RMSNorm only the deviation.
    means = 1 if model.norm == "rmsnorm" else 2
    statistics = means * batch.tokens_between * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def soft_cap(name: str, size: int, *, quadratic: bool = False) -> Operation:
    """Return the operation that limits `size` bytes by a scaled tanh, whose output is saved."""
    return Operation(
        name,
        (Elementwise(name, size, size, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size, size, fusible=True),),
        (Saved(f"{name} output", size, name),),
        size,
        quadratic=quadratic,
    )


def unquantised(batch: Batch) -> Batch:
    """Return the micro-batch for a matrix that keeps the dtype of working parameters if other matrices are
    quantised.
    """
    return batch if batch.adapters is None else replace(batch, adapters=batch.adapters.replaced(base="params"))
