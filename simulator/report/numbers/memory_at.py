"""Which allocations make up a rank's memory at a given moment, for example at the peak?

The allocator's log is replayed up to this moment; nothing is simulated again.
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
    """An allocation.

    Attributes
    ----------
    name, category : str
        Names given at allocation: "layer 3 activations 0", "activations".
    nbytes : int
        Size [B].
    since : float
        Time of the allocation [s].
    """

    name: str
    category: str
    nbytes: int
    since: float


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
    if rank not in timeline.allocations:
        raise ValueError(f"got rank {rank}; allocations are known of {sorted(timeline.allocations) or 'none'}")
    events = timeline.allocations[rank]
    # Events at the moment itself are included (bisect_right).
    end = _fullest(events) if time is None else bisect_right(events, time, key=lambda event: event.time)
    holders: dict[str, Holder] = {}
    for event in events[:end]:
        # A label is unique among the allocations that exist at the same time.
        if event.action == "alloc":
            holders[event.label] = Holder(event.label, event.category, event.size, event.time)
        elif event.action == "free":
            del holders[event.label]
    return tuple(sorted(holders.values(), key=lambda holder: (-holder.nbytes, natural(holder.name))))


def _fullest(events: Sequence[AllocatorEvent]) -> int:
    """Return the number of allocator events up to the first event at which the allocated bytes reach their maximum."""
    # Segments of the allocator do not count, only allocations.
    sign = {"alloc": 1, "free": -1}
    used = list(accumulate(sign.get(event.action, 0) * event.size for event in events))
    return used.index(max(used)) + 1 if used else 0
