"""PyTorch's caching allocator on one GPU, as bookkeeping: which bytes are where, what is cached, what is lost between.

Rule: nothing here knows the time, nor what the bytes are for. Like a hotel that keeps rooms made up: rooms given back
stay booked with the landlord, large rooms are parted for small guests, and only when a guest would be turned away are
rooms that are empty from wall to wall handed back and the landlord asked again.

Here a segment is what one request to the device gave. A block in it is split for smaller allocations and joined again;
a segment goes back only as a whole, so one small guest in a large segment pins all of it. The other way is in
expandable_segments.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from simulator.engine.segments import ROUNDING, SMALL_REQUEST, MemoryBlock, Pool, round_up, runs, segment_size

# What happened to a segment, for whoever keeps a log: action, address, size [B], pool.
SegmentNote = Callable[[str, int, int, Pool], None]

# Where addresses begin: far from 0, as on a GPU. Whatever is counted up from here stays below 2^53, so that readers
# that know numbers only as doubles keep every digit.
FIRST_ADDRESS: Final = 0x7F00_0000_0000


class NoRoomError(Exception):
    """An allocation that does not fit, although all that is cached and whole was given back.

    Attributes
    ----------
    requested : int
        Rounded bytes of the allocation [B].
    free : float
        Bytes that nobody holds, cached or not [B]; where it is above `requested`, fragments are the reason.
    largest_free : float
        The larger of its pool's largest free block and what the device has left [B].
    reserved : int
        Bytes that are taken from the device [B].
    """

    def __init__(self, requested: int, free: float, largest_free: float, reserved: int) -> None:
        self.requested = requested
        self.free = free
        self.largest_free = largest_free
        self.reserved = reserved
        super().__init__(
            f"no room for {requested} B: {free:.0f} B are free, the largest piece is {largest_free:.0f} B, "
            f"{reserved} B are reserved"
        )

    def __reduce__(self) -> tuple[type[NoRoomError], tuple[int, float, float, int]]:
        return type(self), (self.requested, self.free, self.largest_free, self.reserved)


class Allocator(ABC):
    """What both allocators share: pools, rounding, splitting, joining, and counting.

    Parameters
    ----------
    capacity : float
        Bytes that the device can give [B]; infinite to play on without a limit.

    Attributes
    ----------
    capacity : float
    note : callable or None
        Told of every segment, or page, that comes or goes.
    peak_allocated, peak_reserved : int
        The most that `allocated` and `reserved` have been [B].
    """

    __slots__ = ("_allocated", "_heads", "_pools", "_reserved", "capacity", "note", "peak_allocated", "peak_reserved")

    def __init__(self, capacity: float) -> None:
        if not capacity > 0:
            raise ValueError(f"got capacity {capacity}; must be above 0 bytes")
        self.capacity = capacity
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._allocated = 0
        self._reserved = 0
        self.note: SegmentNote | None = None
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._heads: dict[int, MemoryBlock] = {}

    @property
    def allocated(self) -> int:
        """Bytes in blocks that are handed out [B]."""
        return self._allocated

    @property
    def reserved(self) -> int:
        """Bytes taken from the device [B]."""
        return self._reserved

    def allocate(self, nbytes: int, stream: int = 0) -> MemoryBlock:
        """Hand out a block of at least `nbytes` [B].

        Parameters
        ----------
        nbytes : int
            [B]; nothing is handed out for 0, as an empty block that `free` takes back.
        stream : int
            What one stream gave back only that stream gets again.

        Returns
        -------
        MemoryBlock

        Raises
        ------
        NoRoomError
            Neither cached blocks nor the device have room.
        ValueError
            A negative size.
        """
        if nbytes < 0:
            raise ValueError(f"got {nbytes} bytes to allocate; must be 0 or more")
        size = round_up(nbytes, ROUNDING)
        pool = self._pool(stream, size <= SMALL_REQUEST)
        if size == 0:
            return MemoryBlock(0, 0, pool, held=True)
        block = self._fit(pool, size) or self._grow(pool, size)
        if block is None:
            self.release()
            block = self._grow(pool, size)
        if block is None:
            raise self._no_room(pool, size)
        if self._splits(block.size - size, pool):
            pool.put(block.cut(size))
        block.held = True
        block.requested = nbytes
        self._allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self._allocated)
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take a block back, and join it with free neighbours; the memory stays reserved.

        Raises
        ------
        ValueError
            The block is not handed out.
        """
        if not block.held:
            raise ValueError(f"block at {block.address:#x} is not handed out; free each block once")
        block.held = False
        if block.size == 0:
            return
        self._allocated -= block.size
        pool = block.pool
        if block.behind is not None and block.behind.cached:
            pool.take(block.behind)
            block.join()
        if block.before is not None and block.before.cached:
            block = block.before
            pool.take(block)
            block.join()
        pool.put(block)

    def fragments(self) -> tuple[int, ...]:
        """Sizes of free blocks within what is reserved, largest first [B]."""
        return tuple(sorted((size for pool in self._pools.values() for size, _, _ in pool.cached), reverse=True))

    def segments(self) -> tuple[tuple[MemoryBlock, ...], ...]:
        """What is reserved, by address: for each contiguous piece its blocks, which fill it."""
        return tuple(run for _, head in sorted(self._heads.items()) for run in runs(head))

    @abstractmethod
    def release(self) -> None:
        """Give back to the device all that is cached and can be given back."""

    @abstractmethod
    def _fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Take the free block that fits best out of its pool."""

    @abstractmethod
    def _grow(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Get a block of at least `size` from the device, in no pool's lists; None where the device has no room."""

    @abstractmethod
    def _splits(self, rest: int, pool: Pool) -> bool:
        """Whether so many bytes that are left over become a block of their own."""

    def _pool(self, stream: int, small: bool) -> Pool:
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = Pool(stream, small)
        return pool

    def _reserve(self, action: str, address: int, size: int, pool: Pool) -> None:
        """Count bytes that come from the device (or go back, where the size is negative)."""
        self._reserved += size
        self.peak_reserved = max(self.peak_reserved, self._reserved)
        if self.note is not None:
            self.note(action, address, abs(size), pool)

    def _has_room(self, size: int) -> bool:
        return self._reserved + size <= self.capacity

    def _no_room(self, pool: Pool, size: int) -> NoRoomError:
        cached = pool.cached[-1][0] if pool.cached else 0
        largest = max(cached, self.capacity - self._reserved)
        return NoRoomError(size, self.capacity - self._allocated, largest, self._reserved)


