"""Which links can ever be a bottleneck for two flows? Pruning removes the rest, and engines need not watch them.

The whole program's routes are examined before the simulation. A link is pruned if it cannot change any rate:

- A single channel in a single collective uses the link. A channel is a FIFO, therefore two flows never meet.
- The flows that can be on the link at once cannot fill it, even at their uncontended rates.
- Every user also takes another link that is equally narrow or narrower for each user.

Example: ranks 1, 2 and 3 send to rank 0 through a switch, over links with 10 B/s::

    rank 1 ---+
    rank 2 ---+--- switch --- rank 0
    rank 3 ---+

    rank 1 -> switch: a single channel: pruned (first rule), likewise for ranks 2 and 3
    switch -> rank 0: three channels, 3 x 10 B/s asked, 10 B/s there: kept
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
    """The flows that can be in flight at once in collectives of a program, with their routes.

    The collectives differ only in sizes. A batch may concatenate several collectives that also differ in their groups,
    if no two have a participant in common.
    """

    routes: Routes  # routes of the flows
    # `low`, `high`, `flows`: Lowest and highest channel on each route, and the number of channels: the most flows that
    # the route can have at once; shape (routes,).
    low: Ints
    high: Ints
    flows: Ints
    # `src`, `dst`: Source and destination: ranks; negative numbers for servers and switches; shape (routes,).
    src: Ints
    dst: Ints
    stream: str  # stream of the ranks
    times: int  # number of such collectives

    def apart(self, count: int) -> list[PotentialFlows]:
        """Split a batch into its `count` collectives."""
        if count == 1:
            return [self]
        routes_each, routes = len(self.routes) // count, self.routes
        rows = np.searchsorted(routes.route, routes_each * np.arange(count + 1)).tolist()
        pieces = []
        for number in range(count):
            here, pairs_of = (
                slice(routes_each * number, routes_each * (number + 1)),
                slice(rows[number], rows[number + 1]),
            )
            columns = routes.link[pairs_of], routes.weight[pairs_of], routes.latency[here], routes.rate[here]
            mine = Routes(routes.route[pairs_of] - routes_each * number, *columns, routes.matters[pairs_of])
            facts = self.flows[here], self.src[here], self.dst[here]
            pieces.append(PotentialFlows(mine, self.low[here], self.high[here], *facts, self.stream, self.times))
        return pieces


def prune_links(every: Sequence[PotentialFlows], capacity: Floats) -> list[Bools]:
    """Return, for each entry's pairs of route and link, True if the link can be the bottleneck for two flows.

    Links with False are pruned: no engine has to watch them. `capacity` is in B/s.
    """
    contended = _shared(every, len(capacity)) & (_demands(every, len(capacity)) > capacity * (1.0 + SUM_OF_RATES))
    # Two links may rule each other and one must stay. Thus a link goes only while a link that rules it is kept.
    gone: set[int] = set()
    for link, others in _ruled(every, contended, capacity):
        if not gone.issuperset(others):
            gone.add(link)
    contended_links = contended.copy()
    # Remaining links can be a bottleneck for two flows.
    contended_links[list(gone)] = False
    return [contended_links[flows.routes.link] for flows in every]


def all_links(every: Sequence[PotentialFlows]) -> list[Bools]:
    """Return True for each pair (route, link), without pruning: a check independent from `prune_links`."""
    return [np.ones(len(flows.routes.link), np.bool_) for flows in every]


def _shared(every: Sequence[PotentialFlows], links: int) -> Bools:
    """Return True for each link used by several channels (FIFOs of transfers), shape (links,)."""
    # A link has several channels if its lowest and highest channel differ.
    low, high = np.full(links, np.iinfo(np.int64).max), np.full(links, -1)
    base = 0
    for flows in every:
        route, link = flows.routes.route, flows.routes.link
        np.minimum.at(low, link, base + flows.low[route])
        np.maximum.at(high, link, base + flows.high[route])
        # Channels are private to a collective, so each collective numbers its channels after the last.
        base += int(flows.high.max(initial=-1)) + 1
        if flows.times > 1:
            # At a rank, two collectives on a stream follow each other. At a server or a switch they may overlap: add a
            # channel.
            np.maximum.at(high, link[((flows.src < 0) | (flows.dst < 0))[route]], base)
            base += 1
    return np.asarray(high > low)


def _demands(every: Sequence[PotentialFlows], links: int) -> Floats:
    """Return an upper bound on the rate that flows can ask from each link at once, shape (links,) [B/s].

    A rank's stream runs a single collective at a time. Each flow belongs to its source's stream and to its
    destination's stream. For each stream only the most demanding collective counts, and both sides give a bound. A
    server or switch may take part in every collective at once.

    Example: rank 0 sends 10 B/s in an all-gather and 8 B/s in a reduce-scatter, both on one stream: its link is asked
    for 10 B/s, not for 18.
    """
    least = np.full(links, np.inf)
    streams = {flows_of.stream: number for number, flows_of in enumerate(every)}
    for side in ("src", "dst"):
        keys: list[Ints] = [np.zeros(0, np.int64)]
        demands: list[Floats] = [np.zeros(0)]
        beyond = (max((int(getattr(flows_of, side).max(initial=-1)) for flows_of in every), default=-1) + 1) * len(
            every
        )
        ends = beyond + sum(int((-getattr(flows_of, side)).max(initial=0)) for flows_of in every) + 1
        for flows_of in every:
            whose = getattr(flows_of, side)
            rank = whose >= 0
            # Distinct ends: (rank, stream), and behind them every server or switch of every entry.
            end = np.where(rank, whose * len(every) + streams[flows_of.stream], beyond - 1 - whose)
            flow = flows_of.flows * flows_of.routes.rate * np.where(rank, 1, flows_of.times)
            demand = flow[flows_of.routes.route] * flows_of.routes.weight
            key, sums = _sums(flows_of.routes.link * ends + end[flows_of.routes.route], demand)
            keys.append(key)
            demands.append(sums)
            beyond += int((-whose).max(initial=0))
        key, place = np.unique(np.concatenate(keys), return_inverse=True)
        most = np.zeros(len(key))
        np.maximum.at(most, place, np.concatenate(demands))
        least = np.minimum(least, np.bincount(key // ends, most, links))
    return least


def _sums(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Return the distinct keys, rising, and each key's sum.

    >>> keys, sums = _sums(np.array([7, 3, 7]), np.array([1.0, 2.0, 4.0]))
    >>> keys.tolist(), sums.tolist()
    ([3, 7], [2.0, 5.0])
    """
    # Counting is about ten times faster than sorting.
    if len(keys) and int(keys.max()) < 4 * len(keys):
        used_keys = np.flatnonzero(np.bincount(keys)).astype(np.int64)
        return used_keys, np.bincount(keys, values)[used_keys].astype(np.float64)
    key, place = np.unique(keys, return_inverse=True)
    return key, np.bincount(place, values, len(key)).astype(np.float64)


