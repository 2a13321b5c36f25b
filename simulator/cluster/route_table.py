"""Many routes at once, as arrays: all that lead to one destination are walked together.

Rule: the routes of `routing.py`, by the same rule; a test holds the two together.

A search backwards from a destination gives every vertex its distance, and so the next hops on its shortest paths; it
is made for several destinations at once. Then all sources go on hop by hop, each with the number that decides at its
next fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints

# Chooses at forks: by places among the pairs, their sources, destination and where they are, a number each.
Chooser = Callable[[Ints, Ints, Ints], npt.NDArray[np.uint64]]
_NOWHERE: Final = -1
# Targets are searched for together as long as all their vertices are no more than this.
_MOST_NUMBERS: Final = 2**22


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Some routes.

    Attributes
    ----------
    route, link : int array, shape (n,)
        Each link of each route: the route's number and the link's, sorted by route, in the order of travel.
    latency : float array, shape (routes,)
        Sum over the route's links [s].
    """

    route: Ints
    link: Ints
    latency: Floats


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Links sorted by the vertex at one of their ends, then by the vertex at the other.

    Attributes
    ----------
    begin : int array, shape (vertices + 1,)
        Where each vertex's links begin.
    other, link : int array, shape (links,)
        The vertex at the other end, and the link's number.
    """

    begin: Ints
    other: Ints
    link: Ints

    @staticmethod
    def of(here: Ints, there: Ints, vertices: int) -> Neighbours:
        """Sort links that lead from `here` to `there`, shape (links,), by the former."""
        order = np.lexsort((there, here))
        begin = np.searchsorted(here[order], np.arange(vertices + 1))
        return Neighbours(begin, there[order], order)

    def of_all(self, vertices: Ints) -> tuple[Ints, Ints]:
        """The places of some vertices' links, and how many each of them has."""
        first, count = self.begin[vertices], self.begin[vertices + 1] - self.begin[vertices]
        before = np.cumsum(count) - count
        return np.repeat(first - before, count) + np.arange(int(count.sum())), count


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """What a search from several targets has found, by target and vertex, one target's vertices behind another's.

    Attributes
    ----------
    distance : int array, shape (targets x vertices,)
        Hops to the target, -1 where there is no way, or where nobody asked that far.
    hosts : int array, shape (targets x vertices,)
        The fewest that are passed on so many hops, the vertex itself among them unless it is the target.
    """

    distance: npt.NDArray[np.int16]
    hosts: npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class RouteFinder:
    """A graph in arrays, and the rule at forks.

    Attributes
    ----------
    ahead, behind : Neighbours
        By a link's source, and by its target.
    forwards : bool array, shape (vertices,)
        Whether routes may pass through.
    hosts : bool array, shape (vertices,)
        Of which routes that are as short pass as few as they can.
    latency : sequence of float
        Of each link [s].
    ordinal : int array, shape (vertices,)
        The number that a destination decides forks with.
    chooser : Chooser or None
        What decides instead of it.
    """

    ahead: Neighbours
    behind: Neighbours
    forwards: Bools
    hosts: Bools
    latency: Sequence[float]
    ordinal: Ints
    chooser: Chooser | None

    def table(self, src: Ints, dst: Ints) -> tuple[RouteTable, Ints]:
        """Routes between vertices, shape (routes,), and the numbers of those that there are none for."""
        order = np.argsort(dst, kind="stable")
        targets, begins = np.unique(dst[order], return_index=True)
        together = max(1, _MOST_NUMBERS // len(self.forwards))
        hops: list[npt.NDArray[np.int32]] = []
        lost = [np.zeros(0, np.int64)]
        for some in np.split(np.arange(len(targets)), range(together, len(targets), together)):
            begin, end = begins[some[0]], ([*begins, len(order)])[some[-1] + 1]
            own = order[begin:end]
            # Vertices by search: each target's is a graph of its own, one behind the other.
            base = np.searchsorted(targets[some], dst[own]) * len(self.forwards)
            search = self._search(targets[some], base + src[own])
            missing = search.distance[base + src[own]] == _NOWHERE
            lost.append(own[missing])
            there = own[~missing]
            for hop, (walking, link) in enumerate(self._walk(src[there], dst[there], base[~missing], search)):
                if hop == len(hops):
                    hops.append(np.full(len(src), _NOWHERE, np.int32))
                hops[hop][there[walking]] = link
        by_hop = np.stack(hops, axis=1) if hops else np.zeros((len(src), 0), np.int32)
        taken = by_hop >= 0
        route = np.repeat(np.arange(len(src)), np.count_nonzero(taken, axis=1))
        return RouteTable(route, by_hop[taken].astype(np.int64), self._latencies(by_hop)), np.sort(np.concatenate(lost))

    def _search(self, targets: Ints, sources: Ints) -> _Search:
        """Search backwards from each target at once, until all sources have been reached, as far as there is a way."""
        vertices = len(self.forwards)
        distance = np.full(len(targets) * vertices, _NOWHERE, np.int16)
        hosts = np.zeros(len(distance), np.int16)
        level, hops = np.arange(len(targets)) * vertices + targets, 0
        distance[level] = 0
        while len(level) and bool((distance[sources] == _NOWHERE).any()):
            hops += 1
            places, count = self.behind.of_all(level % vertices)
            reached = self.behind.other[places] + np.repeat(level - level % vertices, count)
            new = distance[reached] == _NOWHERE
            reached, passed = reached[new], np.repeat(hosts[level], count)[new]
            distance[reached] = hops
            found = np.flatnonzero(distance == hops)
            hosts[found] = np.iinfo(np.int16).max
            np.minimum.at(hosts, reached, passed)
            hosts[found] += self.hosts[found % vertices]
            level = found[self.forwards[found % vertices]]
        return _Search(distance, hosts)

    def _walk(self, sources: Ints, targets: Ints, base: Ints, search: _Search) -> list[tuple[Ints, Ints]]:
        """Hop by hop who is still on the way, by place among the sources, and the link that each takes."""
        distance, hosts, vertices = search.distance, search.hosts, len(self.forwards)
        walking = np.flatnonzero(sources != targets)
        here, rest = sources[walking], self.ordinal[targets[walking]]
        steps = []
        while len(walking):
            own, which = np.unique(base[walking] + here, return_inverse=True)
            places, count = self.ahead.of_all(own % vertices)
            owner = np.repeat(np.arange(len(own)), count)
            other = self.ahead.other[places] + (own - own % vertices)[owner]
            left = distance[own] - 1
            nearer = (distance[other] == left[owner]) & (self.forwards[other % vertices] | (left == 0)[owner])
            nearer &= hosts[other] == (hosts[own] - self.hosts[own % vertices])[owner]
            places, owner = places[nearer], owner[nearer]
            choices = np.bincount(owner, minlength=len(own))
            number = rest if self.chooser is None else self.chooser(sources[walking], targets[walking], here)
            chosen = (number % choices[which].astype(number.dtype)).astype(np.int64)
            rest = rest // choices[which]
            taken = places[(np.cumsum(choices) - choices)[which] + chosen]
            steps.append((walking, self.ahead.link[taken]))
            here = self.ahead.other[taken]
            on = here != targets[walking]
            walking, here, rest = walking[on], here[on], rest[on]
        return steps

    def _latencies(self, by_hop: npt.NDArray[np.int32]) -> Floats:
        """Exact sums over routes, rounded once, as `Router.route` has them: one for each different set of latencies."""
        values, kind = np.unique(np.array(self.latency), return_inverse=True)
        routes, longest = by_hop.shape
        if (longest + 1.0) ** len(values) > 2**62:
            return np.array([fsum(self.latency[link] for link in own if link >= 0) for own in by_hop.tolist()])
        # How often a route has each latency, as digits of one number; -1, no link, is the last entry, worth nothing.
        digit = np.append((longest + 1) ** kind.ravel().astype(np.int64), 0)
        key = np.zeros(routes, np.int64)
        for link in by_hop.T:
            key += digit[link]
        sets, which = np.unique(key, return_inverse=True)
        often = sets[:, None] // (longest + 1) ** np.arange(len(values)) % (longest + 1)
        return np.array([fsum(np.repeat(values, own).tolist()) for own in often])[which.ravel()]
