"""Co-scheduled operations reduced by symmetry: one rank, transfer and link of each class is played and stands for all.

`refinement` finds the classes, `quotient_schedule` writes one of each out, the events engine plays these, and here
their times are given to all that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.co_scheduled import CoScheduledOp, play_co_scheduled
from simulator.engine.compiled.collective_solver import CollectiveTimes, SpmdOpTimes, Times
from simulator.engine.compiled.contention import LinkOccupancy, concatenated, load_of, merged_intervals, occupancy_of
from simulator.engine.compiled.quotient_schedule import QuotientSchedule, Representatives, participants_of
from simulator.engine.compiled.refinement import Partition, PlacedCollective, equitable_partition, rows_with_keys
from simulator.engine.jitter import Jitter
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.program import Collective

# With more rows than this a link is taken to be occupied from its first enter to its last end.
_MAX_OCCUPANCY_ROWS = 2**20


@dataclass(frozen=True, eq=False)
class Quotient:
    """Which ranks, transfers and links stand for which, given which ranks are ready at the same times.

    Attributes
    ----------
    classes : Partition
    representative : int array, shape (collectives,)
        By collective the first of its class.
    schedules : mapping of int to (Representatives, QuotientSchedule)
        By collective that stands for others; none for those whose duration is given.
    """

    classes: Partition
    representative: Ints
    schedules: Mapping[int, tuple[Representatives, QuotientSchedule]]

    @property
    def ranks(self) -> int:
        """Classes of ranks: as many ranks are played."""
        return int(self.classes.rank.max()) + 1

    def __len__(self) -> int:
        """How many transfers are played."""
        return sum(len(representatives) for representatives, _ in self.schedules.values())


@dataclass(frozen=True, eq=False)
class ReducedProblem:
    """Co-scheduled operations, and what is played in their place.

    Attributes
    ----------
    ops : sequence of CoScheduledOp
        Of all ranks.
    collectives : sequence of PlacedCollective
        Of all their process groups.
    quotient : Quotient
    """

    ops: Sequence[CoScheduledOp]
    collectives: Sequence[PlacedCollective]
    quotient: Quotient

    def __len__(self) -> int:
        """How many transfers are played."""
        return len(self.quotient)

    def solve(self, cluster: Cluster) -> list[SpmdOpTimes]:
        """Play one of each class and return the times of all operations; the first one has the occupancy of all."""
        placements = {
            self.collectives[number].op.name: (number, schedule)
            for number, (_, schedule) in self.quotient.schedules.items()
        }
        reduced = [self._reduced(number) for number in range(len(self.ops))]
        outcomes = play_co_scheduled(reduced, cluster, Jitter(), placements)
        times = {name: own for outcome in outcomes for name, own in outcome.times.items()}
        occupancy, class_of = self._occupancy(times), self.quotient.classes.rank
        solved = []
        for spmd_op, outcome in enumerate(outcomes):
            start, done = outcome.start[class_of], outcome.done[class_of]
            groups = tuple(self._expanded(number, done, times) for number in self._by_op[spmd_op])
            solved.append(SpmdOpTimes(start, done, groups, occupancy if spmd_op == 0 else concatenated([])))
        return solved

    @cached_property
    def _by_op(self) -> list[list[int]]:
        """Numbers of each operation's collectives."""
        numbers: list[list[int]] = [[] for _ in self.ops]
        for number, placed in enumerate(self.collectives):
            numbers[placed.spmd_op].append(number)
        return numbers

    def _reduced(self, number: int) -> CoScheduledOp:
        """An operation with classes of ranks in place of ranks, and one collective of each class."""
        spmd_op = self.ops[number]
        ready = np.zeros(self.quotient.ranks)
        ready[self.quotient.classes.rank] = spmd_op.ready
        collectives = []
        for own in self._by_op[number]:
            if self.quotient.representative[own] == own:
                op = self.collectives[own].op
                ranks, auxiliary = participants_of(self.collectives[own], own, self.quotient.classes)
                collectives.append(
                    replace(op, group=tuple(ranks.tolist()), auxiliaries=op.auxiliaries[: len(auxiliary)])
                )
        return CoScheduledOp(tuple(collectives), ready, spmd_op.predecessors)

    def _expanded(self, number: int, done: Floats, times: Mapping[str, Times]) -> tuple[float, CollectiveTimes] | None:
        placed = self.collectives[number]
        if placed.traffic is None:
            return None
        of_group = partial(self._times, number, times)
        return 0.0, CollectiveTimes(done[list(placed.op.group)], None, True, of_group, of_group)

    def _times(self, number: int, times: Mapping[str, Times], routes: Ints | None = None) -> Times:
        """Enter and end of every transfer of a collective, or of those on some routes: those of who stands for it."""
        representative = int(self.quotient.representative[number])
        enter, end = times[self.collectives[representative].op.name]
        representatives, classes = self.quotient.schedules[representative][0], self.quotient.classes.transfer[number]
        route_of = np.concatenate([own.route_of for own in representatives.traffic.parts])
        wanted = np.ones(len(route_of), np.bool_) if routes is None else np.isin(route_of, routes)
        numbers = representatives.numbers(classes, wanted)
        return enter[numbers], end[numbers]

    def _occupancy(self, times: Mapping[str, Times]) -> LinkOccupancy:
        """Occupancy of all links: what was seen on the first link of a class, for each link of the class.

        All flows were solved together, so they are one flow group, and overlapping ones on a link are one row.
        """
        occupancies = []
        for number, (_, schedule) in self.quotient.schedules.items():
            enter, end = times[self.collectives[number].op.name]
            one_group = np.zeros(len(enter), np.int64)
            occupancies.append(occupancy_of(schedule.routes, schedule.route_of, enter, end, one_group))
        played = concatenated(occupancies).as_one_flow_group()
        load = load_of(played)
        link, begin, until = merged_intervals(played.link, played.enter, played.end, played.flow_group)
        class_of = self.quotient.classes.link
        links_by_class, sorted_classes = np.argsort(class_of, kind="stable"), np.sort(class_of)
        if int(np.bincount(class_of)[class_of[link]].sum()) > _MAX_OCCUPANCY_ROWS:
            link, begin, until = load.link, load.first, load.last
        row, place = rows_with_keys(sorted_classes, class_of[link])
        demand = load.peak_demand[np.searchsorted(load.link, link)][row]
        zeros = np.zeros(len(row), np.int64)
        return LinkOccupancy(links_by_class[place], begin[row], until[row], demand, zeros, zeros)


