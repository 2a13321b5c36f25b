"""Of which kinds of kernels is a bar of a page's lanes made? Passes through a part of the model, split by kind.

A simulated pass is a single operation, which states the kinds of its kernels. Operations of a single purpose stay
whole: the optimizer, and copies and sums of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.records.operation import Compute, KernelParts
from simulator.records.program import Program

_WHOLE: Final = ("optimizer", "copies", "accumulate")


def kernels_of_passes(program: Program, rank: int) -> Mapping[str, KernelParts]:
    """Return the kinds of kernels, with shares of the duration, of each pass of a rank whose kernels are known."""
    return {
        op.name: op.kernel_shares
        for op in program.ranks[rank]
        if isinstance(op, Compute) and op.parts and op.kind not in _WHOLE
    }
