"""Operations of a layer, as records, and those that every layer is made of: matrices, norms, the residual stream.

Rule: counts of one micro-batch; knows no GPU, no sharding, no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.model.cut import WHOLE, Communication, Cut, around_columns, around_rows
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.shape import Transformer


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes through a layer at once, and how.

    Attributes
    ----------
    sequences, seq_len : int
        Of a micro-batch on one rank; sequences are whole here.
    itemsize : int
        Bytes of an activation [B].
    attention : {"flash", "standard"}
        Scores kept on chip, or written to HBM.
    dropout : bool
    statistics_itemsize : int
        Of the norms' means and deviations: 4 on GPUs [B].
    cut : Cut
        What of the model this rank computes.
    """

    sequences: int
    seq_len: int
    itemsize: int = 2
    attention: Literal["flash", "standard"] = "flash"
    dropout: bool = False
    statistics_itemsize: int = 4
    cut: Cut = WHOLE

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch that a rank has."""
        return self.sequences * self.seq_len // self.cut.context.ranks

    @property
    def tokens_between(self) -> int:
        """Tokens that a rank has between matrices, where sequences may be cut."""
        return self.tokens // self.cut.along_sequence


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that the backward pass needs.

    Attributes
    ----------
    name : str
    nbytes : int
        [B]
    source : str
        The operation whose output it is, or "input" for the layer's own.
    """

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a layer.

    Attributes
    ----------
    name : str
    forward, backward : tuple of Kernel
    saved : tuple of Saved
        What it keeps for its backward pass.
    output : int
        Bytes of its output [B].
    quadratic : bool
        Whether its size grows with the square of the sequence (scores, softmax, their dropout).
    communications : tuple of Communication
        Among the ranks that the model is cut over.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[Saved, ...] = ()
    output: int = 0
    quadratic: bool = False
    communications: tuple[Communication, ...] = ()


def saved_bytes(operations: tuple[Operation, ...]) -> int:
    """Bytes that a layer keeps for its backward pass [B]; a tensor that several operations need counts once."""
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
    """A matrix: one matmul forward, two backward (input's and weight's gradient), the bias's gradient a reduction."""
    forward = (Matmul(name, tokens, n, k, groups),)
    backward: tuple[Kernel, ...] = (
        Matmul(f"{name} input gradient", tokens, k, n, groups),
        Matmul(f"{name} weight gradient", n, k, tokens, groups, of_weights=True),
    )
    if bias:
        read = tokens * groups * n * batch.itemsize
        backward += (Elementwise(f"{name} bias gradient", read, n * batch.itemsize, of_weights=True),)
    return Operation(
        name, forward, backward, (saved,), tokens * groups * n * batch.itemsize, communications=communications
    )


def columns(name: str, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool, gathers: int = 0) -> Operation:
    """A matrix that is cut by columns; of `gathers` columns the output is gathered among all ranks."""
    communications = around_columns(name, batch.tokens * k, batch.cut, 3 if bias else 2)
    if gathers:
        elements = batch.tokens * gathers
        communications += (
            Communication(f"gather {name} output", "all_gather", elements, False, 1, 1),
            Communication(f"scatter {name} output gradient", "reduce_scatter", elements, True, 0, 0),
        )
    return linear(name, batch.tokens, n // batch.cut.tensor, k, batch, saved, bias=bias, communications=communications)


def rows(name: str, n: int, k: int, batch: Batch, saved: Saved, *, bias: bool) -> Operation:
    """A matrix that is cut by rows."""
    communications = around_rows(name, batch.tokens * n, batch.cut)
    return linear(name, batch.tokens, n, k // batch.cut.tensor, batch, saved, bias=bias, communications=communications)


def norm(name: str, source: str, model: Transformer, batch: Batch) -> Operation:
    size = batch.tokens_between * model.hidden_size * batch.itemsize
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
    """A norm over rows of so many elements in all, without means."""
    size, statistics = elements * batch.itemsize, rows * batch.statistics_itemsize
    return Operation(
        name,
        (Elementwise(name, size, size + statistics, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size + statistics, size, fusible=True),),
        (Saved(f"{name} input", size, source), Saved(f"{name} statistics", statistics, name)),
        size,
    )


def residual(name: str, model: Transformer, batch: Batch) -> Operation:
    """Dropout, where there is any, and the addition to the residual stream."""
    elements = batch.tokens_between * model.hidden_size
    size = elements * batch.itemsize
    forward = [Elementwise(f"{name} add", 2 * size, size, fusible=True)]
    backward: list[Kernel] = []
    saved: tuple[Saved, ...] = ()
    if batch.dropout:
        forward.insert(0, Elementwise(f"{name} dropout", size, size + elements, fusible=True))
        backward.append(Elementwise(f"{name} dropout gradient", size + elements, size, fusible=True))
        saved = (Saved(f"{name} mask", elements, name),)
    # The gradient of a sum is read and added where the residual stream and the block branch.
    backward.append(Elementwise(f"{name} gradient add", 2 * size, size, fusible=True))
    return Operation(name, tuple(forward), tuple(backward), saved, size)
