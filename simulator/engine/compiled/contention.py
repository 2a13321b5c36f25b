"""Whether flows ever held each other back on a link: the proof that every one went at its own rate, or who did not.

Rule: as long as a link can give all flows on it what each takes alone, it holds nobody back. Flows whose shares were
solved together may fill a link, if nobody else is on it. The flows of a lap are told as one, from the first enter to
the last end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.basics.intervals import largest_so_far
from simulator.engine.routes import Routes

# One flow may begin where another ends: ends count as this much earlier, for rounding.
_SHORTER: Final = 1.0 - 1e-13
# Rounding of a sum of rates.
OVERLOADED: Final = 1.0 + 1e-11
# Meetings that are told of each link; what is left over shows when these are solved.
_FEW: Final = 16
_MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class LinkOccupancy:
    """Who is on links that matter, and when: a row a flow and link.

    Attributes
    ----------
    link : int array
    enter, end : float array
        [s]
    demand : float array
        What the flow takes of the link when it is alone [B/s].
    flow_group : int array
        Flows whose shares were solved together; -1 for those that were alone.
    owners : int array
        Which of several uses that were put together a row is of.
    """

    link: Ints
    enter: Floats
    end: Floats
    demand: Floats
    flow_group: Ints
    owners: Ints

    def later(self, zero: float) -> LinkOccupancy:
        """The same from another moment on."""
        return replace(self, enter=self.enter + zero, end=self.end + zero)

    def as_one_flow_group(self) -> LinkOccupancy:
        """The same, all of it solved together."""
        return replace(self, flow_group=np.zeros_like(self.flow_group))


@dataclass(frozen=True, slots=True)
class Contention:
    """Flows on one link at once that ask for more than it has.

    Attributes
    ----------
    link : int
    time : float
        When the last of them enters [s].
    owners : tuple of int
        Those that are on it then.
    certain : bool
        Whether flows were looked at one by one.
    """

    link: int
    time: float
    owners: tuple[int, ...]
    certain: bool = True


def occupancy_of(
    routes: Routes, route_of: npt.NDArray[Any], enter: Floats, end: Floats, flow_group: Ints
) -> LinkOccupancy:
    """What flows that take these routes have of links that matter."""
    # A flow without bytes holds nothing.
    real = np.flatnonzero(end > enter)
    flow, link, weight = routes.taken(route_of[real])
    row = real[flow]
    own = np.zeros(len(row), np.int64)
    return LinkOccupancy(link, enter[row], end[row], weight * routes.rate[route_of[row]], flow_group[row], own)


def concatenated(occupancies: Sequence[LinkOccupancy]) -> LinkOccupancy:
    """All together; each use's flow groups stay its own, and `whose` is its place."""
    none = np.zeros(0)
    flow_group, base = [np.zeros(0, np.int64)], 0
    for occupancy in occupancies:
        flow_group.append(np.where(occupancy.flow_group >= 0, occupancy.flow_group + base, -1))
        base += int(occupancy.flow_group.max(initial=-1)) + 1
    return LinkOccupancy(
        link=np.concatenate([none.astype(np.int64), *(occupancy.link for occupancy in occupancies)]),
        enter=np.concatenate([none, *(occupancy.enter for occupancy in occupancies)]),
        end=np.concatenate([none, *(occupancy.end for occupancy in occupancies)]),
        demand=np.concatenate([none, *(occupancy.demand for occupancy in occupancies)]),
        flow_group=np.concatenate(flow_group),
        owners=np.repeat(np.arange(len(occupancies)), [len(occupancy.link) for occupancy in occupancies]),
    )


