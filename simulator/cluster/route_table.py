"""Many routes at once, as arrays: every route to the same destination is followed together.

Routes follow the rule in `routing.py`; a test compares both modules.

A backward search from a destination gives every vertex its distance, and thereby the next hops on its shortest paths.
The search runs for several destinations at once. Then every source advances hop by hop, each with the number that
decides at its next fork.

Example: line 0 - 1 - 2 - 3, destination 3. Distances are 3, 2, 1, 0. Sources 0 and 1 advance together: 0 -> 1 and
1 -> 2, then 1 -> 2 and 2 -> 3, then 2 -> 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints

# Chooses at forks: takes each pair's source, destination and present vertex, and returns a number for each pair.
Chooser = Callable[[Ints, Ints, Ints], npt.NDArray[np.uint64]]
_NOWHERE: Final = -1
# Upper bound on (destinations searched together) x (vertices in the graph).
_MOST_NUMBERS: Final = 2**22


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Many routes through the cluster's graph, as arrays."""

    # `route`, `link`: Route number and link number for each link on each route, sorted by route, in the order of
    # travel; shape (n,).
    route: Ints
    link: Ints
    # Sum over the route's links [s]; shape (routes,).
    latency: Floats


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Links sorted by the vertex at one end, then by the vertex at the other end (compressed sparse rows)."""

    # Index at which each vertex's links begin; shape (vertices + 1,).
    begin: Ints
    # `other`, `link`: Vertex at the other end, and the link's number; shape (links,).
    other: Ints
    link: Ints

    @staticmethod
    def of(src: Ints, dst: Ints, vertices: int) -> Neighbours:
        """Return the links from `src` to `dst`, both with shape (links,), grouped by the vertex in `src`."""
        order = np.lexsort((dst, src))
        begin = np.searchsorted(src[order], np.arange(vertices + 1))
        return Neighbours(begin, dst[order], order)

    def of_all(self, vertices: Ints) -> tuple[Ints, Ints]:
        """Return the indices of the given vertices' links, concatenated, and the number of links for each vertex."""
        first, count = self.begin[vertices], self.begin[vertices + 1] - self.begin[vertices]
        before = np.cumsum(count) - count
        return np.repeat(first - before, count) + np.arange(int(count.sum())), count


