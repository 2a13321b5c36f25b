"""Lines that share links, reduced: one of each kind is played by the events engine, and stands for all of its kind.

Rule: a flow that stands for several takes of a link what they take together. What came of it is unfolded for who asks.
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
from simulator.engine.compiled.quotient_schedule import QuotientSchedule, Representatives, members_of
from simulator.engine.compiled.refinement import Partition, PlacedCollective, equitable_partition, rows_with_keys
from simulator.engine.jitter import Jitter
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.program import Collective

# Beyond so many rows each link's occupancy is told as one, from the first flow to the last end.
_MAX_OCCUPANCIES = 2**20


@dataclass(frozen=True, eq=False)
class Quotient:
    """What stands for what, whenever lines come as they do.

    Attributes
    ----------
    kinds : Partition
    stands : int array, shape (parts,)
        By part the first of its kind.
    schedules : mapping of int to (Representatives, QuotientSchedule)
        By part that stands for others; none where times are given.
    """

    kinds: Partition
    stands: Ints
    schedules: Mapping[int, tuple[Representatives, QuotientSchedule]]

    @property
    def ranks(self) -> int:
        """Partition of ranks: as many as play for all."""
        return int(self.kinds.rank.max()) + 1

    def __len__(self) -> int:
        """How many transfers are played."""
        return sum(len(representatives) for representatives, _ in self.schedules.values())


@dataclass(frozen=True, eq=False)
class ReducedProblem:
    """What is played for lines that share links, and what it stands for.

    Attributes
    ----------
    members : sequence of CoScheduledOp
        The lines, as they are.
    parts : sequence of PlacedCollective
        All their groups.
    quotient : Quotient
    """

    members: Sequence[CoScheduledOp]
    parts: Sequence[PlacedCollective]
    quotient: Quotient

    def __len__(self) -> int:
        """How many transfers are played."""
        return len(self.quotient)

    def play(self, cluster: Cluster) -> list[SpmdOpTimes]:
        """Play it, and say of every line what became of it; the use of links is with the first."""
        placements = {
            self.parts[number].op.name: (number, written) for number, (_, written) in self.quotient.schedules.items()
        }
        outcomes = play_co_scheduled(
            [self._reduced(line) for line in range(len(self.members))], cluster, Jitter(), placements
        )
        times = {name: own for outcome in outcomes for name, own in outcome.times.items()}
        occupancy = self._use(times)
        found = []
        for line, outcome in enumerate(outcomes):
            start, done = outcome.start[self.quotient.kinds.rank], outcome.done[self.quotient.kinds.rank]
            played = tuple(self._played(number, done, times) for number in self._by_line[line])
            found.append(SpmdOpTimes(start, done, played, occupancy if line == 0 else concatenated([])))
        return found

    @cached_property
    def _by_line(self) -> list[list[int]]:
        """Numbers of each line's parts."""
        found: list[list[int]] = [[] for _ in self.members]
        for number, part in enumerate(self.parts):
            found[part.line].append(number)
        return found

    def _reduced(self, line: int) -> CoScheduledOp:
        """A line with kinds of ranks in place of ranks."""
        member = self.members[line]
        ready = np.zeros(self.quotient.ranks)
        ready[self.quotient.kinds.rank] = member.ready
        collectives = []
        for number in self._by_line[line]:
            if self.quotient.stands[number] == number:
                op = self.parts[number].op
                ranks, auxiliaries = members_of(self.parts[number], number, self.quotient.kinds)
                collectives.append(
                    replace(op, group=tuple(ranks.tolist()), auxiliaries=op.auxiliaries[: len(auxiliaries)])
                )
        return CoScheduledOp(tuple(collectives), ready, member.predecessors)

    def _played(self, number: int, done: Floats, times: Mapping[str, Times]) -> tuple[float, CollectiveTimes] | None:
        part = self.parts[number]
        if part.traffic is None:
            return None
        there = partial(self._times, number, times)
        return 0.0, CollectiveTimes(done[list(part.op.group)], None, True, there, there)

    def _times(self, number: int, times: Mapping[str, Times], routes: Ints | None = None) -> Times:
        """Enter and end of every transfer of a part, or of those on some routes."""
        stands = int(self.quotient.stands[number])
        enter, end = times[self.parts[stands].op.name]
        representatives, kinds_of_rows = self.quotient.schedules[stands][0], self.quotient.kinds.row[number]
        route_of = np.concatenate([own.route_of for own in representatives.traffic.parts])
        wanted = np.ones(len(route_of), np.bool_) if routes is None else np.isin(route_of, routes)
        rows = representatives.numbers(kinds_of_rows, wanted)
        return enter[rows], end[rows]

    def _use(self, times: Mapping[str, Times]) -> LinkOccupancy:
        """What all flows together have of links: their shares were solved, so on a link they count as one."""
        occupancies = []
        for number, (_, written) in self.quotient.schedules.items():
            enter, end = times[self.parts[number].op.name]
            occupancies.append(
                occupancy_of(written.routes, written.route_of, enter, end, np.zeros(len(enter), np.int64))
            )
        own = concatenated(occupancies).as_one_flow_group()
        load = load_of(own)
        link, begin, until = merged_intervals(own.link, own.enter, own.end, own.flow_group)
        every, of_kind = np.argsort(self.quotient.kinds.link, kind="stable"), np.sort(self.quotient.kinds.link)
        if int(np.bincount(self.quotient.kinds.link)[self.quotient.kinds.link[link]].sum()) > _MAX_OCCUPANCIES:
            link, begin, until = load.link, load.first, load.last
        row, place = rows_with_keys(of_kind, self.quotient.kinds.link[link])
        asked = load.peak_demand[np.searchsorted(load.link, link)][row]
        nobody = np.zeros(len(row), np.int64)
        return LinkOccupancy(every[place], begin[row], until[row], asked, nobody, nobody)