class CachingAllocator(Allocator):
    """PyTorch's allocator as it is by default; see the module."""

    __slots__ = ("_next_address",)

    def __init__(self, capacity: float) -> None:
        super().__init__(capacity)
        self._next_address = FIRST_ADDRESS

    def release(self) -> None:
        """Give every segment back in which nothing is handed out."""
        for pool in self._pools.values():
            for _, _, block in [entry for entry in pool.cached if _is_whole(entry[2])]:
                pool.take(block)
                del self._heads[block.address]
                self._reserve("segment_free", block.address, -block.size, pool)

    def _fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        place = pool.first_fit(size)
        return pool.cached.pop(place)[2] if place < len(pool.cached) else None

    def _grow(self, pool: Pool, size: int) -> MemoryBlock | None:
        wanted = segment_size(size)
        if not self._has_room(wanted):
            return None
        block = MemoryBlock(self._next_address, wanted, pool)
        self._next_address += wanted
        self._heads[block.address] = block
        self._reserve("segment_alloc", block.address, wanted, pool)
        return block

    def _splits(self, rest: int, pool: Pool) -> bool:
        # What is left of a large block must itself be too large for the small pool (should_split).
        return rest >= ROUNDING if pool.small else rest > SMALL_REQUEST


def _is_whole(block: MemoryBlock) -> bool:
    return block.before is None and block.behind is None
