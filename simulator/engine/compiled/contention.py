"""Whether flows ever slowed each other down on a link: the proof that each went at its own rate, or who did not.

As long as a link can give every flow on it what the flow takes alone, it slows nobody. Flows whose shares were solved
together (a flow group) may fill a link if no other flow is on it. A pipelined ring counts as one flow on each of its
links, from its first enter to its last end, which is on the safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.basics.intervals import largest_so_far
from simulator.basics.tolerances import END_BEFORE_ENTER, RUNNING_SUM_OF_RATES
from simulator.engine.routes import Routes

# Contentions that are reported, of each link and in all. More would only name the same operations again; what is left
# over shows in the next sweep.
_MAX_PER_LINK: Final = 16
_MAX_REPORTED: Final = 1024


@dataclass(frozen=True, slots=True)
class LinkOccupancy:
    """Which flows are on links that matter, and when: one row for each flow and link.

    Attributes
    ----------
    link : int array
    enter, end : float array
        [s]
    demand : float array
        What the flow takes of the link when it is alone [B/s].
    flow_group : int array
        Equal for flows whose shares were solved together; -1 for a flow that was taken to be alone.
    owner : int array
        Of which of several concatenated occupancies a row is.
    """

    link: Ints
    enter: Floats
    end: Floats
    demand: Floats
    flow_group: Ints
    owner: Ints

    def shifted(self, origin: float) -> LinkOccupancy:
        """The same with times that were counted from `origin` [s]."""
        return replace(self, enter=self.enter + origin, end=self.end + origin)

    def as_one_flow_group(self) -> LinkOccupancy:
        """The same, all flows solved together."""
        return replace(self, flow_group=np.zeros_like(self.flow_group))


@dataclass(frozen=True, slots=True)
class Contention:
    """Flows on one link at one time that demand more than it has.

    Attributes
    ----------
    link : int
    time : float
        When the last of them enters [s].
    owners : tuple of int
        Which operations they belong to.
    certain : bool
        Whether flows were looked at one by one; otherwise only pipelined rings and bounds were.
    """

    link: int
    time: float
    owners: tuple[int, ...]
    certain: bool = True


def occupancy_of(
    routes: Routes, route_of: npt.NDArray[Any], enter: Floats, end: Floats, flow_group: Ints
) -> LinkOccupancy:
    """Occupancy of links that matter by flows that take these routes."""
    # A flow without bytes takes nothing of a link.
    real = np.flatnonzero(end > enter)
    flow, link, weight = routes.taken(route_of[real])
    row = real[flow]
    owner = np.zeros(len(row), np.int64)
    return LinkOccupancy(link, enter[row], end[row], weight * routes.rate[route_of[row]], flow_group[row], owner)


def concatenated(occupancies: Sequence[LinkOccupancy]) -> LinkOccupancy:
    """All rows in one; flow groups of different occupancies stay apart, and `owner` is a row's place in the list."""
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
        owner=np.repeat(np.arange(len(occupancies)), [len(occupancy.link) for occupancy in occupancies]),
    )


def contentions(occupancy: LinkOccupancy, capacity: Floats) -> list[Contention]:
    """Where flows on a link demand more than its capacity, unless all of them were solved together.

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
    rows = np.isin(occupancy.link, _overloaded_links(occupancy, capacity))
    if not rows.any():
        return []
    link, owner = occupancy.link[rows], occupancy.owner[rows]
    enter, end, demand = occupancy.enter[rows], occupancy.end[rows], occupancy.demand[rows]
    # Two sums run over time on each link: the demand of all flows, and how many independent parties are there. A flow
    # group is one party, so a link that it fills by itself is no contention; every other flow is a party of its own.
    # Flows and parties are rows of one table, in which flows count as no party, and parties demand nothing.
    party_link, party_enter, party_end = merged_intervals(link, enter, end, occupancy.flow_group[rows])
    flows, parties = len(link), len(party_link)
    sums = _running_sums(
        np.concatenate([link, party_link]),
        np.concatenate([enter, party_enter]),
        np.concatenate([end, party_end]),
        (np.concatenate([demand, np.zeros(parties)]), np.concatenate([np.zeros(flows), np.ones(parties)])),
    )
    # Parties are counted in floats: more than 1.5 are two at least.
    overloaded = np.flatnonzero(
        (sums.sums[0] > capacity[sums.link] * (1.0 + RUNNING_SUM_OF_RATES)) & (sums.sums[1] > 1.5)
    )
    order = np.argsort(link, kind="stable")
    cuts = np.searchsorted(link[order], np.arange(int(link.max()) + 2))
    contending = []
    for number in overloaded[_first_of_each_link(sums.link[overloaded])].tolist():
        where, time = int(sums.link[number]), float(sums.time[number])
        on_link = order[cuts[where] : cuts[where + 1]]
        owners = np.unique(owner[on_link[(enter[on_link] <= time) & (end[on_link] * (1.0 - END_BEFORE_ENTER) > time)]])
        contending.append(Contention(where, time, tuple(owners.tolist())))
    return sorted(contending, key=lambda contention: (contention.time, contention.link))


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Bounds on what is demanded of links: one row for each link.

    Attributes
    ----------
    link : int array
        Rising where it comes from one occupancy.
    first, last : float array
        First enter and last end of a flow [s].
    peak_demand : float array
        The most that flows on it demand at one time [B/s].
    """

    link: Ints
    first: Floats
    last: Floats
    peak_demand: Floats


