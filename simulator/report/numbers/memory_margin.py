"""Does a step fit into a GPU's memory, and how much memory is free or missing?

A step fits if its reserved memory is at most the GPU's memory. Reserved memory is what the caching allocator takes from
the device: tensors, fragments and cached segments. Without a simulated allocator it equals the allocated bytes. Every
text and figure about free or missing memory comes from here, so that they agree to the byte.

A GPU should keep 2 GiB free: the CUDA context and libraries take 0.5 to 2 GiB, and NCCL adds its buffers
(docs/explanation/modelled.md). They are not simulated, and no part of the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.units import GIB, format_memory
from simulator.records.timeline import Timeline

# Largest amount of memory of a process beside its tensors: CUDA context, libraries, NCCL buffers [B].
UNMODELLED: Final = 2 * GIB


@dataclass(frozen=True, slots=True)
class MemoryMargin:
    """Reserved memory of the GPU with most, compared with the GPU's memory.

    Attributes
    ----------
    reserved, capacity : int
        Peak of reserved bytes, and bytes of the GPU [B].

    Examples
    --------
    >>> MemoryMargin(13 * 2**30, 24 * 2**30).text, MemoryMargin(26 * 2**30, 24 * 2**30).text
    ('reserved memory 13 GiB, 11 GiB free', 'reserved memory 26 GiB, 2 GiB missing')
    """

    reserved: int
    capacity: int

    @property
    def fits(self) -> bool:
        """Return True if the reserved memory is at most the GPU's memory."""
        return self.reserved <= self.capacity

    @property
    def free(self) -> int:
        """Memory that is not reserved; 0 if the step does not fit [B]."""
        return max(0, self.capacity - self.reserved)

    @property
    def missing(self) -> int:
        """Reserved memory above the GPU's memory; 0 if the step fits [B]."""
        return max(0, self.reserved - self.capacity)

    @property
    def text(self) -> str:
        """A text with the reserved memory, and the memory that is free or missing."""
        left = f"{format_memory(self.free)} free" if self.fits else f"{format_memory(self.missing)} missing"
        return f"reserved memory {format_memory(self.reserved)}, {left}"

    @property
    def verdict(self) -> str:
        """A predicate: "does not fit in 24 GiB (reserved memory 26 GiB, 2 GiB missing)"."""
        return f"{'fits' if self.fits else 'does not fit'} in {format_memory(self.capacity)} ({self.text})"

    @property
    def warning(self) -> str:
        """A warning that a step fits, but leaves less than 2 GiB free; "" if it leaves more or does not fit.

        Examples
        --------
        >>> MemoryMargin(int(79.5 * 2**30), 80 * 2**30).warning[:32]
        'only 512 MiB of 80 GiB stay free'
        >>> MemoryMargin(70 * 2**30, 80 * 2**30).warning
        ''
        """
        if not self.fits or self.free >= UNMODELLED:
            return ""
        return (
            f"only {format_memory(self.free)} of {format_memory(self.capacity)} stay free: the CUDA context, libraries "
            "and NCCL buffers (not modelled) need 0.5 to 2 GiB more"
        )


def margin_of(report: Mapping[str, Any]) -> MemoryMargin:
    """Return the margin in the report of a training step, as a dictionary."""
    return MemoryMargin(report["peak_reserved_bytes"], report["capacity_bytes"])


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
    reserved = timeline.reserved or {timeline.peak.rank: timeline.peak.nbytes}
    margins = [MemoryMargin(nbytes, capacity(rank)) for rank, nbytes in reserved.items()]
    return max(margins, key=lambda margin: margin.reserved - margin.capacity)
