"""Which allocations make up a rank's memory at a moment, such as its peak?

Rule: replays the allocator's log up to that moment; nothing is played again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.basics.natural_order import natural
from simulator.records.timeline import AllocatorEvent, Timeline


@dataclass(frozen=True, slots=True)
class Holder:
    """One allocation.

    Attributes
    ----------
    name, category : str
        As it was allocated: "layer 3 activations 0", "activations".
    nbytes : int
        [B]
    since : float
        When it was taken [s].
    """

    name: str
    category: str
    nbytes: int
    since: float


def held_at(timeline: Timeline, time: float | None = None, rank: int = 0) -> tuple[Holder, ...]:
    """List what a rank holds at a moment, largest first, equal ones as people order names.

    Parameters
    ----------
    timeline : Timeline
        Played with an allocator, as scenarios are.
    time : float, optional
        [s], after all that happens then; where it is left out, when the rank first holds most.
    rank : int

    Raises
    ------
    ValueError
        The timeline has no allocations of this rank.
    """
    if rank not in timeline.allocations:
        raise ValueError(f"got rank {rank}; allocations are known of {sorted(timeline.allocations) or 'none'}")
    events = timeline.allocations[rank]
    end = _fullest(events) if time is None else bisect_right(events, time, key=lambda event: event.time)
    holders: dict[str, Holder] = {}
    for event in events[:end]:
        if event.action == "alloc":
            holders[event.label] = Holder(event.label, event.category, event.size, event.time)
        elif event.action == "free":
            del holders[event.label]
    return tuple(sorted(holders.values(), key=lambda holder: (-holder.nbytes, natural(holder.name))))


def _fullest(events: Sequence[AllocatorEvent]) -> int:
    """How many events there are up to the one that first brings most bytes."""
    sign = {"alloc": 1, "free": -1}
    used = list(accumulate(sign.get(event.action, 0) * event.size for event in events))
    return used.index(max(used)) + 1 if used else 0
