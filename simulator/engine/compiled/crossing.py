"""Which lines could ever fill a link together, from what each asks of it at most and from when to when.

Rule: cheap and on the safe side; who is named here is looked at flow by flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled.meetings import Load

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Rounding of a sum of rates.
_FULL: Final = 1.0 + 1e-11


def crossing(loads: Mapping[int, Load], capacity: Floats) -> Iterator[tuple[int, ...]]:
    """Places of lines that overlap on a link and ask for more than it has, each line with those begun before it."""
    begins = {place: float(load.first.min(initial=np.inf)) for place, load in loads.items()}
    ends = {place: float(load.last.max(initial=-np.inf)) for place, load in loads.items()}
    known: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    active: list[int] = []
    for place in sorted(loads, key=lambda place: (begins[place], place)):
        active = [other for other in active if ends[other] > begins[place]]
        own = loads[place]
        asked, among = own.most.copy(), [place]
        for other in active:
            mine, theirs = _shared(own, loads[other], known)
            over = (own.first[mine] < loads[other].last[theirs]) & (loads[other].first[theirs] < own.last[mine])
            if over.any():
                np.add.at(asked, mine[over], loads[other].most[theirs[over]])
                among.append(other)
        if len(among) > 1 and bool((asked > np.maximum(own.most, capacity[own.link] * _FULL)).any()):
            yield tuple(sorted(among))
        active.append(place)


def _shared(one: Load, other: Load, known: dict[tuple[int, int], tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
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
