"""One group's collective, played by arrays: what it needs to know beforehand, and what becomes of it.

Rule: groups whose routes are alike but for the links' numbers are of one shape and are played once. Laps are one step
where nobody asks for each flow, else every transfer stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled import rounds
from simulator.engine.compiled.contention import Contention, LinkLoad, LinkOccupancy, contentions, load_of, occupancy_of
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.layout import Layout, layout_of
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic

# Enter and end [s].
Times = tuple[Floats, Floats]
# Beyond so many transfers their columns take more than a few GiB.
MOST_WRITTEN = 2**25


@dataclass(frozen=True, eq=False)
class CollectiveTimes:
    """What became of a collective.

    Attributes
    ----------
    done : float array, shape (ranks of the group,)
        When each rank is through [s].
    occupancy : LinkOccupancy or None
        Of links that matter, by the shape's numbers; None where none does.
    by_flow : bool
        Whether every flow stands there, none as part of a lap.
    times : callable () -> (enter, end)
        Of every transfer [s].
    on : callable (routes) -> (enter, end)
        Of the transfers that take one of these [s].
    met : Contention or None
        Where its own flows held each other back and were not solved together: then the times are not to be had so.
    """

    done: Floats
    occupancy: LinkOccupancy | None
    by_flow: bool
    times: Callable[[], Times]
    on: Callable[[Ints], Times]
    met: Contention | None = None

    @cached_property
    def load(self) -> LinkLoad | None:
        """The occupancy, summed up."""
        return load_of(self.occupancy) if self.occupancy is not None else None


@dataclass(frozen=True, slots=True)
class SpmdOpTimes:
    """What became of all groups' collectives of a line.

    Attributes
    ----------
    start, done : float array, shape (ranks,)
        When each rank came, and when it was through [s].
    played : tuple of (float, CollectiveTimes) or None
        By group, and the moment to which it is relative [s]; None for those whose time is given.
    occupancy : LinkOccupancy or None
        Flow by flow what was followed so; where several lines were, of all of them, with the first.
    """

    start: Floats
    done: Floats
    played: tuple[tuple[float, CollectiveTimes] | None, ...]
    occupancy: LinkOccupancy | None = None

    def later(self, zero: float) -> SpmdOpTimes:
        """The same from another moment on."""
        return SpmdOpTimes(
            self.start + zero,
            self.done + zero,
            tuple(one and (one[0] + zero, one[1]) for one in self.played),
            self.occupancy and self.occupancy.later(zero),
        )


def times_by_flow(traffic: Traffic, routes: Routes, done: Floats, times: Times, flow_group: Ints) -> CollectiveTimes:
    """What became of a collective whose every transfer is known."""

    def on(rows: Ints) -> Times:
        mine = np.isin(traffic.route_of, rows)
        return times[0][mine], times[1][mine]

    occupancy = occupancy_of(routes, traffic.route_of, *times, flow_group) if routes.can_contend else None
    return CollectiveTimes(done, occupancy, True, lambda: times, on)


@dataclass(frozen=True, eq=False)
class CollectiveSolver:
    """A collective on its links, ready to be played from any start.

    Attributes
    ----------
    traffic : Traffic
    routes : Routes
        With links that matter numbered from 0.
    noise : float array, shape (transfers,), or None
        Factors on latencies.
    capacity : float array
        Of these links [B/s].
    """

    traffic: Traffic
    routes: Routes
    noise: Floats | None
    capacity: Floats
    _known: list[tuple[Floats, CollectiveTimes]] = field(default_factory=list)

    def played(self, start: Floats, alike: float) -> CollectiveTimes:
        """Play from when each rank has reached it and paid its start-up, shape (ranks,).

        What was played before from starts that differ by no more than `alike` [s] is taken again. Where channels meet
        on a link that cannot give all what they ask for, every flow is told for itself; what held itself back once is
        taken to do so from any start, for it is to be followed anyway, which is always right.

        Raises
        ------
        DeclinedError
            Too many transfers to be looked at one by one.
        """
        # Lines come one behind the other, and so do their starts.
        for other, known in reversed(self._known):
            if known.met is not None or bool((np.abs(other - start) <= alike).all()):
                return known
        found = self._play(start, self._compact)
        met = self._known_contentions(found)
        if met is not None and not found.by_flow:
            found = self._play(start, self._whole)
            met = self._known_contentions(found)
        found = replace(found, met=met)
        self._known.append((start, found))
        return found

    def _known_contentions(self, found: CollectiveTimes) -> Contention | None:
        met = contentions(found.occupancy, self.capacity) if found.occupancy is not None else []
        return met[0] if met else None

    def by_flow(self, start: Floats) -> CollectiveTimes:
        """The same, every flow for itself."""
        return self._play(start, self._whole)

    def _play(self, start: Floats, layout: Layout) -> CollectiveTimes:
        found = rounds.play(layout, start)
        if layout.whole:
            return times_by_flow(self.traffic, self.routes, found.done, (found.enter, found.end), found.flow_group)
        occupancy = (
            occupancy_of(self.routes, layout.route_of, found.enter, found.end, found.flow_group)
            if self.routes.can_contend
            else None
        )
        return CollectiveTimes(
            found.done,
            occupancy,
            False,
            lambda: self._every_transfer(start),
            lambda routes: rounds.times_on_routes(layout, found, routes),
        )

    def _every_transfer(self, start: Floats) -> Times:
        found = rounds.play(self._whole, start)
        return found.enter, found.end

    @cached_property
    def _compact(self) -> Layout:
        return layout_of(self.traffic, self.routes, self.noise, self.capacity)

    @cached_property
    def _whole(self) -> Layout:
        if len(self.traffic) > MOST_WRITTEN:
            raise DeclinedError(f"{len(self.traffic)} transfers are too many to be looked at one by one")
        return layout_of(self.traffic, self.routes, self.noise, self.capacity, whole=True)


def with_own_link_numbers(routes: Routes) -> tuple[Routes, Ints]:
    """Only the links that matter, numbered in the order in which they come up; and which links they are."""
    route, link, weight = routes.watched
    found, first, place = np.unique(link, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(found), np.int64)
    number[order] = np.arange(len(found))
    every = np.ones(len(route), np.bool_)
    return replace(routes, route=route, link=number[place], weight=weight, matters=every), found[order]
