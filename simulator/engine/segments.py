"""The parts of a caching allocator: rounding, blocks in a chain, and free blocks sorted by size.

Bookkeeping only; allocator.py decides when memory is requested from the device and given back. The constants are those
in PyTorch's CUDA allocator (c10/cuda/CUDACachingAllocator.cpp), described under "Memory management" in
pytorch.org/docs/stable/notes/cuda.html.

A segment with three blocks::

    address   0          512              2048          2 MiB
              |-- held --|---- cached ----|---- held ---|
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

# c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge.
ROUNDING: Final = 512
SMALL_REQUEST: Final = 2**20  # largest allocation in the small pool
SMALL_SEGMENT: Final = 2 * 2**20  # request to the device for the small pool
HUGE_REQUEST: Final = 10 * 2**20  # from here on, a segment fits its allocation
LARGE_SEGMENT: Final = 20 * 2**20  # request to the device below HUGE_REQUEST
HUGE_ROUNDING: Final = 2 * 2**20  # granularity above HUGE_REQUEST


def round_up(nbytes: int, multiple: int) -> int:
    """Return `nbytes` rounded up to a multiple of `multiple` [B].

    >>> round_up(1, 512), round_up(1024, 512)
    (512, 1024)
    """
    return -(-nbytes // multiple) * multiple


def segment_size(size: int) -> int:
    """Return the bytes requested from the device for an allocation without a cached block [B].

    Parameters
    ----------
    size : int
        Rounded bytes of the allocation [B].

    Returns
    -------
    int
        2 MiB up to 1 MiB, 20 MiB below 10 MiB, otherwise the size in whole multiples of 2 MiB.

    Examples
    --------
    >>> [segment_size(mib * 2**20) // 2**20 for mib in (1, 2, 10, 11)]
    [2, 20, 10, 12]
    """
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < HUGE_REQUEST else round_up(size, HUGE_ROUNDING)


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A contiguous piece of GPU memory in a segment of a caching allocator, allocated or free."""

    address: int  # address of the first byte; only order and distance have a meaning
    size: int  # size, rounding included [B]
    pool: Pool  # pool of the block's segment
    requested: int = 0  # size before rounding [B]
    held: bool = False  # True while allocated
    mapped: bool = True  # True if the addresses have memory; False occurs only in expandable segments
    before: MemoryBlock | None = None  # neighbour at lower addresses; None if the block is the segment's first
    behind: MemoryBlock | None = None  # neighbour at higher addresses; None if the block is the segment's last

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.address + self.size

    @property
    def cached(self) -> bool:
        """Return True if the block has memory and is not allocated."""
        return self.mapped and not self.held

    def cut(self, size: int) -> MemoryBlock:
        """Shorten the block to `size` [B]; return the rest, linked behind it."""
        rest = MemoryBlock(self.address + size, self.size - size, self.pool, mapped=self.mapped, before=self)
        rest.behind = self.behind
        if rest.behind is not None:
            rest.behind.before = rest
        self.behind = rest
        self.size = size
        return rest

    def join(self) -> None:
        """Absorb the next block of the segment into this block."""
        gone = self.behind
        if gone is None:
            raise ValueError(f"block at {self.address:#x} is the last of its segment; nothing to join")
        self.size += gone.size
        self.behind = gone.behind
        if self.behind is not None:
            self.behind.before = self


@dataclass(slots=True, eq=False)
class Pool:
    """A caching allocator's free memory for one stream and one size class (small or large)."""

    stream: int  # stream that uses the pool
    small: bool  # True for allocations of at most 1 MiB
    # Free blocks with memory: (size [B], address, block), sorted; the first block that is large enough fits best.
    cached: list[tuple[int, int, MemoryBlock]] = field(default_factory=list)
    # Blocks without memory: (address, block), sorted; in expandable segments only.
    unmapped: list[tuple[int, MemoryBlock]] = field(default_factory=list)

    def put(self, block: MemoryBlock) -> None:
        """Insert a free block into the pool's cached blocks, sorted by size."""
        # Ties in size are broken by address.
        insort(self.cached, (block.size, block.address, block))

    def take(self, block: MemoryBlock) -> None:
        """Remove a block from the pool's cached blocks; its size must be unchanged since `put`."""
        del self.cached[bisect_left(self.cached, (block.size, block.address))]

    def first_fit(self, size: int) -> int:
        """Return the index in `cached` of the smallest free block with at least `size` bytes.

        The index is len(cached) if there is none.
        """
        # -1 sorts before every address.
        return bisect_left(self.cached, (size, -1))

    def put_unmapped(self, block: MemoryBlock) -> None:
        """Insert a block of addresses without memory into the pool's list `unmapped`."""
        insort(self.unmapped, (block.address, block))

    def take_unmapped(self, block: MemoryBlock) -> None:
        """Remove a block of addresses from the pool's list `unmapped`, because it will get memory."""
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]


def chain(head: MemoryBlock) -> Iterator[MemoryBlock]:
    """Yield a segment's blocks by address, given the first block."""
    block: MemoryBlock | None = head
    while block is not None:
        yield block
        block = block.behind


def runs(head: MemoryBlock) -> Iterator[tuple[MemoryBlock, ...]]:
    """Yield tuples of consecutive blocks with memory, split at unmapped gaps, given a segment's first block."""
    run: list[MemoryBlock] = []
    for block in chain(head):
        if block.mapped:
            run.append(block)
        elif run:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)