def _ruled(every: Sequence[PotentialFlows], contended: Bools, capacity: Floats) -> Iterator[tuple[int, list[int]]]:
    """Yield each contended link that further links make redundant, highest number first, with these links.

    A link rules another if each user of the other takes it too and it is at least as narrow for each user. The
    candidates are links on the first and on the last user's route, which excludes most pairs at once.
    """
    route, link, narrow = _distinct(*_contended(every, contended, capacity))
    users = np.bincount(link, minlength=len(capacity))
    first, last = np.zeros((2, len(capacity)), np.int64)
    first[link[::-1]], last[link] = route[::-1], route
    likely = np.intersect1d(_beside(first, route, link, users), _beside(last, route, link, users))
    ruled, ruling = np.divmod(likely, len(capacity))
    slot = np.arange(len(ruled)) - np.searchsorted(ruled, ruled)
    # Column k lists the candidates that may rule link k; -1 fills unused entries.
    rulers = np.full((int(slot.max(initial=-1)) + 1, len(capacity)), -1)
    rulers[slot, ruled] = ruling
    takers = np.zeros((len(rulers), len(capacity)), np.int64)
    pairs_of_ruled = np.flatnonzero(rulers.max(axis=0, initial=-1)[link] >= 0)
    longest = int(np.bincount(route).max(initial=1))
    # Compare each entry with the entry `apart` places further on the same route. `seen` counts users that take both
    # links.
    for distance in (*range(1 - longest, 0), *range(1, longest)):
        pairs = pairs_of_ruled[(pairs_of_ruled + distance >= 0) & (pairs_of_ruled + distance < len(link))]
        for number, ruler in enumerate(rulers):
            sees = pairs[ruler[link[pairs]] == link[pairs + distance]]
            sees = sees[(route[sees] == route[sees + distance]) & (narrow[sees + distance] >= narrow[sees])]
            takers[number] += np.bincount(link[sees], minlength=len(capacity))
    # A candidate fails if any user does not take it.
    rulers[takers != users] = -1
    some = np.flatnonzero(rulers.max(axis=0, initial=-1) >= 0)[::-1]
    for pairs, others in zip(some.tolist(), rulers[:, some].T.tolist(), strict=True):
        yield pairs, [other for other in others if other >= 0]


def _contended(every: Sequence[PotentialFlows], contended: Bools, capacity: Floats) -> tuple[Ints, Ints, Floats]:
    """Return each route's contended links as columns: route number over all entries, link, and weight / capacity."""
    routes, links, narrow, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)], 0
    for flows in every:
        rows = np.flatnonzero(contended[flows.routes.link])
        routes.append(before + flows.routes.route[rows])
        links.append(flows.routes.link[rows])
        narrow.append(flows.routes.weight[rows] / capacity[links[-1]])
        before += len(flows.routes)
    return np.concatenate(routes), np.concatenate(links), np.concatenate(narrow)


def _distinct(route: Ints, link: Ints, narrow: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the columns (route, link, narrowness) without duplicate routes, which have equal links and narrowness.

    Routes with equal hashes are compared entry by entry, therefore a chance collision costs only time.
    """
    begin = np.searchsorted(route, np.arange(int(route.max(initial=-1)) + 2))
    count, place = np.diff(begin), np.arange(len(route)) - begin[route]
    facts = mixed(mixed(link, bits(narrow)), place)
    _, first, same = np.unique(summed(route, facts, len(count)), return_index=True, return_inverse=True)
    other = first[same]
    row = np.minimum(begin[other][route] + place, len(route) - 1)
    unlike = (link != link[row]) | (narrow != narrow[row])
    is_first = (other == np.arange(len(count))) | (count != count[other])
    is_first[route[unlike]] = True
    has_route_kept = is_first[route]
    return route[has_route_kept], link[has_route_kept], narrow[has_route_kept]


def _beside(route_of: Ints, route: Ints, link: Ints, users: Ints) -> Ints:
    """Return pairs (used link, other link on its route in `route_of`), coded as link x links + other."""
    begin = np.searchsorted(route, np.arange(int(route.max(initial=-1)) + 2))
    used_links = np.flatnonzero(users)
    count = np.diff(begin)[route_of[used_links]]
    places = np.repeat(begin[route_of[used_links]] - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    ruled, other = np.repeat(used_links, count), link[places]
    return np.asarray((ruled * len(users) + other)[ruled != other])
