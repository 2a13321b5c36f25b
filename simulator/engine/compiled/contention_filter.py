"""Which operations could together overload a link, from bounds on what each demands of it and when.

Cheap, and it misses nothing: operations that are not named here cannot contend. Those that are named may not contend
after all; they are then looked at flow by flow (`contention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.tolerances import RUNNING_SUM_OF_RATES
from simulator.engine.compiled.contention import LinkLoad


def may_contend(
    ops: Iterable[tuple[float, int, Callable[[], LinkLoad | None]]], capacity: Floats
) -> Iterator[tuple[int, ...]]:
    """Indices of operations whose loads overlap on a link and exceed its capacity.

    Parameters
    ----------
    ops : iterable of (time, index, callable () -> LinkLoad or None)
        Operations by their start [s], before which they occupy no link, in rising order. A load is asked for once and
        dropped when the operation is over, for the loads of all operations would not fit into memory.
    capacity : float array
        Of every link [B/s].

    Yields
    ------
    tuple of int
        Each operation together with those of the earlier ones that it overlaps with, if these overload a link.
    """
    known: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    active: dict[int, LinkLoad] = {}
    for begin, index, load_of in ops:
        own = load_of()
        if own is None or not len(own.link):
            continue
        # Only starts rise from one operation to the next: an operation may start earlier than another and have its
        # first flow later. So what is over must be judged by the start, not by the first flow.
        active = {other: load for other, load in active.items() if float(load.last.max()) > begin}
        demand, overlapping = own.peak_demand.copy(), [index]
        for other, load in active.items():
            mine, theirs = _common_links(own, load, known)
            meet = (own.first[mine] < load.last[theirs]) & (load.first[theirs] < own.last[mine])
            if meet.any():
                np.add.at(demand, mine[meet], load.peak_demand[theirs[meet]])
                overlapping.append(other)
        # Where an operation alone exceeds a link its own flows were solved together; others must add to that.
        overloaded = demand > np.maximum(own.peak_demand, capacity[own.link] * (1.0 + RUNNING_SUM_OF_RATES))
        if len(overlapping) > 1 and bool(overloaded.any()):
            yield tuple(sorted(overlapping))
        active[index] = own


def _common_links(one: LinkLoad, other: LinkLoad, known: dict[tuple[int, int], tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Pairs of rows, one of each load, that are of one link; `known` keeps them by links, for operations repeat."""
    key = hash(one.link.tobytes()), hash(other.link.tobytes())
    if key not in known:
        order = np.argsort(other.link, kind="stable")
        low = np.searchsorted(other.link[order], one.link, "left")
        high = np.searchsorted(other.link[order], one.link, "right")
        mine = np.repeat(np.arange(len(one.link)), high - low)
        within = np.arange(len(mine)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
        known[key] = mine, order[np.repeat(low, high - low) + within]
    return known[key]
