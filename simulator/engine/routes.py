"""Which links does each route use, and what does a flow take there? Routes store the answers for many routes in arrays.

An engine that simulates flow by flow asks for a `Path` per route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.path import Path


@dataclass(frozen=True, eq=False)
class Routes:
    """Routes through the cluster, as link arrays; a route's number is the row in `latency` and `rate`.

    Example: route 0 takes links 4 and 7, route 1 takes link 7: route = [0, 0, 1], link = [4, 7, 7].

    Attributes
    ----------
    route, link : int array, shape (n,)
        Pairs of a route and one of its links, sorted by route, in travel order.
    weight : float array, shape (n,)
        Capacity that a flow of rate 1 takes of the link [B a unit]; more for flows with a priority.
    latency, rate : float array, shape (routes,)
        Latency [s], and rate of a flow without contention [units/s]; a unit is a byte
        unless the flows have a priority.
    matters : bool array, shape (n,)
        True where flows can hold each other back.
    """

    route: Ints
    link: Ints
    weight: Floats
    latency: Floats
    rate: Floats
    matters: Bools

    def __len__(self) -> int:
        return len(self.latency)

    def kept(self, matters: Bools) -> Routes:
        """Return the routes with the array `matters` replaced: True where flows can hold each other back."""
        return replace(self, matters=matters)

    @cached_property
    def can_contend(self) -> bool:
        """Return True if flows can hold each other back on any link of the routes."""
        return bool(self.matters.any())

    @cached_property
    def watched(self) -> tuple[Ints, Ints, Floats]:
        """Columns route, link and weight for the pairs of route and link where flows can hold each other back."""
        return self.route[self.matters], self.link[self.matters], self.weight[self.matters]

    def paths(self, capacity: Sequence[float] | Floats) -> tuple[Path, ...]:
        """Return a Path for each route, with only the links where flows can hold each other back.

        If a pruned link or a rate cap is narrower than these links, the Path is capped. `capacity` is by link [B/s].
        """
        # Lists per route: paths are built once, for engines that follow single flows.
        links: list[list[int]] = [[] for _ in range(len(self))]
        weights: list[list[float]] = [[] for _ in range(len(self))]
        for route, link, weight in zip(*(column.tolist() for column in self.watched), strict=True):
            links[route].append(link)
            weights[route].append(weight)
        rows = zip(links, weights, self.latency.tolist(), self.rate.tolist(), strict=True)
        return tuple(
            Path(
                tuple(links),
                tuple(took),
                latency,
                rate,
                # Capped: something other than the path's own links bounds the rate.
                rate < min((capacity[link] / weight for link, weight in zip(links, took, strict=True)), default=0.0),
            )
            for links, took, latency, rate in rows
        )
