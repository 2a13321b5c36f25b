"""Records for the operations of a layer, and the common operations: matrices, norms, the residual addition.

Counts for a micro-batch, without GPU, sharding or schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.partition import WHOLE, Communication, ModelPartition, around_columns, around_rows
from simulator.model.shape import Transformer


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch on a rank, and how a layer computes it.

    Attributes
    ----------
    sequences, seq_len : int
        Sequences of the micro-batch, and tokens of a whole sequence (before any cut).
    itemsize : int
        Bytes of an activation element [B].
    attention : {"flash", "standard"}
        Scores stay on the chip, or are written to HBM.
    dropout : bool
        True if the model trains with dropout.
    statistics_itemsize : int
        Bytes of a norm's mean or deviation, 4 on GPUs [B].
    cut : ModelPartition
        The rank's part of the model.
    """

    sequences: int
    seq_len: int
    itemsize: int = 2
    attention: Literal["flash", "standard"] = "flash"
    dropout: bool = False
    statistics_itemsize: int = 4
    cut: ModelPartition = WHOLE

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
    """A saved tensor: an array kept for the backward pass.

    Attributes
    ----------
    nbytes : int
        Size [B].
    source : str
        Operation whose output it is, or "input" for the layer's input.
    """

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a layer: kernels, saved tensors and exchanges.

    Attributes
    ----------
    forward, backward : tuple of Kernel
        Kernels of each pass, in order.
    saved : tuple of Saved
        Saved tensors.
    output : int
        Bytes of the output [B].
    quadratic : bool
        True if the size grows with the square of the sequence (scores, softmax, their dropout).
    communications : tuple of Communication
        Exchanges among the ranks that share the model.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[Saved, ...] = ()
    output: int = 0
    quadratic: bool = False
    communications: tuple[Communication, ...] = ()


def saved_bytes(operations: tuple[Operation, ...]) -> int:
    """Return the bytes that a layer's operations save for the backward pass [B]; tensors of equal name count once."""
    # Several operations may need the same tensor, which exists once: deduplicate by name.
    return sum({saved.name: saved.nbytes for op in operations for saved in op.saved}.values())


def linear(
    name: str,
    tokens: int,
    n: int,
    k: int,
    batch: Batch,
    saved: Saved,
    *,
    bias: bool,
    groups: int = 1,
    communications: tuple[Communication, ...] = (),
) -> Operation:
    """Return the operation for a linear layer: a matmul forward, two backward (input and weight gradient), and a bias
    reduction.

    Parameters
    ----------
    tokens, n, k : int
        Rows, outputs and inputs of the matmul, per group.
    saved : Saved
        The saved input.
    bias : bool
        True if the matrix has a bias.
    groups : int
        Independent matrices of the same size (experts).
    communications : tuple of Communication
        Exchanges around the matmuls.
    """
    forward = (Matmul(name, tokens, n, k, groups),)
    backward: tuple[Kernel, ...] = (
        Matmul(f"{name} input gradient", tokens, k, n, groups),
        Matmul(f"{name} weight gradient", n, k, tokens, groups, of_weights=True),
    )
    if bias:
        # A bias gradient sums the output gradient over tokens: a reduction bound by HBM, not a matmul.
        read = tokens * groups * n * batch.itemsize
        backward += (Elementwise(f"{name} bias gradient", read, n * batch.itemsize, of_weights=True),)
    return Operation(
        name, forward, backward, (saved,), tokens * groups * n * batch.itemsize, communications=communications
    )


def columns(name: str, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool, gathers: int = 0) -> Operation:
    """Return the operation for a linear layer (k inputs, n outputs) with a matrix cut by columns over tensor-parallel
    ranks.

    The output of `gathers` columns is gathered by all ranks.
    """
    # Backward kernels: input gradient, weight gradient and, if any, bias gradient.
    communications = around_columns(name, batch.tokens * k, batch.cut, 3 if bias else 2)
    if gathers:
        elements = batch.tokens * gathers
        communications += (
            Communication(f"gather {name} output", "all_gather", elements, False, 1, 1),
            Communication(f"scatter {name} output gradient", "reduce_scatter", elements, True, 0, 0),
        )
    return linear(name, batch.tokens, n // batch.cut.tensor, k, batch, saved, bias=bias, communications=communications)


def rows(name: str, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool) -> Operation:
    """Return the operation for a linear layer (k inputs, n outputs) with a matrix cut by rows over tensor-parallel
    ranks.
    """
    communications = around_rows(name, batch.tokens * n, batch.cut)
    return linear(name, batch.tokens, n, k // batch.cut.tensor, batch, saved, bias=bias, communications=communications)


def norm(name: str, source: str, model: Transformer, batch: Batch) -> Operation:
    """Return the operation for a norm over the hidden size, on a micro-batch; `source` is the operation that made its
    input.
    """
    # With sequence parallelism each rank norms its part of the sequence.
    size = batch.tokens_between * model.hidden_size * batch.itemsize
    # LayerNorm saves mean and deviation, RMSNorm only the deviation.
    means = 2 if model.norm == "layernorm" else 1
    statistics = means * batch.tokens_between * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def norm_of(name: str, source: str, elements: int, rows: int, batch: Batch) -> Operation:
    """Return the operation of an RMSNorm over `rows` rows with `elements` elements in total; `source` made its
    input.
    """
    # RMSNorm saves a single statistic per row.
    size, statistics = elements * batch.itemsize, rows * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def residual(name: str, model: Transformer, batch: Batch) -> Operation:
    """Return the operation that adds a block's output, after dropout (if any), to the residual stream of a
    micro-batch.
    """
    elements = batch.tokens_between * model.hidden_size
    size = elements * batch.itemsize
    forward = [Elementwise(f"{name} add", 2 * size, size, fusible=True)]
    backward: list[Kernel] = []
    saved: tuple[Saved, ...] = ()
    if batch.dropout:
        forward.insert(0, Elementwise(f"{name} dropout", size, size + elements, fusible=True))
        backward.append(Elementwise(f"{name} dropout gradient", size + elements, size, fusible=True))
        saved = (Saved(f"{name} mask", elements, name),)
    # Backward, the gradients of residual stream and block are added.
    backward.append(Elementwise(f"{name} gradient add", 2 * size, size, fusible=True))
    return Operation(name, tuple(forward), tuple(backward), saved, size)
