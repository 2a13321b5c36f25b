"""Ways through the fabric as columns: the links of each, what a flow takes of them, its latency and its rate alone.

Rule: arithmetic on all ways at once; a way's own record is made for who plays flow by flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.path import Path


@dataclass(frozen=True, eq=False)
class Ways:
    """A row each.

    Attributes
    ----------
    way, link : int array, shape (n,)
        Each link of each way, in the order of travel, sorted by way.
    weight : float array, shape (n,)
        Capacity of the link that a flow at rate 1 takes.
    latency, rate : float array, shape (ways,)
        Of a way [s], and the most that a flow on it gets when alone [B/s].
    matters : bool array, shape (n,)
        Whether flows can hold each other back there.
    """

    way: Ints
    link: Ints
    weight: Floats
    latency: Floats
    rate: Floats
    matters: Bools

    def __len__(self) -> int:
        return len(self.latency)

    def kept(self, matters: Bools) -> Ways:
        """The same, with these links watched."""
        return replace(self, matters=matters)

    @cached_property
    def meets(self) -> bool:
        """Whether flows can hold each other back anywhere."""
        return bool(self.matters.any())

    @cached_property
    def watched(self) -> tuple[Ints, Ints, Floats]:
        """Way, link and weight of the links that matter."""
        return self.way[self.matters], self.link[self.matters], self.weight[self.matters]

    def taken(self, rows: npt.NDArray[Any]) -> tuple[Ints, Ints, Floats]:
        """Flow, link and weight of the links that matter, for flows that take these ways; sorted by flow."""
        way, link, weight = self.watched
        first = np.searchsorted(way, np.arange(len(self) + 1))
        count = np.diff(first)[rows]
        flow = np.repeat(np.arange(len(rows)), count)
        place = np.arange(len(flow)) + np.repeat(first[rows] - (np.cumsum(count) - count), count)
        return flow, link[place], weight[place]

    def paths(self, capacity: Sequence[float] | Floats) -> tuple[Path, ...]:
        """Each way's record, with the links that matter; what else was narrowest bounds the flow like a cap."""
        links: list[list[int]] = [[] for _ in range(len(self))]
        weights: list[list[float]] = [[] for _ in range(len(self))]
        for way, link, weight in zip(*(column.tolist() for column in self.watched), strict=True):
            links[way].append(link)
            weights[way].append(weight)
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
