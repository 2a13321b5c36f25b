"""Link pruning: which links could ever be a bottleneck of two flows; an engine need not watch the others.

Rule: looks at all routes of a program before it is played, and prunes a link that cannot change any rate:
- a link that only one channel of one collective uses never has two flows, for a channel is a FIFO;
- a link that all flows that can be on it at once cannot fill, each at the rate that it has alone, holds nobody back;
- a link is never the bottleneck if all its users also use another one that is as narrow or narrower for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.basics.tolerances import SUM_OF_RATES
from simulator.engine.colours import bits, mixed, summed
from simulator.engine.routes import Routes


@dataclass(frozen=True, slots=True)
class PotentialFlows:
    """The flows that can be under way at once, of collectives that are alike in everything but their sizes.

    Or, one behind the other, of several that differ in their groups too, no two of which have a rank, a server or a
    switch in common.

    Attributes
    ----------
    routes : Routes
    low, high, flows : int array, shape (routes,)
        The lowest and the highest channel that takes each, and how many do: so many flows it can have at once.
    src, dst : int array, shape (routes,)
        Whose flows they are: ranks; below 0 servers and switches.
    stream : str
        Of the ranks.
    times : int
        How many such collectives there are.
    """

    routes: Routes
    low: Ints
    high: Ints
    flows: Ints
    src: Ints
    dst: Ints
    stream: str
    times: int

    def apart(self, count: int) -> list[PotentialFlows]:
        """Those of each of so many collectives."""
        if count == 1:
            return [self]
        own, routes = len(self.routes) // count, self.routes
        rows = np.searchsorted(routes.route, own * np.arange(count + 1)).tolist()
        pieces = []
        for number in range(count):
            here, there = slice(own * number, own * (number + 1)), slice(rows[number], rows[number + 1])
            columns = routes.link[there], routes.weight[there], routes.latency[here], routes.rate[here]
            mine = Routes(routes.route[there] - own * number, *columns, routes.matters[there])
            facts = self.flows[here], self.src[here], self.dst[here]
            pieces.append(PotentialFlows(mine, self.low[here], self.high[here], *facts, self.stream, self.times))
        return pieces


def prune_links(every: Sequence[PotentialFlows], capacity: Floats) -> list[Bools]:
    """For each link of each route whether it stays: whether flows can meet there and it can be their bottleneck."""
    contended = _shared(every, len(capacity)) & (_demands(every, len(capacity)) > capacity * (1.0 + SUM_OF_RATES))
    # Two links may each rule the other; one of them must stay, so a link goes only while another that rules it is kept.
    gone: set[int] = set()
    for link, others in _ruled(every, contended, capacity):
        if not gone.issuperset(others):
            gone.add(link)
    kept = contended.copy()
    kept[list(gone)] = False
    return [kept[one.routes.link] for one in every]


def all_links(every: Sequence[PotentialFlows]) -> list[Bools]:
    """The same shape with nothing left out: slower, and true whatever `prune_links` takes for granted."""
    return [np.ones(len(one.routes.link), np.bool_) for one in every]


def _shared(every: Sequence[PotentialFlows], links: int) -> Bools:
    """Links that several channels take."""
    low, high = np.full(links, np.iinfo(np.int64).max), np.full(links, -1)
    base = 0
    for one in every:
        route, link = one.routes.route, one.routes.link
        np.minimum.at(low, link, base + one.low[route])
        np.maximum.at(high, link, base + one.high[route])
        base += int(one.high.max(initial=-1)) + 1
        if one.times > 1:
            # Two collectives of one stream follow each other at a rank, not at a server or a switch.
            np.maximum.at(high, link[((one.src < 0) | (one.dst < 0))[route]], base)
            base += 1
    return np.asarray(high > low)


def _demands(every: Sequence[PotentialFlows], links: int) -> Floats:
    """By link: the most that flows can ask of it at once [B/s].

    A rank's stream carries out one collective at a time, and a flow belongs to that of its source and to that of its
    destination: of either's collectives only the most demanding counts. A server or switch may be at all of its own.
    """
    least = np.full(links, np.inf)
    streams = {one.stream: number for number, one in enumerate(every)}
    for side in ("src", "dst"):
        keys: list[Ints] = [np.zeros(0, np.int64)]
        demands: list[Floats] = [np.zeros(0)]
        beyond = (max((int(getattr(one, side).max(initial=-1)) for one in every), default=-1) + 1) * len(every)
        ends = beyond + sum(int((-getattr(one, side)).max(initial=0)) for one in every) + 1
        for one in every:
            whose = getattr(one, side)
            rank = whose >= 0
            # Ranks by stream; behind them everybody else, each a number of its own.
            end = np.where(rank, whose * len(every) + streams[one.stream], beyond - 1 - whose)
            flow = one.flows * one.routes.rate * np.where(rank, 1, one.times)
            asked = flow[one.routes.route] * one.routes.weight
            key, sums = _sums(one.routes.link * ends + end[one.routes.route], asked)
            keys.append(key)
            demands.append(sums)
            beyond += int((-whose).max(initial=0))
        key, place = np.unique(np.concatenate(keys), return_inverse=True)
        most = np.zeros(len(key))
        np.maximum.at(most, place, np.concatenate(demands))
        least = np.minimum(least, np.bincount(key // ends, most, links))
    return least


def _sums(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Each different key, rising, and the sum of its values."""
    if len(keys) and int(keys.max()) < 4 * len(keys):  # counting is some ten times as fast as sorting
        there = np.flatnonzero(np.bincount(keys)).astype(np.int64)
        return there, np.bincount(keys, values)[there].astype(np.float64)
    key, place = np.unique(keys, return_inverse=True)
    return key, np.bincount(place, values, len(key)).astype(np.float64)


