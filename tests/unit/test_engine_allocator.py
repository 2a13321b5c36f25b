"""PyTorch's two ways of keeping GPU memory: rounding, splitting, joining, giving back, and what is lost between."""

from __future__ import annotations

import pickle
from bisect import insort
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics.errors import UnknownNameError
from simulator.engine.allocator import Allocator, CachingAllocator, NoRoomError
from simulator.engine.allocator_log import ALLOCATORS, LoggedAllocator
from simulator.engine.expandable_segments import ExpandableAllocator
from simulator.engine.segments import MemoryBlock, chain

MIB, GIB = 2**20, 2**30
BOTH = (CachingAllocator, ExpandableAllocator)


@pytest.mark.parametrize(
    ("nbytes", "size", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB + MIB, 12 * MIB),  # 1 MiB is left over, which a large block keeps
        (13 * MIB, 14 * MIB, 14 * MIB),
    ],
)
def test_allocations_are_rounded_to_512_bytes_and_segments_by_their_class(
    nbytes: int, size: int, reserved: int
) -> None:
    memory = CachingAllocator(80e9)
    block = memory.allocate(nbytes)
    assert (block.size, block.requested) == (size, nbytes)
    assert (memory.allocated, memory.reserved) == (size, reserved)


def test_small_allocations_share_a_segment_of_two_mib() -> None:
    memory = CachingAllocator(80e9)
    first, second = memory.allocate(MIB), memory.allocate(MIB)
    assert second.address == first.address + MIB
    assert memory.reserved == 2 * MIB


def test_a_large_block_keeps_a_rest_of_one_mib_and_parts_with_more() -> None:
    memory = CachingAllocator(80e9)
    memory.free(memory.allocate(20 * MIB))
    assert memory.allocate(19 * MIB).size == 20 * MIB
    memory = CachingAllocator(80e9)
    memory.free(memory.allocate(20 * MIB))
    assert memory.allocate(19 * MIB - 512).size == 19 * MIB - 512
    assert memory.fragments() == (MIB + 512,)


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    memory = CachingAllocator(80e9)
    blocks = [memory.allocate(mib * MIB) for mib in (64, 32, 48)]
    for block in blocks:
        memory.free(block)
    assert memory.allocate(40 * MIB).address == blocks[2].address


def test_of_free_blocks_of_one_size_the_lowest_is_taken() -> None:
    memory = CachingAllocator(80e9)
    blocks = [memory.allocate(32 * MIB) for _ in range(3)]
    for block in reversed(blocks):
        memory.free(block)
    assert memory.allocate(32 * MIB).address == blocks[0].address


