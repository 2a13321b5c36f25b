"""Many routes at once, as arrays: all that lead to one destination are walked together.

Rule: the routes of `routing.py`, by the same rule; a test holds the two together.

One search backwards from a destination gives every vertex its distance, and so the next hops on its shortest paths.
Then all sources go on hop by hop, each with the number that decides at its next fork.
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
Chooser = Callable[[Ints, int, Ints], npt.NDArray[np.uint64]]
_NOWHERE: Final = -1


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
        cuts = np.flatnonzero(np.diff(dst[order])) + 1
        hops: list[npt.NDArray[np.int32]] = []
        lost = [np.zeros(0, np.int64)]
        for own in np.split(order, cuts) if len(order) else ():
            target = int(dst[own[0]])
            distance, hosts = self._distances(target, src[own])
            missing = distance[src[own]] == _NOWHERE
            lost.append(own[missing])
            there = own[~missing]
            for hop, (walking, link) in enumerate(self._walk(src[there], target, distance, hosts)):
                if hop == len(hops):
                    hops.append(np.full(len(src), _NOWHERE, np.int32))
                hops[hop][there[walking]] = link
        by_hop = np.stack(hops, axis=1) if hops else np.zeros((len(src), 0), np.int32)
        taken = by_hop >= 0
        route = np.repeat(np.arange(len(src)), np.count_nonzero(taken, axis=1))
        return RouteTable(route, by_hop[taken].astype(np.int64), self._latencies(by_hop)), np.sort(np.concatenate(lost))

    def _distances(self, target: int, sources: Ints) -> tuple[Ints, Ints]:
        """Hops to the target from each vertex, -1 where there is no way, or where nobody asked that far; and the hosts.

        These are the fewest that are passed on so many hops, the vertex itself among them unless it is the target.
        """
        distance = np.full(len(self.forwards), _NOWHERE)
        hosts = np.zeros(len(self.forwards), np.int64)
        distance[target], hops = 0, 0
        level = np.array([target])
        while len(level) and bool((distance[sources] == _NOWHERE).any()):
            hops += 1
            places, count = self.behind.of_all(level)
            reached, passed = self.behind.other[places], np.repeat(hosts[level], count)
            new = distance[reached] == _NOWHERE
            reached, passed = reached[new], passed[new]
            distance[reached] = hops
            found = np.unique(reached)
            hosts[found] = len(self.forwards)
            np.minimum.at(hosts, reached, passed)
            hosts[found] += self.hosts[found]
            level = found[self.forwards[found]]
        return distance, hosts

    def _walk(self, sources: Ints, target: int, distance: Ints, hosts: Ints) -> list[tuple[Ints, Ints]]:
        """Hop by hop who is still on the way, by place among the sources, and the link that each takes."""
        walking = np.flatnonzero(sources != target)
        here, rest = sources[walking], np.full(len(walking), self.ordinal[target])
        steps = []
        while len(walking):
            vertices, which = np.unique(here, return_inverse=True)
            places, count = self.ahead.of_all(vertices)
            other, owner = self.ahead.other[places], np.repeat(np.arange(len(vertices)), count)
            nearer = (distance[other] == distance[vertices[owner]] - 1) & (self.forwards[other] | (other == target))
            nearer &= hosts[other] == (hosts - self.hosts)[vertices[owner]]
            places, owner = places[nearer], owner[nearer]
            choices = np.bincount(owner, minlength=len(vertices))
            number = rest if self.chooser is None else self.chooser(sources[walking], target, here)
            chosen = (number % choices[which].astype(number.dtype)).astype(np.int64)
            rest = rest // choices[which]
            taken = places[(np.cumsum(choices) - choices)[which] + chosen]
            steps.append((walking, self.ahead.link[taken]))
            here = self.ahead.other[taken]
            on = here != target
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
