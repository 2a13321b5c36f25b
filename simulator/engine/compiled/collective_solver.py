"""How long one collective takes on its links from given starts, and which links it occupies meanwhile.

Process groups whose routes have the same latencies, rates and shares of links look alike, whichever links these are:
they share one solver, and what it has solved. Pipelined rings are one step unless somebody asks for each flow; then
every transfer has its own times.
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
# Columns of more transfers than this take more than a few GiB.
MAX_WRITTEN = 2**25


@dataclass(frozen=True, eq=False)
class CollectiveTimes:
    """Times of one process group's collective.

    Attributes
    ----------
    done : float array, shape (ranks of the group,)
        When each rank is through [s].
    occupancy : LinkOccupancy or None
        Of links that matter, by the solver's numbers; None if there are none.
    by_flow : bool
        Whether the occupancy has every flow, none as part of a pipelined ring.
    times : callable () -> (enter, end)
        Of every transfer [s].
    times_on : callable (routes) -> (enter, end)
        Of the transfers that take one of these routes [s].
    contention : Contention or None
        Where its own flows slowed each other down and were not solved together: then these times are wrong, and the
        collective must be solved by the events engine.
    """

    done: Floats
    occupancy: LinkOccupancy | None
    by_flow: bool
    times: Callable[[], Times]
    times_on: Callable[[Ints], Times]
    contention: Contention | None = None

    @cached_property
    def load(self) -> LinkLoad | None:
        """The occupancy, summed up by link."""
        return load_of(self.occupancy) if self.occupancy is not None else None


@dataclass(frozen=True, slots=True)
class SpmdOpTimes:
    """Times of an SPMD operation's collectives.

    Attributes
    ----------
    start, done : float array, shape (ranks,)
        When each rank came, and when it was through [s].
    groups : tuple of (float, CollectiveTimes) or None
        By process group the origin [s] and the times relative to it; None for a collective whose duration is given.
    occupancy : LinkOccupancy or None
        Flow by flow, if the events engine solved it; else None. Of co-scheduled operations the first has the occupancy
        of all of them, and that of the others is empty.
    """

    start: Floats
    done: Floats
    groups: tuple[tuple[float, CollectiveTimes] | None, ...]
    occupancy: LinkOccupancy | None = None

    def shifted(self, origin: float) -> SpmdOpTimes:
        """The same with times that were counted from `origin` [s]."""
        return SpmdOpTimes(
            self.start + origin,
            self.done + origin,
            tuple(group and (group[0] + origin, group[1]) for group in self.groups),
            self.occupancy and self.occupancy.shifted(origin),
        )


def times_by_flow(traffic: Traffic, routes: Routes, done: Floats, times: Times, flow_group: Ints) -> CollectiveTimes:
    """Times of a collective of which every transfer's are known."""

    def times_on(rows: Ints) -> Times:
        mine = np.isin(traffic.route_of, rows)
        return times[0][mine], times[1][mine]

    occupancy = occupancy_of(routes, traffic.route_of, *times, flow_group) if routes.can_contend else None
    return CollectiveTimes(done, occupancy, True, lambda: times, times_on)


@dataclass(frozen=True, eq=False)
class CollectiveSolver:
    """Solves a collective on its links from any starts, and keeps the answers.

    Attributes
    ----------
    traffic : Traffic
    routes : Routes
        With links that matter numbered from 0.
    jitter : float array, shape (transfers,), or None
        Factors on latencies.
    capacity : float array
        Of these links [B/s].
    """

    traffic: Traffic
    routes: Routes
    jitter: Floats | None
    capacity: Floats
    _solved: list[tuple[Floats, CollectiveTimes]] = field(default_factory=list)

    def solve(self, start: Floats, tolerance: float) -> CollectiveTimes:
        """Times from when each rank has reached the collective and paid its start-up, shape (ranks of the group,) [s].

        An answer to starts that differ by no more than `tolerance` [s] is taken again. If pipelined rings seem to
        overload a link, every flow is looked at. If a collective contended once, this answer is returned for all
        starts: the caller then always uses the events engine, which is exact.

        Raises
        ------
        DeclinedError
            Too many transfers to be looked at one by one.
        """
        # Latest first: operations of one kind follow each other in a program, from starts that drift slowly.
        for known_start, known in reversed(self._solved):
            if known.contention is not None or bool((np.abs(known_start - start) <= tolerance).all()):
                return known
        times = self._times(start, self._compact)
        contention = self._first_contention(times)
        if contention is not None and not times.by_flow:
            times = self._times(start, self._whole)
            contention = self._first_contention(times)
        times = replace(times, contention=contention)
        self._solved.append((start, times))
        return times

    def _first_contention(self, times: CollectiveTimes) -> Contention | None:
        contending = contentions(times.occupancy, self.capacity) if times.occupancy is not None else []
        return contending[0] if contending else None

    def solve_by_flow(self, start: Floats) -> CollectiveTimes:
        """The same without pipelined rings: every flow's own times."""
        return self._times(start, self._whole)

    def _times(self, start: Floats, layout: Layout) -> CollectiveTimes:
        slots = rounds.play(layout, start)
        if layout.whole:
            return times_by_flow(self.traffic, self.routes, slots.done, (slots.enter, slots.end), slots.flow_group)
        occupancy = None
        if self.routes.can_contend:
            occupancy = occupancy_of(self.routes, layout.route_of, slots.enter, slots.end, slots.flow_group)
        return CollectiveTimes(
            slots.done,
            occupancy,
            False,
            lambda: self._every_transfer(start),
            lambda routes: rounds.times_on_routes(layout, slots, routes),
        )

    def _every_transfer(self, start: Floats) -> Times:
        slots = rounds.play(self._whole, start)
        return slots.enter, slots.end

    @cached_property
    def _compact(self) -> Layout:
        return layout_of(self.traffic, self.routes, self.jitter, self.capacity)

    @cached_property
    def _whole(self) -> Layout:
        if len(self.traffic) > MAX_WRITTEN:
            raise DeclinedError(f"{len(self.traffic)} transfers are too many to be looked at one by one")
        return layout_of(self.traffic, self.routes, self.jitter, self.capacity, whole=True)


def with_own_link_numbers(routes: Routes) -> tuple[Routes, Ints]:
    """Only the links that matter, renumbered from 0 in the order in which they come up; and which links these are.

    So process groups on different links have the same columns if they look alike.
    """
    route, link, weight = routes.watched
    links, first, place = np.unique(link, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(links), np.int64)
    number[order] = np.arange(len(links))
    every = np.ones(len(route), np.bool_)
    return replace(routes, route=route, link=number[place], weight=weight, matters=every), links[order]