def load_of(occupancy: LinkOccupancy) -> LinkLoad:
    """Sum an occupancy up by link."""
    link, place = np.unique(occupancy.link, return_inverse=True)
    first, last, peak = np.full(len(link), np.inf), np.full(len(link), -np.inf), np.zeros(len(link))
    np.minimum.at(first, place, occupancy.enter)
    np.maximum.at(last, place, occupancy.end)
    demands = _running_sums(occupancy.link, occupancy.enter, occupancy.end, (occupancy.demand,))
    np.maximum.at(peak, np.searchsorted(link, demands.link), demands.sums[0])
    return LinkLoad(link, first, last, peak)


def _overloaded_links(occupancy: LinkOccupancy, capacity: Floats) -> Ints:
    """Links on which all flows together ever demand more than there is."""
    demands = _running_sums(occupancy.link, occupancy.enter, occupancy.end, (occupancy.demand,))
    return np.unique(demands.link[demands.sums[0] > capacity[demands.link] * (1.0 + RUNNING_SUM_OF_RATES)])


@dataclass(frozen=True, slots=True)
class _RunningSums:
    """Sums over what is on each link, right after everything that happens at one time; sorted by link and time."""

    link: Ints
    time: Floats
    sums: tuple[Floats, ...]


def _running_sums(link: Ints, enter: Floats, end: Floats, amounts: Sequence[Floats]) -> _RunningSums:
    """Add amounts when flows enter and subtract them when they end.

    The cumulative sum runs on from link to link without a reset: all that was added on a link is subtracted again, so
    it is zero, but for rounding, where the next link begins.
    """
    both, time = np.concatenate([link, link]), np.concatenate([enter, end * (1.0 - END_BEFORE_ENTER)])
    order = np.lexsort((time, both))
    both, time = both[order], time[order]
    last = np.concatenate([(both[1:] != both[:-1]) | (time[1:] != time[:-1]), [True]])[: len(both)]
    sums = tuple(np.cumsum(np.concatenate([amount, -amount])[order])[last] for amount in amounts)
    return _RunningSums(both[last], time[last], sums)


def _first_of_each_link(link: Ints) -> Ints:
    """Places of the first few entries of each link, for a sorted column; every k-th of these if they are too many."""
    begin = np.searchsorted(link, link)
    chosen = np.flatnonzero(np.arange(len(link)) - begin < _MAX_PER_LINK)
    return chosen[:: 1 + len(chosen) // _MAX_REPORTED]


def merged_intervals(link: Ints, enter: Floats, end: Floats, flow_group: Ints) -> tuple[Ints, Floats, Floats]:
    """Link, enter and end of intervals; flows of one flow group that overlap on a link make one interval."""
    alone = np.flatnonzero(flow_group < 0)
    rows = np.flatnonzero(flow_group >= 0)
    if not len(rows):
        return link, enter, end
    rows = rows[np.lexsort((enter[rows], flow_group[rows], link[rows]))]
    own_link, own_group, begin, until = link[rows], flow_group[rows], enter[rows], end[rows]
    new = np.concatenate([[True], (own_link[1:] != own_link[:-1]) | (own_group[1:] != own_group[:-1])])
    until = largest_so_far(until, np.cumsum(new))
    new[1:] |= begin[1:] >= until[:-1]
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:], [len(rows)]]) - 1
    return (
        np.concatenate([link[alone], own_link[first]]),
        np.concatenate([enter[alone], begin[first]]),
        np.concatenate([end[alone], until[last]]),
    )
