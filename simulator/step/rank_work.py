"""How much work has each rank in the kernels that it shares with others, if its documents differ from theirs?

A step's program is written once for ranks with equal operations, for the micro-batch with the most tokens and scores.
On a rank with another micro-batch, the same kernels take a share of the time.

Example: a layer of 10 ms, 4 ms of them attention, written for a document of 8192 tokens. On a rank with two documents
of 4096 tokens, attention computes half of the scores: the layer takes 8 ms, a share of 0.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.model.kernel import Attention
from simulator.model.model import layer_operations
from simulator.records.operation import Compute, Op
from simulator.step.kernel_timer import KernelTimer
from simulator.step.lengths import MicroBatch
from simulator.step.pass_pieces import PassPieces, PieceAt
from simulator.step.units import Unit, batch_of

# Lengths of micro-batches that are timed; between them, times are interpolated.
_TIMED: Final = 128


def with_work(
    lists: Sequence[Sequence[Op]],
    pieces: Sequence[Mapping[str, PieceAt]],
    stacks: Sequence[Sequence[Unit]],
    timer: KernelTimer,
    rank_of: Ints,
    retimed: Callable[[MicroBatch], Sequence[Sequence[Unit]]],
) -> tuple[list[list[Op]], Floats]:
    """Return a program's distinct operation lists, in which kernels name a row (`Compute.work`), and the rows: factors
    on the kernels' durations, shape (rows, ranks), without a unit.

    Parameters
    ----------
    lists : sequence of sequences of Op
        The program's distinct operation lists, written for the micro-batch `heaviest` of the step.
    pieces : sequence of mapping
        For each list, the piece of a forward or backward pass that each kernel computes, by the kernel's name.
    stacks : sequence of sequences of Unit
        Embedding, layers and head, for each context-parallel rank with work of its own.
    rank_of : int array, shape (ranks,)
        Number along the data-parallel axis of each rank of the program.
    retimed : callable (MicroBatch) -> sequence of sequences of Unit
        Return embedding, layers and head like `stacks`, timed for another micro-batch.
    """
    batches = timer.step.batches
    shares = _of_documents(stacks, timer) if timer.step.packs else _of_lengths(stacks, timer, retimed)
    rows: list[Floats] = []
    row_of: dict[tuple[int, int, int], int] = {}
    lists_with_work = []
    for ops, of_list in zip(lists, pieces, strict=True):
        lists_with_work.append(list(ops))
        for number, op in enumerate(ops):
            if not isinstance(op, Compute) or op.name not in of_list:
                continue
            piece = of_list[op.name]
            key = id(piece.of), piece.place, piece.micro
            if key not in row_of:
                factors = np.array([shares(piece, op, rank[piece.micro]) for rank in batches])
                row_of[key] = len(rows) if (factors != 1.0).any() else -1
                rows += [factors[rank_of]] if row_of[key] >= 0 else []
            if row_of[key] >= 0:
                lists_with_work[-1][number] = replace(op, work=row_of[key])
    return lists_with_work, np.array(rows).reshape(len(rows), len(rank_of))


_Share = Callable[[PieceAt, Compute, MicroBatch], float]


def _of_documents(stacks: Sequence[Sequence[Unit]], timer: KernelTimer) -> _Share:
    """Return a function that gives a kernel's share for packed documents: attention alone differs."""
    step, kinds = timer.step, timer.step.model.kinds
    kernels = [_attention(timer, place) for place in range(len(stacks))]
    kind_of = {f"layer {layer}": number for number, members in enumerate(kinds.values()) for layer in members}
    # Layers of each pass, as numbers of their kinds, by the identity of the pass.
    layers: dict[int, tuple[int, bool, list[int]]] = {}
    for place, stack in enumerate(stacks):
        for unit in stack:
            for run, backward in ((unit.forward, False), (unit.backward, True), (unit.input_gradient, True)):
                layers[id(run)] = place, backward, [kind_of[unit.name]] if unit.name in kind_of else []
            if unit.recompute is not None:
                layers[id(unit.recompute)] = place, False, [kind_of[name] for name in unit.makes if name in kind_of]
    ring = step.parallelism.cut().context.ring
    seconds_of: dict[tuple[int, bool, int, tuple[int, ...]], float] = {}

    def seconds(place: int, kind: int, backward: bool, documents: tuple[int, ...]) -> float:
        key = place, backward, kind, documents
        if key not in seconds_of:
            parts = tuple(max(1, tokens // ring) for tokens in documents)
            seconds_of[key] = sum(
                timer.seconds(replace(kernel, documents=parts)) for kernel in kernels[place][kind][backward]
            )
        return seconds_of[key]

    heaviest = step.heaviest.documents

    def share(piece: PieceAt, op: Compute, micro: MicroBatch) -> float:
        place, backward, of = layers.get(id(piece.of), (0, False, []))
        usual = sum(seconds(place, kind, backward, heaviest) for kind in of)
        attention = dict(_summed(op.kernel_shares)).get("attention", 0.0)
        if micro.documents == heaviest or not attention or not usual:
            return 1.0
        return 1.0 + attention * (sum(seconds(place, kind, backward, micro.documents) for kind in of) / usual - 1.0)

    return share


def _attention(timer: KernelTimer, place: int) -> list[tuple[list[Attention], list[Attention]]]:
    """Return the attention kernels of each kind of layer, forward and backward, at a place along the sequence."""
    batch, kernels = batch_of(timer.step, place), []
    for kind in timer.step.model.kinds:
        operations = layer_operations(kind, batch)
        forward = [kernel for op in operations for kernel in op.forward if isinstance(kernel, Attention)]
        backward = [kernel for op in operations for kernel in op.backward if isinstance(kernel, Attention)]
        kernels.append((forward, backward))
    return kernels


def _of_lengths(
    stacks: Sequence[Sequence[Unit]], timer: KernelTimer, retimed: Callable[[MicroBatch], Sequence[Sequence[Unit]]]
) -> _Share:
    """Return a function that gives a kernel's share for micro-batches padded to other lengths."""
    step = timer.step
    lengths = sorted({micro.seq_len for rank in step.batches for micro in rank})
    if len(lengths) > _TIMED:
        lengths = [lengths[place] for place in np.linspace(0, len(lengths) - 1, _TIMED).astype(int)]
    retimed_stacks = [retimed(replace(step.heaviest, seq_len=length)) for length in lengths]
    # Each pass, and the same pass at the timed lengths.
    same: dict[int, tuple[PassPieces, list[PassPieces]]] = {}
    for place, stack in enumerate(stacks):
        for number, unit in enumerate(stack):
            at_lengths = [stacks_of[place][number] for stacks_of in retimed_stacks]
            for name in ("forward", "backward", "input_gradient", "weight_gradient", "recompute"):
                if (run := getattr(unit, name)) is not None:
                    same[id(run)] = run, [getattr(other, name) for other in at_lengths]
    curves: dict[tuple[int, int], Floats] = {}

    def share(piece: PieceAt, op: Compute, micro: MicroBatch) -> float:
        key = id(piece.of), piece.place
        if key not in curves:
            run, runs = same[id(piece.of)]
            heaviest, at_lengths = _alone(run, piece.place), [_alone(other, piece.place) for other in runs]
            # What a recompute leaves out has no kernels, whatever the length.
            curves[key] = np.array(at_lengths) / heaviest if heaviest else np.ones(len(at_lengths))
        return float(np.interp(micro.seq_len, lengths, curves[key]))

    return share


def _alone(run: PassPieces, place: int) -> float:
    cost = run.pieces[place].cost
    return 0.0 if cost is None else cost.alone


def _summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the shares of each kind of kernel.

    >>> _summed([("matmul", 0.5), ("attention", 0.25), ("matmul", 0.25)])
    {'matmul': 0.75, 'attention': 0.25}
    """
    total: dict[str, float] = {}
    for kind, share in parts:
        total[kind] = total.get(kind, 0.0) + share
    return total
