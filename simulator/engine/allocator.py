"""PyTorch's caching allocator on a GPU, as bookkeeping: allocated blocks, cached blocks, fragments.

The allocator knows neither time nor the bytes' purpose. Freed memory stays reserved and cached. Large cached blocks are
split for small allocations. Only if an allocation would fail does the allocator return completely free segments to the
device and ask the device again.

A segment is the memory from a single request to the device. Its blocks are split for smaller allocations and joined
again; a segment returns only as a whole, therefore a small allocation in a large segment keeps the whole segment
reserved. expandable_segments.py has the alternative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from simulator.engine.segments import ROUNDING, SMALL_REQUEST, MemoryBlock, Pool, round_up, runs, segment_size

# Callback for changes of segments: action, address, size [B], pool.
SegmentNote = Callable[[str, int, int, Pool], None]

# First address: far from 0, as on a GPU, and low enough to keep every address below 2^53, where a double is exact.
FIRST_ADDRESS: Final = 0x7F00_0000_0000


class NoRoomError(Exception):
    """An allocation failed although every free segment was given back.

    Attributes
    ----------
    requested : int
        Rounded bytes of the allocation [B].
    free : float
        Bytes not allocated, cached or not [B]; if larger than `requested`, fragmentation is the reason.
    largest_free : float
        Largest of the pool's free blocks and the device's remaining memory [B].
    reserved : int
        Bytes taken from the device [B].
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
        # Pickling passes the original arguments; the default would pass the message.
        return type(self), (self.requested, self.free, self.largest_free, self.reserved)