def contentions(occupancy: LinkOccupancy, capacity: Floats) -> list[Contention]:
    """Where a link could not give all flows on it what they take alone, unless these were solved together.

    Parameters
    ----------
    occupancy : LinkOccupancy
    capacity : float array
        Of every link [B/s].

    Returns
    -------
    list of Contention
        In order of time; where there are many, some of them.
    """
    rows = np.isin(occupancy.link, _filled(occupancy, capacity))
    if not rows.any():
        return []
    link, whose = occupancy.link[rows], occupancy.owners[rows]
    enter, end, asked = occupancy.enter[rows], occupancy.end[rows], occupancy.demand[rows]
    several = merged_intervals(link, enter, end, occupancy.flow_group[rows])
    none, some = np.zeros(len(link)), np.zeros(len(several[0]))
    full = _events(
        np.concatenate([link, several[0]]),
        np.concatenate([enter, several[1]]),
        np.concatenate([end, several[2]]),
        (np.concatenate([asked, some]), np.concatenate([none, some + 1])),
    )
    met = np.flatnonzero((full.sums[0] > capacity[full.link] * OVERLOADED) & (full.sums[1] > 1.5))
    order = np.argsort(link, kind="stable")
    cuts = np.searchsorted(link[order], np.arange(int(link.max()) + 2))
    found = []
    for number in met[_first_few(full.link[met])].tolist():
        where, time = int(full.link[number]), float(full.time[number])
        own = order[cuts[where] : cuts[where + 1]]
        there = np.unique(whose[own[(enter[own] <= time) & (end[own] * _SHORTER > time)]])
        found.append(Contention(where, time, tuple(there.tolist())))
    return sorted(found, key=lambda meeting: (meeting.time, meeting.link))


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What is asked of links at most, and from when to when: a row a link.

    Attributes
    ----------
    link : int array
        Rising.
    first, last : float array
        [s]
    peak_demand : float array
        That flows on it at one time ask for [B/s].
    """

    link: Ints
    first: Floats
    last: Floats
    peak_demand: Floats


def load_of(occupancy: LinkOccupancy) -> LinkLoad:
    """Sum a use up by link."""
    link, place = np.unique(occupancy.link, return_inverse=True)
    first, last, most = np.full(len(link), np.inf), np.full(len(link), -np.inf), np.zeros(len(link))
    np.minimum.at(first, place, occupancy.enter)
    np.maximum.at(last, place, occupancy.end)
    loads = _events(occupancy.link, occupancy.enter, occupancy.end, (occupancy.demand,))
    np.maximum.at(most, np.searchsorted(link, loads.link), loads.sums[0])
    return LinkLoad(link, first, last, most)


def _filled(occupancy: LinkOccupancy, capacity: Floats) -> Ints:
    """Links on which all flows together ever ask for more than there is."""
    loads = _events(occupancy.link, occupancy.enter, occupancy.end, (occupancy.demand,))
    return np.unique(loads.link[loads.sums[0] > capacity[loads.link] * OVERLOADED])


@dataclass(frozen=True, slots=True)
class _Events:
    """Sums over what is on each link, right after everything that happens at one time; sorted by link and time."""

    link: Ints
    time: Floats
    sums: tuple[Floats, ...]


def _events(link: Ints, enter: Floats, end: Floats, amounts: Sequence[Floats]) -> _Events:
    """Add amounts when they enter and take them away when they end; one flow may begin where another ends."""
    both, time = np.concatenate([link, link]), np.concatenate([enter, end * _SHORTER])
    order = np.lexsort((time, both))
    both, time = both[order], time[order]
    last = np.concatenate([(both[1:] != both[:-1]) | (time[1:] != time[:-1]), [True]])[: len(both)]
    sums = tuple(np.cumsum(np.concatenate([amount, -amount])[order])[last] for amount in amounts)
    return _Events(both[last], time[last], sums)


def _first_few(link: Ints) -> Ints:
    """Places of the first entries of some links; they are sorted by link."""
    begin = np.searchsorted(link, link)
    chosen = np.flatnonzero(np.arange(len(link)) - begin < _FEW)
    return chosen[:: 1 + len(chosen) // _MOST]


def merged_intervals(link: Ints, enter: Floats, end: Floats, flow_group: Ints) -> tuple[Ints, Floats, Floats]:
    """Link, enter and end; flows of one flow group that overlap on a link are one interval."""
    alone = np.flatnonzero(flow_group < 0)
    rows = np.flatnonzero(flow_group >= 0)
    if not len(rows):
        return link, enter, end
    rows = rows[np.lexsort((enter[rows], flow_group[rows], link[rows]))]
    own, lot, begin, until = link[rows], flow_group[rows], enter[rows], end[rows]
    new = np.concatenate([[True], (own[1:] != own[:-1]) | (lot[1:] != lot[:-1])])
    until = largest_so_far(until, np.cumsum(new))
    new[1:] |= begin[1:] >= until[:-1]
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:], [len(rows)]]) - 1
    return (
        np.concatenate([link[alone], own[first]]),
        np.concatenate([enter[alone], begin[first]]),
        np.concatenate([end[alone], until[last]]),
    )
