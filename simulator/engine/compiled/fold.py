"""Lines that share links, folded: one of each kind is played by the events engine, and stands for all of its kind.

Rule: a flow that stands for several takes of a link what they take together. What came of it is unfolded for who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.cluster import Cluster
from simulator.engine.cargo import Cargo
from simulator.engine.compiled.co_scheduled import CoScheduledOp, play_co_scheduled
from simulator.engine.compiled.collective_solver import CollectiveTimes, SpmdOpTimes, Times
from simulator.engine.compiled.contention import LinkOccupancy, concatenated, load_of, merged_intervals, occupancy_of
from simulator.engine.compiled.sheet import Sheet, Written, members_of
from simulator.engine.compiled.symmetry import Kinds, Part, entries, kinds
from simulator.engine.jitter import Jitter
from simulator.engine.ways import Ways
from simulator.records.program import Collective

# Beyond so many rows each link's occupancy is told as one, from the first flow to the last end.
_MOST_USES = 2**20


@dataclass(frozen=True, eq=False)
class Creases:
    """What stands for what, whenever lines come as they do.

    Attributes
    ----------
    kinds : Kinds
    stands : int array, shape (parts,)
        By part the first of its kind.
    sheets : mapping of int to (Sheet, Written)
        By part that stands for others; none where times are given.
    """

    kinds: Kinds
    stands: Ints
    sheets: Mapping[int, tuple[Sheet, Written]]

    @property
    def ranks(self) -> int:
        """Kinds of ranks: as many as play for all."""
        return int(self.kinds.rank.max()) + 1

    def __len__(self) -> int:
        """How many transfers are played."""
        return sum(len(sheet) for sheet, _ in self.sheets.values())


@dataclass(frozen=True, eq=False)
class Fold:
    """What is played for lines that share links, and what it stands for.

    Attributes
    ----------
    members : sequence of CoScheduledOp
        The lines, as they are.
    parts : sequence of Part
        All their groups.
    creases : Creases
    """

    members: Sequence[CoScheduledOp]
    parts: Sequence[Part]
    creases: Creases

    def __len__(self) -> int:
        """How many transfers are played."""
        return len(self.creases)

    def play(self, cluster: Cluster) -> list[SpmdOpTimes]:
        """Play it, and say of every line what became of it; the use of links is with the first."""
        laid = {self.parts[number].op.name: (number, written) for number, (_, written) in self.creases.sheets.items()}
        outcomes = play_co_scheduled([self._folded(line) for line in range(len(self.members))], cluster, Jitter(), laid)
        times = {name: own for outcome in outcomes for name, own in outcome.times.items()}
        occupancy = self._use(times)
        found = []
        for line, outcome in enumerate(outcomes):
            start, done = outcome.start[self.creases.kinds.rank], outcome.done[self.creases.kinds.rank]
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

    def _folded(self, line: int) -> CoScheduledOp:
        """A line with kinds of ranks in place of ranks."""
        member = self.members[line]
        ready = np.zeros(self.creases.ranks)
        ready[self.creases.kinds.rank] = member.ready
        collectives = []
        for number in self._by_line[line]:
            if self.creases.stands[number] == number:
                op = self.parts[number].op
                ranks, extras = members_of(self.parts[number], number, self.creases.kinds)
                collectives.append(replace(op, group=tuple(ranks.tolist()), extras=op.extras[: len(extras)]))
        return CoScheduledOp(tuple(collectives), ready, member.predecessors)

    def _played(self, number: int, done: Floats, times: Mapping[str, Times]) -> tuple[float, CollectiveTimes] | None:
        part = self.parts[number]
        if part.cargo is None:
            return None
        there = partial(self._times, number, times)
        return 0.0, CollectiveTimes(done[list(part.op.group)], None, True, there, there)

    def _times(self, number: int, times: Mapping[str, Times], ways: Ints | None = None) -> Times:
        """Enter and end of every transfer of a part, or of those on some ways."""
        stands = int(self.creases.stands[number])
        enter, end = times[self.parts[stands].op.name]
        sheet, kinds_of_rows = self.creases.sheets[stands][0], self.creases.kinds.row[number]
        routes = np.concatenate([own.route for own in sheet.cargo.parts])
        wanted = np.ones(len(routes), np.bool_) if ways is None else np.isin(routes, ways)
        rows = sheet.numbers(kinds_of_rows, wanted)
        return enter[rows], end[rows]

    def _use(self, times: Mapping[str, Times]) -> LinkOccupancy:
        """What all flows together have of links: their shares were solved, so on a link they count as one."""
        occupancies = []
        for number, (_, written) in self.creases.sheets.items():
            enter, end = times[self.parts[number].op.name]
            occupancies.append(occupancy_of(written.ways, written.route, enter, end, np.zeros(len(enter), np.int64)))
        own = concatenated(occupancies).as_one_flow_group()
        load = load_of(own)
        link, begin, until = merged_intervals(own.link, own.enter, own.end, own.flow_group)
        every, of_kind = np.argsort(self.creases.kinds.link, kind="stable"), np.sort(self.creases.kinds.link)
        if int(np.bincount(self.creases.kinds.link)[self.creases.kinds.link[link]].sum()) > _MOST_USES:
            link, begin, until = load.link, load.first, load.last
        row, place = entries(of_kind, self.creases.kinds.link[link])
        asked = load.peak_demand[np.searchsorted(load.link, link)][row]
        nobody = np.zeros(len(row), np.int64)
        return LinkOccupancy(every[place], begin[row], until[row], asked, nobody, nobody)


def fold(
    members: Sequence[CoScheduledOp],
    lies: Callable[[Collective], tuple[Cargo, Ways]],
    capacity: Floats,
    alike: float,
    known: MutableMapping[bytes, Creases | None],
) -> Fold | None:
    """Fold lines that share links; None where that does not even halve what is to be played.

    Parameters
    ----------
    members : sequence of CoScheduledOp
    lies : callable (Collective) -> (Cargo, Ways)
        How it lies on the fabric.
    capacity : float array
        Of every link [B/s].
    alike : float
        Bounds that differ by no more are the same [s].
    known : mapping
        What was found for such lines, by which ranks come at the same times; what is found here is added.
    """
    parts = [
        Part(line, op, *((None, None) if op.duration is not None else lies(op)))
        for line, member in enumerate(members)
        for op in member.collectives
    ]
    ready_times = _same([member.ready for member in members], alike)
    if ready_times is None:
        return None
    if ready_times.tobytes() not in known:
        known[ready_times.tobytes()] = _creases(parts, ready_times, capacity)
    found = known[ready_times.tobytes()]
    return Fold(members, parts, found) if found is not None else None


def _creases(parts: Sequence[Part], ready_times: Ints, capacity: Floats) -> Creases | None:
    found = kinds(parts, ready_times, capacity)
    if found is None:
        return None
    first = np.unique(found.part, return_index=True)[1]
    sheets = {}
    for number in sorted(first.tolist()):
        part = parts[number]
        if part.cargo is not None and part.ways is not None:
            sheet = Sheet.of(part.cargo, found.row[number])
            sheets[number] = sheet, sheet.written(part, part.ways, number, found, capacity)
    creases = Creases(found, first[found.part], sheets)
    return creases if 2 * len(creases) <= sum(len(part.cargo) for part in parts if part.cargo is not None) else None


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
