"""Which lines could ever fill a link together, from what each asks of it at most and from when to when.

Rule: cheap and on the safe side; who is named here is looked at flow by flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.contention import OVERLOADED, LinkLoad


def may_contend(
    lines: Iterable[tuple[float, int, Callable[[], LinkLoad | None]]], capacity: Floats
) -> Iterator[tuple[int, ...]]:
    """Places of lines that overlap on a link and ask for more than it has, each line with those begun before it.

    Parameters
    ----------
    lines : iterable of (time, place, callable () -> LinkLoad or None)
        In the order of the times when they begin [s], before which they take nothing; a load is asked for once and
        dropped when the line is over.
    capacity : float array
        Of every link [B/s].
    """
    known: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    active: dict[int, LinkLoad] = {}
    for begin, place, load_of in lines:
        own = load_of()
        if own is None or not len(own.link):
            continue
        # A line that begins later may have its first flow before this one's: only the beginnings rise.
        active = {other: load for other, load in active.items() if float(load.last.max()) > begin}
        asked, among = own.peak_demand.copy(), [place]
        for other, load in active.items():
            mine, theirs = _shared(own, load, known)
            over = (own.first[mine] < load.last[theirs]) & (load.first[theirs] < own.last[mine])
            if over.any():
                np.add.at(asked, mine[over], load.peak_demand[theirs[over]])
                among.append(other)
        if len(among) > 1 and bool((asked > np.maximum(own.peak_demand, capacity[own.link] * OVERLOADED)).any()):
            yield tuple(sorted(among))
        active[place] = own


def _shared(one: LinkLoad, other: LinkLoad, known: dict[tuple[int, int], tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Rows of both that are of one link, each pair of rows once; `known` keeps the answer for links that come again."""
    key = hash(one.link.tobytes()), hash(other.link.tobytes())
    if key not in known:
        order = np.argsort(other.link, kind="stable")
        low = np.searchsorted(other.link[order], one.link, "left")
        high = np.searchsorted(other.link[order], one.link, "right")
        mine = np.repeat(np.arange(len(one.link)), high - low)
        within = np.arange(len(mine)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
        known[key] = mine, order[np.repeat(low, high - low) + within]
    return known[key]
