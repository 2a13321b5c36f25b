"""Does a step fit into a GPU's memory, and how much memory is free or missing?

A step fits if its process fits: reserved memory, CUDA context and NCCL buffers are at most the GPU's memory. Reserved
memory is what the caching allocator takes from the device: tensors, fragments and cached segments. Without a simulated
allocator it equals the allocated bytes. Context and buffers are not allocated by PyTorch (step/process_memory.py).
Every text and figure about free or missing memory comes from here, so that they agree to the byte.

Three figures describe the same moment: PyTorch prints allocated and reserved memory, and nvidia-smi the process.

A GPU should keep 512 MiB free beside the process: libraries load kernels when they first run, which are not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.units import format_memory
from simulator.records.timeline import Timeline

# Largest amount of memory of a process beside tensors, context and NCCL buffers [B]: kernels that libraries load.
# PyTorch's kernels together take 362 MiB: without lazy loading a process needs 667 MB, with it 287 MB (pytorch/pytorch,
# pull request 86509); cuBLAS, attention and Triton add their own.
UNMODELLED: Final = 512 * 2**20


@dataclass(frozen=True, slots=True)
class MemoryMargin:
    """Memory of the process on the GPU with the least free memory, compared with the GPU's memory.

    Examples
    --------
    >>> MemoryMargin(13 * 2**30, 24 * 2**30).text, MemoryMargin(24 * 2**30, 24 * 2**30, context=2**30).text
    ('reserved memory 13 GiB, 11 GiB free', 'reserved memory 24 GiB, process 25 GiB, 1 GiB missing')
    """

    # `reserved`, `capacity`: Peak of reserved bytes, and bytes of the GPU [B].
    reserved: int
    capacity: int
    # Peak of allocated bytes; 0 if unknown [B].
    allocated: int = 0
    # `context`, `nccl`: CUDA context and NCCL buffers of the process; 0 if unknown [B].
    context: int = 0
    nccl: int = 0

    @property
    def fits(self) -> bool:
        """Return True if the process's memory is at most the GPU's memory."""
        return self.process <= self.capacity

    @property
    def free(self) -> int:
        """Memory of the GPU that the process leaves; 0 if the step does not fit [B].

        >>> MemoryMargin(70, 80).free, MemoryMargin(90, 80).free
        (10, 0)
        """
        return max(0, self.capacity - self.process)

    @property
    def missing(self) -> int:
        """Memory of the process above the GPU's memory; 0 if the step fits [B]."""
        return max(0, self.process - self.capacity)

    @property
    def process(self) -> int:
        """Memory of the process, as nvidia-smi prints it: reserved memory, CUDA context and NCCL buffers [B]."""
        return self.reserved + self.context + self.nccl

    @property
    def text(self) -> str:
        """A text with the reserved memory, the process's memory, and the memory that is free or missing."""
        rest = f"{format_memory(self.free)} free" if self.fits else f"{format_memory(self.missing)} missing"
        process = f", process {format_memory(self.process)}" if self.process > self.reserved else ""
        return f"reserved memory {format_memory(self.reserved)}{process}, {rest}"

    @property
    def beside(self) -> str:
        """The parts of the process that PyTorch does not allocate.

        >>> MemoryMargin(2**30, 2**34, context=403 * 2**20, nccl=2**30).beside
        'the CUDA context (403 MiB) and NCCL buffers (1 GiB)'
        """
        parts = [(self.context, "the CUDA context"), (self.nccl, "NCCL buffers")]
        return " and ".join(f"{name} ({format_memory(nbytes)})" for nbytes, name in parts if nbytes)

    @property
    def figures(self) -> str:
        """The figures that PyTorch and nvidia-smi print for a step that fits.

        >>> MemoryMargin(13 * 2**30, 24 * 2**30, 12 * 2**30, 403 * 2**20).figures
        'PyTorch prints 12 GiB allocated and 13 GiB reserved, nvidia-smi 13.4 GiB with the CUDA context (403 MiB)'
        """
        allocated, reserved = format_memory(self.allocated), format_memory(self.reserved)
        process = format_memory(self.process)
        return f"PyTorch prints {allocated} allocated and {reserved} reserved, nvidia-smi {process} with {self.beside}"

    @property
    def verdict(self) -> str:
        """A predicate for a sentence about the step.

        >>> MemoryMargin(26 * 2**30, 24 * 2**30).verdict
        'does not fit in 24 GiB (reserved memory 26 GiB, 2 GiB missing)'
        """
        return f"{'fits' if self.fits else 'does not fit'} in {format_memory(self.capacity)} ({self.text})"

    @property
    def warning(self) -> str:
        """A warning that the process leaves less than 512 MiB; "" if more is free, or if the step does not fit.

        >>> MemoryMargin(int(79.75 * 2**30), 80 * 2**30).warning[:46]
        'only 256 MiB of 80 GiB stay free beside the CU'
        >>> MemoryMargin(79 * 2**30, 80 * 2**30).warning
        ''
        """
        if not self.fits or self.free >= UNMODELLED:
            return ""
        return (
            f"only {format_memory(self.free)} of {format_memory(self.capacity)} stay free beside the CUDA context and "
            f"NCCL buffers: kernels that libraries load (not modelled) need up to {format_memory(UNMODELLED)}"
        )


def margin_of(report: Mapping[str, Any]) -> MemoryMargin:
    """Return the margin in the report of a training step, as a dictionary.

    >>> margin_of({"peak_reserved_bytes": 70, "capacity_bytes": 80})
    MemoryMargin(reserved=70, capacity=80, allocated=0, context=0, nccl=0)
    """
    return MemoryMargin(
        report["peak_reserved_bytes"],
        report["capacity_bytes"],
        report.get("peak_memory_bytes", 0),
        report.get("context_bytes", 0),
        report.get("nccl_bytes", 0),
    )


def margin_of_timeline(timeline: Timeline, capacity: Callable[[int], int]) -> MemoryMargin:
    """Return the margin of the rank with the least free memory in a simulated step.

    Parameters
    ----------
    timeline : Timeline
        The step, with the memory peak of a rank.
    capacity : function (rank) -> int
        Memory of the rank's GPU [B].

    Raises
    ------
    ValueError
        No rank allocates memory.
    """
    if timeline.peak is None:
        raise ValueError("the timeline has no memory samples and is no training step")
    # Without an allocator, reserved memory is the allocated memory.
    allocated = timeline.peak.nbytes
    reserved = timeline.reserved or {timeline.peak.rank: allocated}
    beside = timeline.beside.context, timeline.beside.nccl
    margins = [MemoryMargin(nbytes, capacity(rank), allocated, *beside) for rank, nbytes in reserved.items()]
    return max(margins, key=lambda margin: margin.reserved - margin.capacity)
