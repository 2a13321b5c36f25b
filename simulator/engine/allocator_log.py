"""Allocations by name, on whichever allocator is chosen, and a log of what it did.

Rule: adds names and times to an allocator, which knows neither; decides nothing. Like the front desk's book beside the
rooms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.basics.errors import UnknownNameError
from simulator.engine.allocator import Allocator, CachingAllocator, NoRoomError
from simulator.engine.expandable_segments import ExpandableAllocator
from simulator.engine.segments import MemoryBlock, Pool
from simulator.records.timeline import AllocatorEvent

# PyTorch's words: the setting expandable_segments, and what it is without.
ALLOCATORS: Final[dict[str, Callable[[float], Allocator]]] = {
    "caching": CachingAllocator,
    "expandable_segments": ExpandableAllocator,
}


class LoggedAllocator:
    """Allocations of one rank by name, with a log.

    Parameters
    ----------
    name : str
        "caching" or "expandable_segments".
    capacity : float
        [B]; infinite to play on without a limit.

    Attributes
    ----------
    allocator : Allocator
        For its counts and fragments.
    events : list of AllocatorEvent
        In order.

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
        """Take bytes under a label that is not in use.

        Raises
        ------
        NoRoomError
            They do not fit; the log has an "oom" then.
        ValueError
            The label is in use.
        """
        if label in self._held:
            raise ValueError(f"{label!r} is held already; every allocation needs a name of its own")
        self._now = now
        try:
            block = self.allocator.allocate(nbytes, stream)
        except NoRoomError:
            left = self.allocator.capacity - self.allocator.reserved
            self.events.append(AllocatorEvent(now, "oom", int(left), nbytes, label, stream, category))
            raise
        self._held[label] = (block, category)
        if block.size:
            self._log("alloc", label, block, category)

    def free(self, label: str, *, now: float) -> None:
        """Give the bytes of a label back; ValueError where it is not in use."""
        if label not in self._held:
            raise ValueError(f"{label!r} is not held; free each allocation once")
        block, category = self._held.pop(label)
        self._now = now
        if block.size:
            # Written down first: joined with its neighbours the block is another one.
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