@dataclass(frozen=True, slots=True, eq=False)
class _TargetDistances:
    """Distances from every vertex to several targets, indexed by target x vertices + vertex."""

    # Hops to the target; -1 if there is no way, or if the search stopped before; shape (targets x vertices,)
    distance: npt.NDArray[np.int16]
    # Fewest hosts on a shortest path, including the vertex itself unless it is the target, same shape
    hosts: npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class RouteFinder:
    """Finder of many routes at once: the graph in arrays, and the rule for the next hop at forks."""

    # `ahead`, `behind`: Links sorted by source, and links sorted by target.
    ahead: Neighbours
    behind: Neighbours
    # Whether routes may pass through a vertex; shape (vertices,).
    forwards: Bools
    # Whether a vertex is a host; among equally short routes, the route with the fewest hosts wins; shape (vertices,).
    hosts: Bools
    latency: Sequence[float]  # latency of each link [s]
    # Number by which a destination decides at forks; shape (vertices,).
    ordinal: Ints
    chooser: Chooser | None  # replaces the rule by `ordinal` if given

    def table(self, src: Ints, dst: Ints) -> tuple[RouteTable, Ints]:
        """Return the routes between pairs of vertices, and the indices of the pairs without a route."""
        # Pairs sorted by destination: pairs with the same destination are handled by the same search.
        order = np.argsort(dst, kind="stable")
        targets, begins = np.unique(dst[order], return_index=True)
        # As many destinations at once as the memory bound allows, at least a single destination.
        together = max(1, _MOST_NUMBERS // len(self.forwards))
        hops: list[npt.NDArray[np.int32]] = []
        lost = [np.zeros(0, np.int64)]
        for some in np.split(np.arange(len(targets)), range(together, len(targets), together)):
            begin, end = begins[some[0]], ([*begins, len(order)])[some[-1] + 1]
            pairs = order[begin:end]
            # Each target has a separate copy of the graph: vertex v of target t has the index t x vertices + v.
            base = np.searchsorted(targets[some], dst[pairs]) * len(self.forwards)
            search = self._search(targets[some], base + src[pairs])
            missing = search.distance[base + src[pairs]] == _NOWHERE
            lost.append(pairs[missing])
            routed = pairs[~missing]
            for hop, (walking, link) in enumerate(self._walk(src[routed], dst[routed], base[~missing], search)):
                if hop == len(hops):
                    hops.append(np.full(len(src), _NOWHERE, np.int32))
                # `walking` indexes the routes that are still on the way in this chunk; `routed` maps to all routes.
                hops[hop][routed[walking]] = link
        # Column h: the link on hop h of each route; -1 behind the end of a route.
        by_hop = np.stack(hops, axis=1) if hops else np.zeros((len(src), 0), np.int32)
        real = by_hop >= 0
        route = np.repeat(np.arange(len(src)), np.count_nonzero(real, axis=1))
        return RouteTable(route, by_hop[real].astype(np.int64), self._latencies(by_hop)), np.sort(np.concatenate(lost))

    def _search(self, targets: Ints, sources: Ints) -> _TargetDistances:
        """Return each vertex's hops to each target, and the fewest hosts on the way, by a search from the targets.

        The search goes backwards from each target at once until every source is reached, or no vertex is left.
        """
        vertices = len(self.forwards)
        distance = np.full(len(targets) * vertices, _NOWHERE, np.int16)
        hosts = np.zeros(len(distance), np.int16)
        # Level by level: `level` holds the vertices found last, at `hops` hops from their target.
        level, hops = np.arange(len(targets)) * vertices + targets, 0
        distance[level] = 0
        while len(level) and bool((distance[sources] == _NOWHERE).any()):
            hops += 1
            # Every link into the level, and the vertex at the link's source, in the copy of the same target.
            places, count = self.behind.of_all(level % vertices)
            reached = self.behind.other[places] + np.repeat(level - level % vertices, count)
            new = distance[reached] == _NOWHERE
            # A vertex may be reached over several links: `reached` then contains duplicates, and `frontier` does not.
            reached, passed = reached[new], np.repeat(hosts[level], count)[new]
            distance[reached] = hops
            frontier = np.flatnonzero(distance == hops)
            # Fewest hosts over the next hops: initialise with the maximum, then take the minimum over each link.
            hosts[frontier] = np.iinfo(np.int16).max
            np.minimum.at(hosts, reached, passed)
            hosts[frontier] += self.hosts[frontier % vertices]
            # Only forwarding vertices pass the search on.
            level = frontier[self.forwards[frontier % vertices]]
        return _TargetDistances(distance, hosts)

    def _walk(self, sources: Ints, targets: Ints, base: Ints, search: _TargetDistances) -> list[tuple[Ints, Ints]]:
        """Return, for each hop, the indices of the sources still on the way, and the link that each source takes.

        `base` is the first index of each source's target in `search`, the distances to the targets.
        """
        distance, hosts, vertices = search.distance, search.hosts, len(self.forwards)
        walking = np.flatnonzero(sources != targets)
        here, rest = sources[walking], self.ordinal[targets[walking]]
        steps = []
        while len(walking):
            # Sources at the same vertex with the same destination have the same next hops: find these hops once.
            forks, which = np.unique(base[walking] + here, return_inverse=True)
            places, count = self.ahead.of_all(forks % vertices)
            owner = np.repeat(np.arange(len(forks)), count)
            other = self.ahead.other[places] + (forks - forks % vertices)[owner]
            left = distance[forks] - 1
            # A next hop is one hop nearer, forwards (unless it is the destination), and keeps the fewest hosts.
            nearer = (distance[other] == left[owner]) & (self.forwards[other % vertices] | (left == 0)[owner])
            nearer &= hosts[other] == (hosts[forks] - self.hosts[forks % vertices])[owner]
            places, owner = places[nearer], owner[nearer]
            choices = np.bincount(owner, minlength=len(forks))
            # D-mod-k routing, or the hash: a number for each source, taken modulo its next hops.
            number = rest if self.chooser is None else self.chooser(sources[walking], targets[walking], here)
            choice = (number % choices[which].astype(number.dtype)).astype(np.int64)
            # The quotient decides at the next fork (see `routing.py`).
            rest = rest // choices[which]
            hop = places[(np.cumsum(choices) - choices)[which] + choice]
            steps.append((walking, self.ahead.link[hop]))
            here = self.ahead.other[hop]
            on = here != targets[walking]
            walking, here, rest = walking[on], here[on], rest[on]
        return steps

    def _latencies(self, by_hop: npt.NDArray[np.int32]) -> Floats:
        """Return each route's latency [s], given its link numbers by hop: an exact sum, rounded once."""
        # A machine has few different latencies, so few different sums.
        values, kind = np.unique(np.array(self.latency), return_inverse=True)
        routes, longest = by_hop.shape
        # The digits below must fit into int64; otherwise each route is summed by itself.
        if (longest + 1.0) ** len(values) > 2**62:
            return np.array([fsum(self.latency[link] for link in hops if link >= 0) for hops in by_hop.tolist()])
        # Count how often a route has each latency, as digits of a single number; -1, no link, is the last entry: 0.
        digit = np.append((longest + 1) ** kind.ravel().astype(np.int64), 0)
        key = np.zeros(routes, np.int64)
        for link in by_hop.T:
            key += digit[link]
        sets, which = np.unique(key, return_inverse=True)
        often = sets[:, None] // (longest + 1) ** np.arange(len(values)) % (longest + 1)
        return np.array([fsum(np.repeat(values, counts).tolist()) for counts in often])[which.ravel()]
