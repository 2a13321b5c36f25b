"""Of which kinds of kernels is a bar of a page's lanes made? Passes through a part of the model, split by kind.

A simulated pass is a single operation. It is split only if the durations of the part's kernels add up to its duration:
then these are its kernels. Other operations stay whole, for example passes that exchanges between tensor-parallel ranks
cut into pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isclose
from typing import Final

from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.records.operation import Compute
from simulator.records.program import Program
from simulator.step.kernel_table import KernelRow

_KINDS: Final = {Matmul: "matmul", Attention: "attention", Elementwise: "elementwise"}
# Rounding of sums in different orders.
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PassKernels:
    """The kernels of a forward or backward pass through a part of the model: a layer, the embedding, the head.

    Attributes
    ----------
    kind : str
        Kind of the operation: "forward" or "backward".
    seconds : float
        Duration of all kernels [s].
    parts : tuple of (str, float)
        Kind of kernel and share of the duration, in the order of execution; neighbours of a kind are a single part.
    """

    kind: str
    seconds: float
    parts: tuple[tuple[str, float], ...]


def passes_of(rows: Sequence[KernelRow]) -> tuple[PassKernels, ...]:
    """Return the passes through each part of the model, from the table of a micro-batch's kernels."""
    found = []
    for (_, backward), own in groupby(rows, key=lambda row: (row.part, row.backward)):
        # A backward pass runs the operations in reverse.
        kernels = [row for row in own if row.seconds][:: -1 if backward else 1]
        seconds = sum(row.seconds for row in kernels)
        of_kind = groupby(kernels, key=lambda row: _KINDS[type(row.kernel)])
        parts = tuple((kind, sum(row.seconds for row in some) / seconds) for kind, some in of_kind)
        if parts:
            found.append(PassKernels("backward" if backward else "forward", seconds, parts))
    return tuple(found)


def pass_of_operations(program: Program, rank: int, passes: Sequence[PassKernels]) -> Mapping[str, int]:
    """Return the index of the pass for each operation of a rank whose kernels are a pass's kernels."""
    found: dict[str, int] = {}
    for op in program.ranks[rank] if passes else ():
        if isinstance(op, Compute):
            same = (
                place
                for place, one in enumerate(passes)
                if one.kind == op.kind and isclose(one.seconds, op.duration, rel_tol=_SAME)
            )
            if (place := next(same, None)) is not None:
                found[op.name] = place
    return found