def _ruled(every: Sequence[PotentialFlows], contended: Bools, capacity: Floats) -> Iterator[tuple[int, list[int]]]:
    """Links on which flows can meet that never are the bottleneck, from the highest on, and which others see to that.

    Another one does if all users take it too, and it is as narrow or narrower for each of them. All users take it only
    if the first and the last do, which rules out most at once.
    """
    route, link, narrow = _distinct(*_contended(every, contended, capacity))
    users = np.bincount(link, minlength=len(capacity))
    first, last = np.zeros((2, len(capacity)), np.int64)
    first[link[::-1]], last[link] = route[::-1], route
    likely = np.intersect1d(_beside(first, route, link, users), _beside(last, route, link, users))
    ruled, ruling = np.divmod(likely, len(capacity))
    slot = np.arange(len(ruled)) - np.searchsorted(ruled, ruled)
    rulers = np.full((int(slot.max(initial=-1)) + 1, len(capacity)), -1)
    rulers[slot, ruled] = ruling
    seen = np.zeros((len(rulers), len(capacity)), np.int64)
    asked = np.flatnonzero(rulers.max(axis=0, initial=-1)[link] >= 0)
    longest = int(np.bincount(route).max(initial=1))
    for apart in (*range(1 - longest, 0), *range(1, longest)):
        own = asked[(asked + apart >= 0) & (asked + apart < len(link))]
        for number, ruler in enumerate(rulers):
            sees = own[ruler[link[own]] == link[own + apart]]
            sees = sees[(route[sees] == route[sees + apart]) & (narrow[sees + apart] >= narrow[sees])]
            seen[number] += np.bincount(link[sees], minlength=len(capacity))
    rulers[seen != users] = -1
    some = np.flatnonzero(rulers.max(axis=0, initial=-1) >= 0)[::-1]
    for own, others in zip(some.tolist(), rulers[:, some].T.tolist(), strict=True):
        yield own, [other for other in others if other >= 0]


def _contended(every: Sequence[PotentialFlows], contended: Bools, capacity: Floats) -> tuple[Ints, Ints, Floats]:
    """Routes of all flows, counted on, with the links on which flows can meet, and how narrow these are for each."""
    routes, links, narrow, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)], 0
    for one in every:
        rows = np.flatnonzero(contended[one.routes.link])
        routes.append(before + one.routes.route[rows])
        links.append(one.routes.link[rows])
        narrow.append(one.routes.weight[rows] / capacity[links[-1]])
        before += len(one.routes)
    return np.concatenate(routes), np.concatenate(links), np.concatenate(narrow)


def _distinct(route: Ints, link: Ints, narrow: Floats) -> tuple[Ints, Ints, Floats]:
    """One of all routes that take the same links, which are as narrow for each; what holds for it holds for the others.

    Routes are compared with the one that has their hash, so that a hash by chance costs time alone.
    """
    begin = np.searchsorted(route, np.arange(int(route.max(initial=-1)) + 2))
    count, place = np.diff(begin), np.arange(len(route)) - begin[route]
    facts = mixed(mixed(link, bits(narrow)), place)
    _, first, same = np.unique(summed(route, facts, len(count)), return_index=True, return_inverse=True)
    other = first[same]
    row = np.minimum(begin[other][route] + place, len(route) - 1)
    unlike = (link != link[row]) | (narrow != narrow[row])
    own = (other == np.arange(len(count))) | (count != count[other])
    own[route[unlike]] = True
    kept = own[route]
    return route[kept], link[kept], narrow[kept]


def _beside(chosen: Ints, route: Ints, link: Ints, users: Ints) -> Ints:
    """For each link that has users each other link of its chosen route, shape (pairs,): link x links + other."""
    begin = np.searchsorted(route, np.arange(int(route.max(initial=-1)) + 2))
    own = np.flatnonzero(users)
    count = np.diff(begin)[chosen[own]]
    places = np.repeat(begin[chosen[own]] - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    ruled, other = np.repeat(own, count), link[places]
    return np.asarray((ruled * len(users) + other)[ruled != other])
