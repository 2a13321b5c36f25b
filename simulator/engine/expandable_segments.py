"""PyTorch's caching allocator with expandable segments: one growing segment for each pool.

Rule: like allocator.py, of which only the dealings with the device differ. A segment has far more addresses than there
is memory; pages of memory are mapped behind them as needed, and unmapped one by one. Like a road with far more house
numbers than houses: what is missing is built at its end, so nothing is lost between one estate and the next.
"""

from __future__ import annotations

from math import lcm
from typing import Final

from simulator.engine.allocator import FIRST_ADDRESS, Allocator
from simulator.engine.segments import LARGE_SEGMENT, ROUNDING, SMALL_SEGMENT, MemoryBlock, Pool, round_up

# Addresses of a segment, which cost nothing: more than any GPU has memory. PyTorch takes 9/8 of the GPU's memory, and
# begins a further segment where that is used up. A larger request, of a step far too large for the GPU, gets a
# segment of its own size.
_ADDRESSES: Final = 2**47


class ExpandableAllocator(Allocator):
    """PyTorch's allocator under expandable_segments:True; see the module.

    Parameters
    ----------
    capacity : float
        [B]
    large_page : int
        Pages of memory in the pool for allocations above 1 MiB [B]; PyTorch's are 20 MiB (kLargeBuffer).
    """

    __slots__ = ("_next_address", "large_page")

    def __init__(self, capacity: float, large_page: int = LARGE_SEGMENT) -> None:
        super().__init__(capacity)
        if large_page <= 0 or large_page % ROUNDING:
            raise ValueError(f"got pages of {large_page} B; must be a multiple of {ROUNDING} B")
        self.large_page = large_page
        self._next_address = FIRST_ADDRESS

    def release(self) -> None:
        """Unmap every page in which nothing is handed out."""
        for pool in self._pools.values():
            for _, _, block in list(pool.cached):
                self._unmap(block)

    def _page(self, pool: Pool) -> int:
        return SMALL_SEGMENT if pool.small else self.large_page

    def _fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        place = pool.first_fit(size)
        if place == len(pool.cached):
            return None
        # A block that can still grow counts as large as it can become, so the end of a segment is used last.
        while place + 1 < len(pool.cached) and _reach(pool.cached[place + 1][2]) < _reach(pool.cached[place][2]):
            place += 1
        return pool.cached.pop(place)[2]

    def _grow(self, pool: Pool, size: int) -> MemoryBlock | None:
        block = self._place(pool, size)
        if block.mapped:
            pool.take(block)
        elif not self._map(block, size):
            return None
        while block.size < size:
            # Behind a free block lie addresses without memory: two free neighbours would have been joined.
            gap = block.behind
            if gap is None or not self._map(gap, size - block.size):
                pool.put(block)
                return None
            block.join()
        return block

    def _place(self, pool: Pool, size: int) -> MemoryBlock:
        """Where the lowest addresses lie that are free, mapped or not, and enough; in a new segment where none are."""
        for _, gap in pool.unmapped:
            start = gap.before if gap.before is not None and gap.before.cached else gap
            if _room(start, size):
                return start
        # Every segment begins at a page of both pools, so that pages can be counted from the first address of all.
        span = round_up(max(_ADDRESSES, size), lcm(self.large_page, SMALL_SEGMENT))
        block = MemoryBlock(self._next_address, span, pool, mapped=False)
        self._next_address += span
        self._heads[block.address] = block
        pool.put_unmapped(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> bool:
        """Put memory behind the first pages of a block, and join it with a free one behind it."""
        pool = block.pool
        size = round_up(min(size, block.size), self._page(pool))
        if not self._has_room(size):
            return False
        pool.take_unmapped(block)
        if size < block.size:
            pool.put_unmapped(block.cut(size))
        block.mapped = True
        self._reserve("segment_map", block.address, size, pool)
        if block.behind is not None and block.behind.cached:
            pool.take(block.behind)
            block.join()
        return True

    def _unmap(self, block: MemoryBlock) -> None:
        """Take the memory from the whole pages of a free block."""
        pool, page = block.pool, self._page(block.pool)
        first = round_up(block.address - FIRST_ADDRESS, page) + FIRST_ADDRESS
        last = block.end - (block.end - FIRST_ADDRESS) % page
        if last <= first:
            return
        pool.take(block)
        if block.end > last:
            pool.put(block.cut(last - block.address))
        if first > block.address:
            front, block = block, block.cut(first - block.address)
            pool.put(front)
        block.mapped = False
        self._reserve("segment_unmap", block.address, -block.size, pool)
        self._join_unmapped(block)

    def _join_unmapped(self, block: MemoryBlock) -> None:
        pool = block.pool
        if block.behind is not None and not block.behind.mapped:
            pool.take_unmapped(block.behind)
            block.join()
        if block.before is not None and not block.before.mapped:
            block = block.before
            pool.take_unmapped(block)
            block.join()
        pool.put_unmapped(block)

    def _splits(self, rest: int, pool: Pool) -> bool:
        return rest >= ROUNDING


def _reach(block: MemoryBlock) -> int:
    """Bytes that a free block has, and could get behind it [B]."""
    behind = block.behind
    return block.size if behind is None or behind.mapped else block.size + behind.size


def _room(block: MemoryBlock | None, size: int) -> bool:
    """Whether so many bytes lie from a block on without one that is handed out."""
    while block is not None and not block.held and size > 0:
        size -= block.size
        block = block.behind
    return size <= 0
