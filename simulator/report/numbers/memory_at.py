"""Which allocations make up a rank's memory at a given moment, for example at the peak?

The allocator's log is replayed; nothing is simulated again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from simulator.basics.natural_order import natural
from simulator.records.timeline import AllocatorEvent, Timeline

# Change of the allocated bytes by an event. Segments of the allocator do not count, only allocations.
_SIGN: Final = {"alloc": 1, "free": -1}


@dataclass(frozen=True, slots=True)
class Holder:
    """An allocation."""

    # `name`, `category`: Names given at allocation: "layer 3 activations 0", "activations".
    name: str
    category: str
    nbytes: int  # size [B]
    since: float  # time of the allocation [s]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An allocation, and the part of the allocator's log in which it exists."""

    holder: Holder  # the allocation
    # `first`, `last`: Number of the event that allocates it, and of the event that frees it; the number of events if
    # none frees it.
    first: int
    last: int
    until: float  # time of the event that frees it [s]; the end of the timeline if none does

    def exists(self, events: int) -> bool:
        """Return True if the allocation exists after the log's first `events` events."""
        return self.first < events <= self.last


def allocations_at(timeline: Timeline, time: float | None = None, rank: int = 0) -> tuple[Holder, ...]:
    """Return the allocations that a rank holds at a moment, largest first, ties in natural order of names.

    Parameters
    ----------
    timeline : Timeline
        Simulated with an allocator, like every scenario.
    time : float, optional
        Moment [s], after all its events; if omitted, the first moment of the rank's peak.
    rank : int
        Rank of interest.

    Raises
    ------
    ValueError
        The timeline has no allocations of this rank.
    """
    lifetimes = _lifetimes(timeline, rank)
    events = timeline.allocations[rank]
    # Events at the moment itself are included (bisect_right).
    end = fullest(events) if time is None else bisect_right(events, time, key=lambda event: event.time)
    return tuple(life.holder for life in lifetimes if life.exists(end))


def large_over_time(timeline: Timeline, rank: int, share: float) -> tuple[Lifetime, ...]:
    """Return the allocations of a rank in large groups, in the order of `allocations_at`.

    A group has alike allocations: the same category, and names that differ only in their numbers. A group is large if
    its allocations together have at least `share` of the rank's peak at any moment.

    Raises
    ------
    ValueError
        The timeline has no allocations of this rank.
    """
    lifetimes = _lifetimes(timeline, rank)
    sizes: dict[tuple[str, str], int] = {}
    most: dict[tuple[str, str], int] = {}
    peak = total = 0
    for event in timeline.allocations[rank]:
        group, change = _group(event.label, event.category), _SIGN.get(event.action, 0) * event.size
        total += change
        sizes[group] = sizes.get(group, 0) + change
        most[group] = max(most.get(group, 0), sizes[group])
        peak = max(peak, total)
    return tuple(
        life for life in lifetimes if most[_group(life.holder.name, life.holder.category)] >= share * peak
    )  # fmt: skip


def _group(name: str, category: str) -> tuple[str, str]:
    """Return a key that is equal for alike allocations."""
    return re.sub(r"\d+", "#", name), category


def _lifetimes(timeline: Timeline, rank: int) -> list[Lifetime]:
    """Return all allocations of a rank, largest first, ties in natural order of names."""
    if rank not in timeline.allocations:
        raise ValueError(f"got rank {rank}; allocations are known of {sorted(timeline.allocations) or 'none'}")
    events = timeline.allocations[rank]
    begun: dict[str, tuple[int, Holder]] = {}
    ended = []
    for number, event in enumerate(events):
        # A label is unique among the allocations that exist at the same time.
        if event.action == "alloc":
            begun[event.label] = (number, Holder(event.label, event.category, event.size, event.time))
        elif event.action == "free":
            first, holder = begun.pop(event.label)
            ended.append(Lifetime(holder, first, number, event.time))
    alive = [Lifetime(holder, first, len(events), timeline.end) for first, holder in begun.values()]
    return sorted(ended + alive, key=lambda life: (-life.holder.nbytes, natural(life.holder.name), life.first))


def fullest(events: Sequence[AllocatorEvent]) -> int:
    """Return the number of allocator events up to the first event at which the allocated bytes reach their maximum."""
    used = list(accumulate(_SIGN.get(event.action, 0) * event.size for event in events))
    return used.index(max(used)) + 1 if used else 0