def reduce_by_symmetry(
    members: Sequence[CoScheduledOp],
    lies: Callable[[Collective], tuple[Traffic, Routes]],
    capacity: Floats,
    alike: float,
    known: MutableMapping[bytes, Quotient | None],
) -> ReducedProblem | None:
    """ReducedProblem lines that share links; None where that does not even halve what is to be played.

    Parameters
    ----------
    members : sequence of CoScheduledOp
    lies : callable (Collective) -> (Traffic, Routes)
        How it lies on the fabric.
    capacity : float array
        Of every link [B/s].
    alike : float
        Bounds that differ by no more are the same [s].
    known : mapping
        What was found for such lines, by which ranks come at the same times; what is found here is added.
    """
    parts = [
        PlacedCollective(line, op, *((None, None) if op.duration is not None else lies(op)))
        for line, member in enumerate(members)
        for op in member.collectives
    ]
    ready_times = _same([member.ready for member in members], alike)
    if ready_times is None:
        return None
    if ready_times.tobytes() not in known:
        known[ready_times.tobytes()] = _quotient(parts, ready_times, capacity)
    found = known[ready_times.tobytes()]
    return ReducedProblem(members, parts, found) if found is not None else None


def _quotient(parts: Sequence[PlacedCollective], ready_times: Ints, capacity: Floats) -> Quotient | None:
    found = equitable_partition(parts, ready_times, capacity)
    if found is None:
        return None
    first = np.unique(found.part, return_index=True)[1]
    schedules = {}
    for number in sorted(first.tolist()):
        part = parts[number]
        if part.traffic is not None and part.routes is not None:
            representatives = Representatives.of(part.traffic, found.row[number])
            schedules[number] = representatives, representatives.written(part, part.routes, number, found, capacity)
    quotient = Quotient(found, first[found.part], schedules)
    return (
        quotient if 2 * len(quotient) <= sum(len(part.traffic) for part in parts if part.traffic is not None) else None
    )


def _same(ready_times: Sequence[Floats], alike: float) -> Ints | None:
    """Equal numbers for ranks whose ready_times are all the same; None where it cannot be told what is."""
    found = np.zeros(len(ready_times[0]), np.int64)
    for ready in ready_times:
        order = np.argsort(ready, kind="stable")
        new = np.concatenate([[False], np.diff(ready[order]) > alike])
        number = np.empty(len(ready), np.int64)
        number[order] = np.cumsum(new)
        least, most = np.full(len(ready), np.inf), np.full(len(ready), -np.inf)
        np.minimum.at(least, number, ready)
        np.maximum.at(most, number, ready)
        if bool((most - least > 4 * alike)[: int(number.max()) + 1].any()):
            return None
        found = np.unique(found * len(ready) + number, return_inverse=True)[1]
    return found