class Allocator(ABC):
    """Base class of both simulated GPU allocators: memory pools, rounding, splitting and joining blocks, and counting.

    Parameters
    ----------
    capacity : float
        Memory of the device [B]; infinite for no limit.

    Attributes
    ----------
    capacity : float
        Memory of the device [B].
    note : callable or None
        Called for every segment, or page, that is taken or given back.
    peak_allocated, peak_reserved : int
        Maxima of `allocated` and `reserved` [B].
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
        """Bytes in allocated blocks [B]."""
        return self._allocated

    @property
    def reserved(self) -> int:
        """Bytes taken from the device [B]."""
        return self._reserved

    def allocate(self, nbytes: int, stream: int = 0) -> MemoryBlock:
        """Allocate a block with at least `nbytes` bytes.

        Parameters
        ----------
        nbytes : int
            Size [B]; 0 gives an empty block, which `free` accepts.
        stream : int
            Only this stream can reuse the block after it is freed.

        Returns
        -------
        MemoryBlock
            The allocated block.

        Raises
        ------
        NoRoomError
            Neither the cache nor the device has room.
        ValueError
            The size is negative.
        """
        if nbytes < 0:
            raise ValueError(f"got {nbytes} bytes to allocate; must be 0 or more")
        size = round_up(nbytes, ROUNDING)
        pool = self._pool(stream, size <= SMALL_REQUEST)
        # An empty block takes no memory and is not counted.
        if size == 0:
            return MemoryBlock(0, 0, pool, held=True)
        block = self._fit(pool, size) or self._grow(pool, size)
        if block is None:
            # As in PyTorch: give free segments back to the device, then try again.
            self.release()
            block = self._grow(pool, size)
        if block is None:
            raise self._no_room(pool, size)
        # The rest returns to the pool before the block is handed out.
        if self._splits(block.size - size, pool):
            pool.put(block.cut(size))
        block.held = True
        block.requested = nbytes
        self._allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self._allocated)
        return block

    def free(self, block: MemoryBlock) -> None:
        """Mark an allocated block as free and join it with free neighbours; the memory stays reserved for reuse.

        Raises
        ------
        ValueError
            The block is not allocated.
        """
        if not block.held:
            raise ValueError(f"block at {block.address:#x} is not handed out; free each block once")
        block.held = False
        if block.size == 0:
            return
        self._allocated -= block.size
        pool = block.pool
        # Two free neighbours never exist: each free block joins at once.
        if block.behind is not None and block.behind.cached:
            pool.take(block.behind)
            block.join()
        if block.before is not None and block.before.cached:
            block = block.before
            pool.take(block)
            block.join()
        pool.put(block)

    def fragments(self) -> tuple[int, ...]:
        """Return the sizes of free blocks in reserved memory, largest first [B]."""
        return tuple(sorted((size for pool in self._pools.values() for size, _, _ in pool.cached), reverse=True))

    def segments(self) -> tuple[tuple[MemoryBlock, ...], ...]:
        """Return the memory blocks in each contiguous piece of reserved memory: a tuple per piece, by address."""
        return tuple(run for _, head in sorted(self._heads.items()) for run in runs(head))

    @abstractmethod
    def release(self) -> None:
        """Give cached memory without allocated blocks back to the device."""

    @abstractmethod
    def _fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Remove the best-fitting free block for `size` bytes from `pool` and return it; None if no block fits."""

    @abstractmethod
    def _grow(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Take memory for `size` bytes from the device for `pool`; return the new block, or None without room."""

    @abstractmethod
    def _splits(self, rest: int, pool: Pool) -> bool:
        """Return True if `rest` bytes left over in a block of `pool` become a separate free block."""

    def _pool(self, stream: int, small: bool) -> Pool:
        """Return the pool for `stream` and for small or large allocations; create the pool on first use."""
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = Pool(stream, small)
        return pool

    def _reserve(self, action: str, address: int, size: int, pool: Pool) -> None:
        """Add `size` bytes, negative if given back, to the bytes taken from the device.

        The callback `note`, if set, gets the action, address, absolute size and pool.
        """
        self._reserved += size
        self.peak_reserved = max(self.peak_reserved, self._reserved)
        if self.note is not None:
            self.note(action, address, abs(size), pool)

    def _has_room(self, size: int) -> bool:
        """Return True if the device has `size` bytes left."""
        return self._reserved + size <= self.capacity

    def _no_room(self, pool: Pool, size: int) -> NoRoomError:
        """Return the error for a failed allocation of `size` bytes from `pool`, with the free and reserved bytes."""
        # Sorted by size: the last is the largest.
        cached = pool.cached[-1][0] if pool.cached else 0
        largest = max(cached, self.capacity - self._reserved)
        return NoRoomError(size, self.capacity - self._allocated, largest, self._reserved)


class CachingAllocator(Allocator):
    """PyTorch's default caching allocator on a GPU, simulated as bookkeeping of addresses and sizes."""

    __slots__ = ("_next_address",)

    def __init__(self, capacity: float) -> None:
        super().__init__(capacity)
        self._next_address = FIRST_ADDRESS

    def release(self) -> None:
        """Give back every segment without an allocated block."""
        for pool in self._pools.values():
            # A list, because taking blocks changes the pool.
            for _, _, block in [entry for entry in pool.cached if _is_whole(entry[2])]:
                pool.take(block)
                del self._heads[block.address]
                self._reserve("segment_free", block.address, -block.size, pool)

    def _fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        place = pool.first_fit(size)
        return pool.cached.pop(place)[2] if place < len(pool.cached) else None

    def _grow(self, pool: Pool, size: int) -> MemoryBlock | None:
        nbytes = segment_size(size)
        if not self._has_room(nbytes):
            return None
        block = MemoryBlock(self._next_address, nbytes, pool)
        # Addresses are never reused, so a log stays unambiguous.
        self._next_address += nbytes
        self._heads[block.address] = block
        self._reserve("segment_alloc", block.address, nbytes, pool)
        return block

    def _splits(self, rest: int, pool: Pool) -> bool:
        # PyTorch's should_split: a large block is split only if the rest is too large for the small pool.
        return rest >= ROUNDING if pool.small else rest > SMALL_REQUEST


def _is_whole(block: MemoryBlock) -> bool:
    """Return True if `block` has no neighbours and fills the segment: the memory from one request to the device."""
    return block.before is None and block.behind is None