def reduce_by_symmetry(
    ops: Sequence[CoScheduledOp],
    placement: Callable[[Collective], tuple[Traffic, Routes]],
    capacity: Floats,
    tolerance: float,
    known: MutableMapping[bytes, Quotient | None],
) -> ReducedProblem | None:
    """Reduce co-scheduled operations; None if more than half of their transfers would still be played.

    Parameters
    ----------
    ops : sequence of CoScheduledOp
    placement : callable (Collective) -> (Traffic, Routes)
        How a collective lies on the fabric.
    capacity : float array
        Of every link [B/s].
    tolerance : float
        Ready times that differ by no more are the same [s].
    known : mapping
        Answers for such operations, by which ranks are ready at the same times; what is worked out here is added.
    """
    collectives = [
        PlacedCollective(number, op, *((None, None) if op.duration is not None else placement(op)))
        for number, spmd_op in enumerate(ops)
        for op in spmd_op.collectives
    ]
    ready_classes = _classes_of_times([spmd_op.ready for spmd_op in ops], tolerance)
    if ready_classes is None:
        return None
    key = ready_classes.tobytes()
    if key not in known:
        known[key] = _quotient(collectives, ready_classes, capacity)
    quotient = known[key]
    return ReducedProblem(ops, collectives, quotient) if quotient is not None else None


def _quotient(collectives: Sequence[PlacedCollective], ready_classes: Ints, capacity: Floats) -> Quotient | None:
    classes = equitable_partition(collectives, ready_classes, capacity)
    if classes is None:
        return None
    first = np.unique(classes.collective, return_index=True)[1]
    schedules = {}
    for number in sorted(first.tolist()):
        placed = collectives[number]
        if placed.traffic is not None and placed.routes is not None:
            representatives = Representatives.of(placed.traffic, classes.transfer[number])
            schedule = representatives.schedule(placed, placed.routes, number, classes, capacity)
            schedules[number] = representatives, schedule
    quotient = Quotient(classes, first[classes.collective], schedules)
    transfers = sum(len(placed.traffic) for placed in collectives if placed.traffic is not None)
    return quotient if 2 * len(quotient) <= transfers else None


def _classes_of_times(ready_times: Sequence[Floats], tolerance: float) -> Ints | None:
    """Equal numbers for ranks whose ready times are the same in all operations; None if rounding leaves that open.

    Times are the same if they are no farther apart than the tolerance. That is no equivalence: many small steps in a
    row may lead far. Where one class would span more than four tolerances, nothing is concluded.
    """
    classes = np.zeros(len(ready_times[0]), np.int64)
    for ready in ready_times:
        order = np.argsort(ready, kind="stable")
        new = np.concatenate([[False], np.diff(ready[order]) > tolerance])
        number = np.empty(len(ready), np.int64)
        number[order] = np.cumsum(new)
        earliest, latest = np.full(len(ready), np.inf), np.full(len(ready), -np.inf)
        np.minimum.at(earliest, number, ready)
        np.maximum.at(latest, number, ready)
        if bool((latest - earliest > 4 * tolerance)[: int(number.max()) + 1].any()):
            return None
        classes = np.unique(classes * len(ready) + number, return_inverse=True)[1]
    return classes
