"""Matches the entries of several ranks to collectives, and finds the last rank of each and collectives that hang.

The n-th collective of a process group has the sequence number n on each of its ranks. A rank whose last collective has
a smaller number has not arrived; a rank whose first recorded one has a larger number has overwritten the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulator.traces.flight_recorder.dump_reader import Dump, Entry


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective on its ranks."""

    group: str  # name of the process group
    number: int  # sequence number in the group
    place: int  # place among the operations of this number: coalesced operations share a number
    entries: tuple[Entry, ...]  # one for each rank that has issued it, by rank
    absent: tuple[int, ...]  # ranks of the group that have not issued it although their dump reaches to its time
    undumped: tuple[int, ...]  # ranks of the group without a dump

    @property
    def operation(self) -> str:
        """Kind of the operation on the first rank."""
        return self.entries[0].operation

    @property
    def unfinished(self) -> tuple[Entry, ...]:
        """Entries that have not completed."""
        return tuple(entry for entry in self.entries if entry.state != "completed")

    @property
    def not_begun(self) -> tuple[Entry, ...]:
        """Entries whose GPU has not begun the collective: earlier work keeps the rank from it."""
        return tuple(entry for entry in self.entries if entry.state == "scheduled")

    @property
    def hangs(self) -> bool:
        """True if a rank has not completed the collective, or has not arrived to one that others have issued."""
        return bool(self.unfinished)

    @property
    def disagreement(self) -> tuple[Entry, Entry] | None:
        """Two entries with different operations or sizes; None if all ranks agree.

        Sizes are compared for operations whose arrays are equal on all ranks.
        """
        first = self.entries[0]
        for other in self.entries[1:]:
            if other.operation != first.operation:
                return first, other
            sized = first.nbytes is not None and other.nbytes is not None and first.operation in _EQUAL
            if sized and first.nbytes != other.nbytes:
                return first, other
        return None

    @property
    def last(self) -> int | None:
        """Rank that arrived last; None for one rank, for a collective that hangs, or if the entries do not say.

        A rank that arrives early waits in the collective: the rank with the shortest time arrived last. Without times
        on the GPU, the rank whose host issued the collective last arrived last, which needs clocks that agree.
        """
        if len(self.entries) < 2 or self.hangs:
            return None
        durations = [entry.duration for entry in self.entries]
        times = [duration for duration in durations if duration is not None]
        if len(times) == len(durations):
            return self.entries[times.index(min(times))].rank if max(times) > min(times) else None
        created = [entry.created for entry in self.entries if entry.created is not None]
        if len(created) < len(self.entries) or max(created) == min(created):
            return None
        return self.entries[created.index(max(created))].rank

    @property
    def waited(self) -> float | None:
        """How much longer the first rank was in the collective than the last [s]; None if not known, or if it hangs."""
        if self.hangs:
            return None
        durations = [entry.duration for entry in self.entries if entry.duration is not None]
        if len(durations) == len(self.entries) > 1:
            return max(durations) - min(durations)
        created = [entry.created for entry in self.entries if entry.created is not None]
        return (max(created) - min(created)) * 1e-9 if len(created) == len(self.entries) > 1 else None

    @property
    def time(self) -> float | None:
        """Time of the collective after the last rank arrived [s]; None without times on the GPU."""
        durations = [entry.duration for entry in self.entries if entry.duration is not None]
        return min(durations, default=None)


# Operations whose larger array is equal on all ranks.
_EQUAL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def collectives_of(dumps: Sequence[Dump]) -> tuple[RecordedCollective, ...]:
    """Return the collectives of the dumps, by group and number; sends and receives are left out."""
    by_place: dict[tuple[str, int, int], list[Entry]] = {}
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for dump in dumps:
        count: dict[tuple[str, int], int] = {}
        for entry in dump.entries:
            if entry.point_to_point:
                continue
            key = entry.group, entry.number
            place = count.get(key, 0)
            count[key] = place + 1
            by_place.setdefault((*key, place), []).append(entry)
            low, high = ranges.get((entry.group, dump.rank), (entry.number, entry.number))
            ranges[entry.group, dump.rank] = min(low, entry.number), max(high, entry.number)
    members = _members(dumps, ranges)
    return tuple(_collectives(by_place, ranges, members, [dump.rank for dump in dumps]))


def _collectives(
    by_place: Mapping[tuple[str, int, int], list[Entry]],
    ranges: Mapping[tuple[str, int], tuple[int, int]],
    members: Mapping[str, Sequence[int]],
    dumped: Sequence[int],
) -> Iterator[RecordedCollective]:
    with_dump = set(dumped)
    for group, number, place in sorted(by_place):
        entries = tuple(by_place[group, number, place])
        issued = {entry.rank for entry in entries}
        absent = [
            rank
            for rank in members[group]
            if rank in with_dump and rank not in issued and ranges.get((group, rank), (0, -1))[1] < number
        ]
        undumped = [rank for rank in members[group] if rank not in with_dump]
        yield RecordedCollective(group, number, place, entries, tuple(absent), tuple(undumped))


def _members(dumps: Sequence[Dump], ranges: Mapping[tuple[str, int], object]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group: as a dump says, or else the ranks with entries of the group."""
    with_entries: dict[str, list[int]] = {}
    for group, rank in ranges:
        with_entries.setdefault(group, []).append(rank)
    declared = {group: ranks for dump in dumps for group, ranks in dump.groups.items()}
    return {group: tuple(sorted({*declared.get(group, ()), *ranks})) for group, ranks in with_entries.items()}


def first_hangs(collectives: Sequence[RecordedCollective]) -> tuple[RecordedCollective, ...]:
    """Return the first collective of each group that hangs, the one that began earliest first."""
    first: dict[str, RecordedCollective] = {}
    for call in collectives:
        if call.hangs:
            first.setdefault(call.group, call)
    return tuple(sorted(first.values(), key=lambda call: (_begin(call), call.group)))


def first_disagreement(collectives: Sequence[RecordedCollective]) -> RecordedCollective | None:
    """Return the earliest collective whose ranks disagree on operation or size; None if there is none."""
    conflicts = [call for call in collectives if call.disagreement is not None]
    return min(conflicts, key=lambda call: (_begin(call), call.group, call.number), default=None)


def _begin(call: RecordedCollective) -> int:
    """Return when a collective was first issued [ns]."""
    return min((entry.created for entry in call.entries if entry.created is not None), default=0)
