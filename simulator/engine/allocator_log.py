"""Allocations by name, on either allocator, with a log.

The log adds names and times to an allocator, which knows neither. It makes no decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.basics.errors import UnknownNameError
from simulator.engine.allocator import Allocator, CachingAllocator, NoRoomError
from simulator.engine.expandable_segments import ExpandableAllocator
from simulator.engine.segments import MemoryBlock, Pool
from simulator.records.timeline import AllocatorEvent

# PyTorch's names: the setting expandable_segments, and the default without it.
ALLOCATORS: Final[dict[str, Callable[[float], Allocator]]] = {
    "caching": CachingAllocator,
    "expandable_segments": ExpandableAllocator,
}


class LoggedAllocator:
    """A GPU allocator with a label for each allocation and a log of timed events.

    Parameters
    ----------
    name : str
        "caching" or "expandable_segments".
    capacity : float
        Memory of the device [B]; infinite for no limit.

    Attributes
    ----------
    allocator : Allocator
        The allocator, for its counts and fragments.
    events : list of AllocatorEvent
        Events in temporal order.

    Raises
    ------
    UnknownNameError
        No allocator has that name.

    Examples
    --------
    >>> memory = LoggedAllocator("caching", 80e9)
    >>> memory.allocate("weights", 3 * 2**20, now=0.0, category="parameters")
    >>> memory.free("weights", now=1.5)
    >>> [event.action for event in memory.events]
    ['segment_alloc', 'alloc', 'free']
    """

    __slots__ = ("_held", "_now", "allocator", "events")

    def __init__(self, name: str, capacity: float) -> None:
        if name not in ALLOCATORS:
            raise UnknownNameError("allocator", name, ALLOCATORS)
        self.allocator = ALLOCATORS[name](capacity)
        self.allocator.note = self._segment
        self.events: list[AllocatorEvent] = []
        self._held: dict[str, tuple[MemoryBlock, str]] = {}
        self._now = 0.0

    def allocate(self, label: str, nbytes: int, *, now: float, category: str = "", stream: int = 0) -> None:
        """Allocate `nbytes` bytes under a new label at time `now` [s], and log the allocation.

        Raises
        ------
        NoRoomError
            The bytes do not fit; the log then ends with an "oom" event.
        ValueError
            The label is in use.
        """
        if label in self._held:
            raise ValueError(f"{label!r} is held already; every allocation needs a name of its own")
        self._now = now
        try:
            block = self.allocator.allocate(nbytes, stream)
        except NoRoomError:
            # Log the failure before raising it.
            left = self.allocator.capacity - self.allocator.reserved
            self.events.append(AllocatorEvent(now, "oom", int(left), nbytes, label, stream, category))
            raise
        self._held[label] = (block, category)
        # An empty block leaves no trace.
        if block.size:
            self._log("alloc", label, block, category)

    def free(self, label: str, *, now: float) -> None:
        """Free the bytes allocated under `label` at time `now` [s], and log the event.

        ValueError if the label is unknown.
        """
        if label not in self._held:
            raise ValueError(f"{label!r} is not held; free each allocation once")
        block, category = self._held.pop(label)
        self._now = now
        if block.size:
            # Log before freeing: joining with neighbours changes the block.
            self._log("free", label, block, category)
        self.allocator.free(block)

    def _log(self, action: str, label: str, block: MemoryBlock, category: str) -> None:
        stream = block.pool.stream
        self.events.append(
            AllocatorEvent(self._now, action, block.address, block.requested, label, stream, category, block.size)
        )

    def _segment(self, action: str, address: int, size: int, pool: Pool) -> None:
        label = "small" if pool.small else "large"
        self.events.append(AllocatorEvent(self._now, action, address, size, label, pool.stream))
