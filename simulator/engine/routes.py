"""Which links each route uses, what a flow takes of each, and the route's latency and rate alone.

Rule: arithmetic on all routes at once; an engine that follows flow by flow asks for a `Path` of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.path import Path


@dataclass(frozen=True, eq=False)
class Routes:
    """Some routes; a route's number is its row of `latency` and `rate`.

    Attributes
    ----------
    route, link : int array, shape (n,)
        Each link of each route: the route's number and the link's, sorted by route, in the order of travel.
    weight : float array, shape (n,)
        Capacity of the link that a flow at rate 1 takes.
    latency, rate : float array, shape (routes,)
        Of a route [s], and the most that a flow on it gets when alone [B/s].
    matters : bool array, shape (n,)
        Whether flows can hold each other back there.
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
        """The same, with these links watched."""
        return replace(self, matters=matters)

    @cached_property
    def can_contend(self) -> bool:
        """Whether flows can hold each other back anywhere."""
        return bool(self.matters.any())

    @cached_property
    def watched(self) -> tuple[Ints, Ints, Floats]:
        """Route, link and weight of the links that matter."""
        return self.route[self.matters], self.link[self.matters], self.weight[self.matters]

    def paths(self, capacity: Sequence[float] | Floats) -> tuple[Path, ...]:
        """Each route's record, with the links that matter; what else was narrowest bounds the flow like a cap."""
        links: list[list[int]] = [[] for _ in range(len(self))]
        weights: list[list[float]] = [[] for _ in range(len(self))]
        for route, link, weight in zip(*(column.tolist() for column in self.watched), strict=True):
            links[route].append(link)
            weights[route].append(weight)
        rows = zip(links, weights, self.latency.tolist(), self.rate.tolist(), strict=True)
        return tuple(
            Path(
                tuple(own),
                tuple(took),
                latency,
                rate,
                rate < min((capacity[link] / weight for link, weight in zip(own, took, strict=True)), default=0.0),
            )
            for own, took, latency, rate in rows
        )
