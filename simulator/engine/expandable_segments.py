"""PyTorch's caching allocator with expandable segments: a growing segment for each pool.

Only the requests to the device differ from allocator.py. A segment has far more addresses than the GPU has memory.
Pages are mapped at the segment's end as needed and unmapped one by one, therefore no memory is lost between segments::

    address   0             20 MiB        40 MiB                          2^47
              |-- page 0 --|-- page 1 --|------- no memory yet ... -------|
"""

from __future__ import annotations

from math import lcm
from typing import Final

from simulator.engine.allocator import FIRST_ADDRESS, Allocator
from simulator.engine.segments import LARGE_SEGMENT, ROUNDING, SMALL_SEGMENT, MemoryBlock, Pool, round_up

# Addresses per segment, which cost nothing: more than any GPU's memory. PyTorch uses 9/8 of the GPU's memory and starts
# a new segment at its end. A larger request, from a step far too large for the GPU, gets a segment with the request's
# size.
_ADDRESSES: Final = 2**47


class ExpandableAllocator(Allocator):
    """PyTorch's caching allocator under expandable_segments:True: each pool's segment grows page by page.

    Parameters
    ----------
    capacity : float
        Memory of the device [B].
    large_page : int
        Page size in the pool for allocations above 1 MiB [B]; PyTorch's is 20 MiB (kLargeBuffer).
    """

    __slots__ = ("_next_address", "large_page")

    def __init__(self, capacity: float, large_page: int = LARGE_SEGMENT) -> None:
        super().__init__(capacity)
        if large_page <= 0 or large_page % ROUNDING:
            raise ValueError(f"got pages of {large_page} B; must be a multiple of {ROUNDING} B")
        self.large_page = large_page
        self._next_address = FIRST_ADDRESS

    def release(self) -> None:
        """Give every page without an allocated block back to the device."""
        for pool in self._pools.values():
            for _, _, block in list(pool.cached):
                self._unmap(block)

    def _page(self, pool: Pool) -> int:
        """Return the size of the pages that a pool takes from the device [B]."""
        return SMALL_SEGMENT if pool.small else self.large_page

    def _fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        place = pool.first_fit(size)
        if place == len(pool.cached):
            return None
        # A block that can still grow counts with its possible size, therefore a segment's end is used last.
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
            # A free block is followed by addresses without memory: two free neighbours would have been joined.
            gap = block.behind
            if gap is None or not self._map(gap, size - block.size):
                pool.put(block)
                return None
            block.join()
        return block

    def _place(self, pool: Pool, size: int) -> MemoryBlock:
        """Return the lowest free block with `size` free bytes from it on, mapped or not; else a new, unmapped one."""
        for _, gap in pool.unmapped:
            start = gap.before if gap.before is not None and gap.before.cached else gap
            if _room(start, size):
                return start
        # Segments start at page boundaries in both pools, so pages can be counted from the first address.
        span = round_up(max(_ADDRESSES, size), lcm(self.large_page, SMALL_SEGMENT))
        block = MemoryBlock(self._next_address, span, pool, mapped=False)
        self._next_address += span
        self._heads[block.address] = block
        pool.put_unmapped(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> bool:
        """Map device memory for up to `size` bytes, in whole pages, at the start of an unmapped block.

        The block joins a free mapped block behind it. Returns False if the device has no room.
        """
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
        """Give the whole pages inside a free block back to the device; the rest of the block stays free."""
        pool, page = block.pool, self._page(block.pool)
        # Page boundaries inside the block; a partial page at either end stays mapped.
        first = round_up(block.address - FIRST_ADDRESS, page) + FIRST_ADDRESS
        last = block.end - (block.end - FIRST_ADDRESS) % page
        # No whole page lies inside the block.
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
        """Join a block of addresses without memory with neighbours that have no memory either."""
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
    """Return a free block's size, plus the unmapped addresses behind it [B]."""
    behind = block.behind
    return block.size if behind is None or behind.mapped else block.size + behind.size


def _room(block: MemoryBlock | None, size: int) -> bool:
    """Return True if the free addresses from `block` on, mapped or not, suffice for `size` bytes."""
    while block is not None and not block.held and size > 0:
        size -= block.size
        block = block.behind
    return size <= 0