def test_free_neighbours_become_one_block() -> None:
    memory = CachingAllocator(80e9)
    blocks = [memory.allocate(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    memory.free(blocks[0])
    memory.free(blocks[2])
    assert memory.fragments() == (5 * MIB, 5 * MIB)
    memory.free(blocks[1])
    assert memory.fragments() == (15 * MIB,)
    memory.free(blocks[3])
    assert memory.fragments() == (20 * MIB,)


@pytest.mark.parametrize("kind", BOTH)
def test_memory_stays_reserved_after_it_was_freed(kind: Callable[[float], Allocator]) -> None:
    memory = kind(80e9)
    memory.free(memory.allocate(100 * MIB))
    assert (memory.allocated, memory.reserved) == (0, 100 * MIB)
    assert (memory.peak_allocated, memory.peak_reserved) == (100 * MIB, 100 * MIB)


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_cached_goes_back_when_an_allocation_would_fail_otherwise(kind: Callable[[float], Allocator]) -> None:
    memory = kind(1 * GIB)
    small = [memory.allocate(100 * MIB, stream=1) for _ in range(6)]
    for block in small:
        memory.free(block)
    memory.allocate(900 * MIB)
    assert memory.reserved == 900 * MIB


@pytest.mark.parametrize("kind", BOTH)
def test_the_peaks_stay_when_memory_goes_back(kind: Callable[[float], Allocator]) -> None:
    memory = kind(80e9)
    memory.free(memory.allocate(100 * MIB))
    memory.release()
    assert (memory.reserved, memory.peak_reserved, memory.peak_allocated) == (0, 100 * MIB, 100 * MIB)


@pytest.mark.parametrize("kind", BOTH)
def test_what_one_stream_frees_no_other_stream_gets(kind: Callable[[float], Allocator]) -> None:
    memory = kind(80e9)
    block = memory.allocate(40 * MIB, stream=7)
    memory.free(block)
    memory.allocate(40 * MIB, stream=20)
    assert memory.reserved == 80 * MIB
    assert memory.allocate(40 * MIB, stream=7).address == block.address


@pytest.mark.parametrize("kind", BOTH)
def test_zero_bytes_take_nothing_and_can_be_freed(kind: Callable[[float], Allocator]) -> None:
    memory = kind(80e9)
    block = memory.allocate(0)
    memory.free(block)
    assert (block.size, memory.reserved, memory.segments()) == (0, 0, ())


@pytest.mark.parametrize("kind", BOTH)
def test_a_block_is_freed_once(kind: Callable[[float], Allocator]) -> None:
    memory = kind(80e9)
    block = memory.allocate(1)
    memory.free(block)
    with pytest.raises(ValueError, match="not handed out"):
        memory.free(block)


@pytest.mark.parametrize("kind", BOTH)
def test_negative_sizes_and_no_capacity_are_refused(kind: Callable[[float], Allocator]) -> None:
    with pytest.raises(ValueError, match="got -1 bytes"):
        kind(80e9).allocate(-1)
    with pytest.raises(ValueError, match="capacity"):
        kind(0)


def test_the_last_block_of_a_segment_has_nothing_to_join() -> None:
    with pytest.raises(ValueError, match="nothing to join"):
        CachingAllocator(80e9).allocate(2 * MIB).pool.cached[0][2].join()


def test_pages_are_a_multiple_of_512_bytes() -> None:
    with pytest.raises(ValueError, match="pages of 1000 B"):
        ExpandableAllocator(80e9, large_page=1000)


@pytest.mark.parametrize("kind", BOTH)
def test_an_infinite_capacity_takes_everything(kind: Callable[[float], Allocator]) -> None:
    memory = kind(float("inf"))
    memory.allocate(10 * 2**40)
    assert memory.reserved == 10 * 2**40


def second_batch_is_longer(memory: Allocator) -> None:
    """A batch, then what the first step leaves behind, then a longer batch: 40 + 600 MiB at once at most."""
    batch = memory.allocate(512 * MIB)
    memory.free(batch)
    memory.allocate(40 * MIB)
    memory.allocate(600 * MIB)


def test_a_small_tenant_of_a_large_segment_makes_caching_run_out_where_expandable_segments_fit() -> None:
    memory = CachingAllocator(1 * GIB)
    with pytest.raises(NoRoomError) as caught:
        second_batch_is_longer(memory)
    error = caught.value
    # 984 MiB are free, but in two pieces: 472 MiB behind the tenant, and 512 MiB that were never taken.
    assert (error.requested, error.free, error.largest_free) == (600 * MIB, (1024 - 40) * MIB, 512 * MIB)
    assert error.reserved == 512 * MIB
    assert memory.fragments() == ((512 - 40) * MIB,)

    growing = ExpandableAllocator(1 * GIB)
    second_batch_is_longer(growing)
    assert growing.allocated == 640 * MIB
    # Pages of 20 MiB: 26 for the first batch (520 MiB), then 6 more for the 120 MiB that the second is longer.
    assert growing.reserved == (26 + 6) * 20 * MIB


def test_no_room_tells_its_facts_and_pickles() -> None:
    error = pickle.loads(pickle.dumps(NoRoomError(600, 900.0, 500.0, 100)))
    assert (error.requested, error.free, error.largest_free, error.reserved) == (600, 900.0, 500.0, 100)
    assert str(error) == "no room for 600 B: 900 B are free, the largest piece is 500 B, 100 B are reserved"


def test_nothing_changes_for_the_others_when_there_is_no_room() -> None:
    for kind in BOTH:
        memory = kind(100 * MIB)
        held = memory.allocate(60 * MIB)
        with pytest.raises(NoRoomError):
            memory.allocate(60 * MIB)
        assert (held.size, memory.allocated, memory.reserved) == (60 * MIB, 60 * MIB, 60 * MIB)


@pytest.mark.parametrize(
    ("nbytes", "pages", "page"), [(1, 1, 2 * MIB), (3 * MIB, 1, 20 * MIB), (41 * MIB, 3, 20 * MIB)]
)
def test_expandable_segments_grow_by_pages_of_their_pool(nbytes: int, pages: int, page: int) -> None:
    memory = ExpandableAllocator(80e9)
    memory.allocate(nbytes)
    assert memory.reserved == pages * page


def test_in_expandable_segments_every_512_bytes_left_over_are_a_block() -> None:
    memory = ExpandableAllocator(80e9)
    memory.allocate(20 * MIB - 512)
    assert memory.fragments() == (512,)


def test_pages_can_be_as_small_as_the_device_s_own() -> None:
    memory = ExpandableAllocator(80e9, large_page=2 * MIB)
    memory.allocate(41 * MIB)
    assert memory.reserved == 42 * MIB


def test_an_expandable_segment_grows_behind_its_last_free_block() -> None:
    memory = ExpandableAllocator(80e9)
    first = memory.allocate(100 * MIB)
    second = memory.allocate(100 * MIB)
    memory.free(second)
    assert memory.allocate(300 * MIB).address == first.end
    assert memory.reserved == 400 * MIB
    assert len(memory.segments()) == 1


def test_the_end_of_an_expandable_segment_is_used_last() -> None:
    memory = ExpandableAllocator(80e9)
    blocks = [memory.allocate(mib * MIB) for mib in (60, 20, 40)]
    memory.free(blocks[0])
    memory.free(blocks[2])
    # The 40 MiB at the end fit better, but can grow for a larger one; the gap of 60 MiB cannot.
    assert memory.allocate(40 * MIB).address == blocks[0].address


def test_pages_in_the_middle_of_an_expandable_segment_move_to_its_end() -> None:
    memory = ExpandableAllocator(300 * MIB)
    blocks = [memory.allocate(100 * MIB) for _ in range(3)]
    memory.free(blocks[1])
    memory.free(blocks[0])
    memory.allocate(200 * MIB)
    assert memory.reserved == 300 * MIB

    memory = ExpandableAllocator(300 * MIB)
    blocks = [memory.allocate(100 * MIB) for _ in range(3)]
    memory.free(blocks[0])
    memory.free(blocks[2])
    # 200 MiB are free, half of them before a block that stays: those pages are mapped anew behind it.
    assert memory.allocate(200 * MIB).address == blocks[1].end
    assert [len(run) for run in memory.segments()] == [2]
    assert memory.reserved == 300 * MIB


def test_only_whole_pages_of_a_free_block_are_unmapped() -> None:
    memory = ExpandableAllocator(80e9)
    blocks = [memory.allocate(mib * MIB) for mib in (30, 40, 30)]  # pages of 20 MiB: the middle spans 30 to 70
    memory.free(blocks[1])
    memory.release()
    assert memory.reserved == (100 - 20) * MIB
    assert memory.fragments() == (10 * MIB, 10 * MIB)
    # 10 MiB on either side of the hole are still there, so mapping one page again gives 40 MiB.
    assert memory.allocate(40 * MIB).address == blocks[0].end
    assert memory.reserved == 100 * MIB


# --- Laws, for any sequence -------------------------------------------------------------------------------------------

# Sizes on both sides of every border between classes.
SIZES = st.one_of(
    st.integers(0, 2 * MIB), st.sampled_from([MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 12 * MIB + 5]),
    st.integers(1, 96).map(lambda mib: mib * MIB),
)  # fmt: skip
STEPS = st.lists(st.one_of(st.tuples(SIZES, st.integers(0, 1)), st.integers(0, 1_000)), min_size=10, max_size=60)
KINDS = st.sampled_from([CachingAllocator, ExpandableAllocator, lambda c: ExpandableAllocator(c, large_page=2 * MIB)])


def check(memory: Allocator, live: list[MemoryBlock]) -> None:
    """Blocks fill their segments without overlap, lists hold what is free, counts agree."""
    runs = memory.segments()
    blocks = [block for run in runs for block in run]
    for run in runs:
        assert all(low.end == high.address for low, high in pairwise(run))
    ends = [(run[0].address, run[-1].end) for run in runs]
    assert all(low[1] <= high[0] for low, high in pairwise(ends))
    assert sum(block.size for block in blocks) == memory.reserved <= memory.capacity
    assert {id(b) for b in blocks if b.held} == {id(b) for b in live if b.size}
    assert sum(block.size for block in live) == memory.allocated <= memory.reserved
    assert memory.fragments() == tuple(sorted((b.size for b in blocks if not b.held), reverse=True))
    assert all(block.size >= block.requested for block in live)
    assert memory.peak_allocated >= memory.allocated
    assert memory.peak_reserved >= memory.reserved
    # Free neighbours are always joined, and so are addresses without memory.
    pairs = [pair for head in memory._heads.values() for pair in pairwise(chain(head))]
    assert not any(low.cached and high.cached for low, high in pairs)
    assert not any(not low.mapped and not high.mapped for low, high in pairs)


@settings(max_examples=150)
@given(KINDS, STEPS, st.sampled_from([64 * MIB, 300 * MIB, float("inf")]))
def test_blocks_never_overlap_and_fill_what_is_reserved_within_the_capacity(
    kind: Callable[[float], Allocator], steps: list[tuple[int, int] | int], capacity: float
) -> None:
    memory = kind(capacity)
    live: list[MemoryBlock] = []
    for step in steps:
        if isinstance(step, tuple):
            with suppress(NoRoomError):
                live.append(memory.allocate(step[0], stream=step[1]))
        elif live:
            memory.free(live.pop(step % len(live)))
        check(memory, live)
    while live:
        memory.free(live.pop())
    check(memory, live)
    assert all(len(run) == 1 for run in memory.segments())
    memory.release()
    assert (memory.reserved, memory.segments()) == (0, ())


class ByHand:
    """The rules of the caching allocator in the plainest way: segments as lists of [address, size, held]."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.segments: list[tuple[bool, list[list[int]]]] = []
        self.next = 0

    def reserved(self) -> int:
        return sum(part[1] for _, parts in self.segments for part in parts)

    def allocate(self, nbytes: int) -> int | None:
        size = (nbytes + 511) // 512 * 512
        small = size <= MIB
        fits = [(p[1], p[0], s) for s, (kind, parts) in enumerate(self.segments) if kind == small
                for p in parts if not p[2] and p[1] >= size]  # fmt: skip
        if not fits:
            wanted = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            if self.reserved() + wanted > self.capacity:
                self.segments = [s for s in self.segments if len(s[1]) > 1 or s[1][0][2]]
            if self.reserved() + wanted > self.capacity:
                return None
            self.segments.append((small, [[self.next, wanted, 0]]))
            fits = [(wanted, self.next, len(self.segments) - 1)]
            self.next += wanted
        had, address, number = min(fits)
        parts = self.segments[number][1]
        part = next(p for p in parts if p[0] == address)
        part[2] = 1
        if had - size >= 512 if small else had - size > MIB:
            part[1] = size
            insort(parts, [address + size, had - size, 0])
        return address

    def free(self, address: int) -> None:
        for _, parts in self.segments:
            for part in parts:
                if part[0] == address and part[2]:
                    part[2] = 0
            for low in range(len(parts) - 1, 0, -1):
                if not parts[low][2] and not parts[low - 1][2]:
                    parts[low - 1][1] += parts.pop(low)[1]


@settings(max_examples=150)
@given(STEPS, st.sampled_from([64 * MIB, 300 * MIB, float("inf")]))
def test_caching_puts_every_block_where_the_rules_by_hand_put_it(
    steps: list[tuple[int, int] | int], capacity: float
) -> None:
    memory, plain = CachingAllocator(capacity), ByHand(capacity)
    origin: int | None = None
    live: list[tuple[MemoryBlock, int]] = []
    for step in steps:
        if isinstance(step, tuple) and step[0]:
            address = plain.allocate(step[0])
            if address is None:
                with pytest.raises(NoRoomError):
                    memory.allocate(step[0])
                continue
            block = memory.allocate(step[0])
            origin = block.address if origin is None else origin
            assert block.address - origin == address
            live.append((block, address))
        elif isinstance(step, int) and live:
            block, address = live.pop(step % len(live))
            memory.free(block)
            plain.free(address)
        assert memory.reserved == plain.reserved()


# --- By name, with a log ----------------------------------------------------------------------------------------------


def test_every_allocator_has_the_name_of_pytorch_s_setting() -> None:
    assert sorted(ALLOCATORS) == ["caching", "expandable_segments"]
    with pytest.raises(UnknownNameError, match="did you mean 'caching'"):
        LoggedAllocator("cachin", 80e9)


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("caching", ["segment_alloc", "alloc", "free", "segment_free", "segment_alloc", "alloc"]),
        ("expandable_segments", ["segment_map", "alloc", "free", "segment_map", "alloc"]),
    ],
)
def test_the_log_tells_what_came_and_went_in_order(name: str, actions: list[str]) -> None:
    memory = LoggedAllocator(name, 100 * MIB)
    memory.allocate("small one", 60 * MIB, now=1.0, category="activations")
    memory.free("small one", now=2.0)
    memory.allocate("large one", 80 * MIB, now=3.0, stream=0)
    assert [event.action for event in memory.events] == actions
    given_out = memory.events[1]
    assert (given_out.time, given_out.label, given_out.category) == (1.0, "small one", "activations")
    assert (given_out.size, given_out.block_size) == (60 * MIB, 60 * MIB)
    assert memory.events[0].label == "large"


def test_an_allocation_that_does_not_fit_is_in_the_log_with_what_the_device_has_left() -> None:
    memory = LoggedAllocator("caching", 100 * MIB)
    memory.allocate("weights", 60 * MIB, now=0.0)
    with pytest.raises(NoRoomError):
        memory.allocate("batch", 60 * MIB, now=1.0)
    last = memory.events[-1]
    assert (last.action, last.label, last.size, last.address) == ("oom", "batch", 60 * MIB, 40 * MIB)


def test_labels_are_held_once_and_freed_once() -> None:
    memory = LoggedAllocator("caching", 80e9)
    memory.allocate("weights", 1, now=0.0)
    memory.allocate("nothing", 0, now=0.0)
    with pytest.raises(ValueError, match="'weights' is held already"):
        memory.allocate("weights", 1, now=0.0)
    memory.free("nothing", now=1.0)
    memory.free("weights", now=1.0)
    with pytest.raises(ValueError, match="'weights' is not held"):
        memory.free("weights", now=2.0)
    assert [event.label for event in memory.events] == ["small", "weights", "weights"]
