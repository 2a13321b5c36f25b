"""Which names do NCCL and PyTorch use for a collective in traces: kernel, dtype, arguments?

Names only, no times.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics.dtypes import find as find_dtype
from simulator.records.chunks import split
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS, Holding
from simulator.records.operation import Collective

_REDUCTION: Final = {"sum": "Sum", "average": "SumPostDiv", "max": "MinMax", "min": "MinMax", "product": "Prod"}
_TREES: Final = ("tree", "double_binary_tree")

# PyTorch shortens longer lists of ranks in the same way.
_MOST_RANKS_WRITTEN: Final = 30


def kernel_name(collective: Collective) -> str:
    """Return the name that traces show for a collective's NCCL kernel.

    NCCL's device functions are named after operation, reduction, dtype, algorithm and protocol, for example
    ncclDevKernel_AllReduce_Sum_bf16_RING_LL (github.com/NVIDIA/nccl, src/device/generate.py, 2.19 and later). NCCL has
    kernels for rings and trees; every other algorithm gets the ring's name, and its own name in `args`. The protocol is
    not simulated; LL is the ending of NCCL's generic kernels.
    """
    operation = COLLECTIVE_OPERATIONS.get(collective.schedule.operation)
    function = "SendRecv" if operation is None else operation.nccl_kernel
    if operation is None or function == "SendRecv":
        # NCCL runs gathers, scatters and exchanges as sends and receives.
        return "ncclDevKernel_SendRecv"
    shape = "TREE" if collective.schedule.algorithm in _TREES else "RING"
    if not operation.reduces:
        return f"ncclDevKernel_{function}_{shape}_LL"
    reduction = _REDUCTION.get(collective.reduction, "Sum")
    dtype = find_dtype(collective.dtype).nccl
    return f"ncclDevKernel_{function}_{reduction}_{dtype}_{shape}_LL"


def collective_args(collective: Collective, group_name: str, rank: int) -> dict[str, Any]:
    """Return the arguments (elements, dtype, group, ranks) that PyTorch records for a rank's collective kernel."""
    schedule = collective.schedule
    record = COLLECTIVE_OPERATIONS.get(schedule.operation)
    sent, received = _elements(collective, rank)
    return {
        "Collective name": record.torch_name if record else schedule.operation,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": len(collective.group),
        "dtype": find_dtype(collective.dtype).torch,
        "Process Group Name": group_name,
        "Process Group Ranks": _ranks_text(collective.group),
        "algorithm": schedule.algorithm,
        "bytes": collective.nbytes,
    }


def _elements(collective: Collective, rank: int) -> tuple[int, int]:
    """Return two numbers: the elements that a rank puts into a collective, and the elements received."""
    total, operation = collective.elements, collective.schedule.operation
    if rank not in collective.group:
        return 0, 0
    place = collective.group.index(rank)
    # Parts may differ by an element if the array does not divide evenly.
    part = int(split(total, len(collective.group))[place])
    record = COLLECTIVE_OPERATIONS.get(operation)
    if record is None:
        return total, total
    elements = {Holding.PART: part, Holding.ROOT: total if place == collective.schedule.root else 0}
    return elements.get(record.before, total), elements.get(record.after, total)


def _ranks_text(group: tuple[int, ...]) -> str:
    """Format a list of ranks, shortened beyond 30 ranks."""
    if len(group) <= _MOST_RANKS_WRITTEN:
        return str(list(group))
    return "[" + ", ".join(map(str, group[:_MOST_RANKS_WRITTEN])) + ", ...]"
