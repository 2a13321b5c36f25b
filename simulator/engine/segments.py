"""What a caching allocator is made of: rounding, blocks in a chain, and free blocks sorted by size.

Rule: bookkeeping only; who asks the device for memory, and when it is given back, is said in allocator.py. Like the
shelves of a warehouse: planks, gaps, and a card index of the gaps.

The figures are those of PyTorch's CUDA allocator, public in c10/cuda/CUDACachingAllocator.cpp and described in
pytorch.org/docs/stable/notes/cuda.html, "Memory management".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

# All constants: c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc,
# kLargeBuffer, kRoundLarge).
ROUNDING: Final = 512
SMALL_REQUEST: Final = 2**20
SMALL_SEGMENT: Final = 2 * 2**20
HUGE_REQUEST: Final = 10 * 2**20
LARGE_SEGMENT: Final = 20 * 2**20
HUGE_ROUNDING: Final = 2 * 2**20


def round_up(nbytes: int, multiple: int) -> int:
    """Round bytes up to a multiple [B].

    Examples
    --------
    >>> round_up(1, 512), round_up(1024, 512)
    (512, 1024)
    """
    return -(-nbytes // multiple) * multiple


def segment_size(size: int) -> int:
    """Bytes that are taken from the device for an allocation that nothing cached can hold [B].

    Parameters
    ----------
    size : int
        Rounded bytes of the allocation [B].

    Returns
    -------
    int
        2 MiB up to 1 MiB, 20 MiB below 10 MiB, else the size in whole multiples of 2 MiB.

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
    """A contiguous piece of a segment; what `allocate` hands out and `free` takes back.

    Attributes
    ----------
    address : int
        Of its first byte; of no meaning but order and distance.
    size : int
        [B]
    pool : Pool
    requested : int
        What was asked for, before rounding [B].
    held : bool
        Whether it is handed out.
    mapped : bool
        Whether memory stands behind the addresses; only expandable segments have blocks where none does.
    before, behind : MemoryBlock or None
        Neighbours in the segment.
    """

    address: int
    size: int
    pool: Pool
    requested: int = 0
    held: bool = False
    mapped: bool = True
    before: MemoryBlock | None = None
    behind: MemoryBlock | None = None

    @property
    def end(self) -> int:
        """Address behind its last byte."""
        return self.address + self.size

    @property
    def cached(self) -> bool:
        """Whether it holds memory that nobody uses."""
        return self.mapped and not self.held

    def cut(self, size: int) -> MemoryBlock:
        """Shorten to `size` [B] and put the rest behind, as a block of its own."""
        rest = MemoryBlock(self.address + size, self.size - size, self.pool, mapped=self.mapped, before=self)
        rest.behind = self.behind
        if rest.behind is not None:
            rest.behind.before = rest
        self.behind = rest
        self.size = size
        return rest

    def join(self) -> None:
        """Take in the block behind, which ends to be: of two neighbours the lower one stays."""
        gone = self.behind
        if gone is None:
            raise ValueError(f"block at {self.address:#x} is the last of its segment; nothing to join")
        self.size += gone.size
        self.behind = gone.behind
        if self.behind is not None:
            self.behind.before = self


@dataclass(slots=True, eq=False)
class Pool:
    """Blocks of one stream and one class of sizes.

    Attributes
    ----------
    stream : int
    small : bool
        Whether it serves allocations of at most 1 MiB.
    cached : list of (size, address, MemoryBlock)
        Blocks that hold memory and are free, sorted, so that the first that is large enough fits best.
    unmapped : list of (address, MemoryBlock)
        Addresses without memory, sorted; in expandable segments only.
    """

    stream: int
    small: bool
    cached: list[tuple[int, int, MemoryBlock]] = field(default_factory=list)
    unmapped: list[tuple[int, MemoryBlock]] = field(default_factory=list)

    def put(self, block: MemoryBlock) -> None:
        """Enter a free block, by its present size."""
        insort(self.cached, (block.size, block.address, block))

    def take(self, block: MemoryBlock) -> None:
        """Strike a block out; its size must be as it was when it was entered."""
        del self.cached[bisect_left(self.cached, (block.size, block.address))]

    def first_fit(self, size: int) -> int:
        """Place in `cached` of the smallest block of at least `size` [B]; the length where there is none."""
        return bisect_left(self.cached, (size, -1))

    def put_unmapped(self, block: MemoryBlock) -> None:
        """Enter addresses that have no memory."""
        insort(self.unmapped, (block.address, block))

    def take_unmapped(self, block: MemoryBlock) -> None:
        """Strike addresses out that are to get memory."""
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]


def chain(head: MemoryBlock) -> Iterator[MemoryBlock]:
    """Blocks of a segment, by address."""
    block: MemoryBlock | None = head
    while block is not None:
        yield block
        block = block.behind


def runs(head: MemoryBlock) -> Iterator[tuple[MemoryBlock, ...]]:
    """Blocks of a segment, in groups without a gap between them where no memory is mapped."""
    run: list[MemoryBlock] = []
    for block in chain(head):
        if block.mapped:
            run.append(block)
        elif run:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)
