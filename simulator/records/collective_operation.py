"""Which collective operations exist, and what is a fact of each? One record per operation; other modules look it up.

The contract `tests/contracts/test_every_operation.py` names the places that need more than this record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Holding(Enum):
    """What ranks hold of an array before or after a collective operation."""

    WHOLE = "each rank, the whole array"
    PART = "each rank, its part"
    ROOT = "the root, the whole array"
    # Part i x N + j belongs to rank i before, and to rank j after.
    PAIRS = "each rank, a part for each rank"


@dataclass(frozen=True, slots=True)
class CollectiveOperation:
    """Facts of a collective operation over N ranks."""

    name: str
    before: Holding
    after: Holding
    reduces: bool
    bus_factor: Callable[[int], float]  # bus bandwidth / algorithm bandwidth over N ranks: nccl-tests, PERFORMANCE.md
    result: str  # words for what ranks hold at the end; {root} stands for the root rank
    nccl_kernel: str  # function in NCCL's kernel names (src/device/generate.py); SendRecv without a kernel of its own
    torch_name: str  # PyTorch's "Collective name" (torch/csrc/distributed/c10d, record_param_comms)
    chakra_number: int  # comm_type in execution traces: mlcommons/chakra, schema/protobuf/et_def.proto 0.0.4

    @property
    def rooted(self) -> bool:
        """True if a root rank has a role of its own."""
        return Holding.ROOT in (self.before, self.after)

    def holders(self, world_size: int, root: int, part: int) -> range:
        """Return the ranks that hold data for a part of the array before the operation.

        >>> [COLLECTIVE_OPERATIONS[name].holders(4, 1, 2) for name in ("all_gather", "broadcast")]
        [range(2, 3), range(1, 2)]
        """
        first = {Holding.PART: part, Holding.ROOT: root, Holding.PAIRS: part // world_size}.get(self.before)
        return range(world_size) if first is None else range(first, first + 1)

    def receivers(self, world_size: int, root: int, part: int) -> range:
        """Return the ranks that must hold a part of the array at the end.

        >>> [COLLECTIVE_OPERATIONS[name].receivers(4, 0, 2) for name in ("all_gather", "reduce_scatter")]
        [range(0, 4), range(2, 3)]
        """
        only = {Holding.PART: part, Holding.ROOT: root, Holding.PAIRS: part % world_size}.get(self.after)
        return range(world_size) if only is None else range(only, only + 1)


def _ring(world_size: int) -> float:
    return (world_size - 1) / world_size


def _copies(world_size: int) -> float:
    return 1.0


_W, _P, _R, _X = Holding.WHOLE, Holding.PART, Holding.ROOT, Holding.PAIRS
COLLECTIVE_OPERATIONS: Final = {
    operation.name: operation
    for operation in (
        CollectiveOperation(
            "all_reduce", _W, _W, True, lambda n: 2 * _ring(n), "every rank holds the whole sum",
            "AllReduce", "allreduce", 0,
        ),
        CollectiveOperation(
            "reduce_scatter", _W, _P, True, _ring, "rank i holds the sum of chunk i",
            "ReduceScatter", "_reduce_scatter_base", 7,
        ),
        CollectiveOperation(
            "all_gather", _P, _W, False, _ring, "every rank holds every chunk", "AllGather", "_allgather_base", 2
        ),
        CollectiveOperation(
            "broadcast", _R, _W, False, _copies, "every rank holds {root}'s array", "Broadcast", "broadcast", 5
        ),
        CollectiveOperation("reduce", _W, _R, True, _copies, "{root} holds the whole sum", "Reduce", "reduce", 1),
        CollectiveOperation(
            "scatter", _R, _P, False, _ring, "rank i holds chunk i of {root}'s array", "SendRecv", "scatter", 4
        ),
        CollectiveOperation("gather", _P, _R, False, _ring, "{root} holds every chunk", "SendRecv", "gather", 3),
        CollectiveOperation(
            "all_to_all", _X, _X, False, _ring, "rank i holds chunk i of every rank's part", "SendRecv", "all_to_all", 6
        ),
    )
}  # fmt: skip
