"""One walk through all lines of a program: when each begins and ends on every rank, if operations meet as is assumed.

Rule: a line is played when all that it waits for is known. Lines that share links are played together when the first of
them comes; where the others begin depends on what comes later, they are taken to begin as they did in the walk before,
as much later as the first one does now. Where such a line then comes otherwise, the walk goes back to the first one and
takes it to begin as it came: what happens depends only on what was before, so each time more of it is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled import kernels
from simulator.engine.compiled.crossing import crossing
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.joint import Member
from simulator.engine.compiled.meetings import Meeting
from simulator.engine.compiled.played import Together
from simulator.engine.compiled.teams import Teams
from simulator.engine.compiled.template import Line
from simulator.engine.jitter import Jitter, kernel_factors
from simulator.records.program import Collective, Compute

# What was assumed and what came of it may differ by rounding, over the time since the start.
_SETTLED: Final = 1e-13
# So often, for each of them, lines that are played together are played again before they are given up.
_MOST_TRIES: Final = 16
_ORIGIN: Final[Floats] = np.zeros(1)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where lines that are played together begin: the first of them, its place in the walk, how often they did not come
    as was assumed, and what was in flight.
    """

    place: int
    at: int
    tries: int
    flights: list[kernels.Interval]


@dataclass(slots=True)
class Walk:
    """Times by place in the program: arrays over ranks, or one number where all agree.

    Attributes
    ----------
    lines : tuple of Line
    ranks : int
    cluster : Cluster
    jitter : Jitter
    teams : Teams
    joint : mapping of place to places
        Lines that are played together, for each of them.
    before : Walk or None
        The walk before this one.
    played : dict of place to Together
        What became of collectives.
    """

    lines: tuple[Line, ...]
    ranks: int
    cluster: Cluster
    jitter: Jitter
    teams: Teams
    joint: Mapping[int, tuple[int, ...]]
    before: Walk | None
    starts: dict[int, Floats] = field(default_factory=dict)
    ends: dict[int, Floats] = field(default_factory=dict)
    played: dict[int, Together] = field(default_factory=dict)
    _waits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _assumed: dict[int, Floats] = field(default_factory=dict)
    _apart: dict[int, Floats] = field(default_factory=dict)
    _flights: list[kernels.Interval] = field(default_factory=list)
    _begun: dict[tuple[int, ...], _Mark] = field(default_factory=dict)

    def run(self) -> Walk:
        """Play every line.

        Raises
        ------
        DeclinedError
            What was assumed of a line that is played together with others does not come out however often it is tried.
        """
        order, at = self._in_order(), 0
        while at < len(order):
            line = order[at]
            if self._came_otherwise(line.place):
                at = self._back(line.place, order)
                continue
            if line.place in self.joint and line.place not in self.played:
                self._mark(line.place, at)
            self._play(line)
            at += 1
        return self

    def _came_otherwise(self, place: int) -> bool:
        """Whether a line that was played with an earlier one does not begin as was assumed."""
        if place not in self._assumed:
            return False
        bound = self._bound(place, self.ends)
        return bool((np.abs(bound - self._assumed[place]) > _SETTLED * np.abs(bound)).any())

    def _mark(self, place: int, at: int) -> None:
        """Note where lines that are played together begin."""
        mates = self.joint[place]
        tries = self._begun[mates].tries if mates in self._begun else 0
        self._begun[mates] = _Mark(place, at, tries, list(self._flights))

    def _back(self, place: int, order: Sequence[Line]) -> int:
        """Forget everything from the first of a line's mates on, but how much later than that one it came."""
        mates = self.joint[place]
        mark = self._begun[mates]
        if mark.tries == _MOST_TRIES * len(mates):
            raise DeclinedError("lines that share links do not settle")
        self._apart[place] = self._bound(place, self.ends) - self._bound(mark.place, self.ends)
        self._begun = {other: begun for other, begun in self._begun.items() if begun.at < mark.at}
        for line in order[mark.at :]:
            self.starts.pop(line.place, None)
            self.ends.pop(line.place, None)
            # What was played together with lines before that one stays as it is.
            if self.joint.get(line.place) not in self._begun:
                self.played.pop(line.place, None)
                self._assumed.pop(line.place, None)
        self._begun[mates] = replace(mark, tries=mark.tries + 1)
        self._flights = list(mark.flights)
        return mark.at

    def meetings(self) -> list[Meeting]:
        """Where flows of several lines were on one link at once that could not give all what they take alone."""
        loads = [
            (self._began(place), place, partial(self.teams.load, self.lines[place].teams, one))
            for place, one in self.played.items()
        ]
        found, looked_at = list[Meeting](), set[tuple[int, ...]]()
        for places in crossing(sorted(loads, key=lambda load: load[:2]), self.teams.capacity):
            if places not in looked_at:
                looked_at.add(places)
                found += self._among(places)
        return found

    def _began(self, place: int) -> float:
        """When the first of those that a line is played with began: the first one's use is that of all."""
        mates = self.joint.get(place, (place,))
        return min(float(self.played[mate].start.min()) for mate in mates)

    def _among(self, places: Sequence[int]) -> list[Meeting]:
        """Of lines that could meet: where they did."""
        lines = [(self.lines[place].teams, self.played[place]) for place in places]
        return [replace(m, whose=tuple(places[number] for number in m.whose)) for m in self.teams.met(lines)]

    def _in_order(self) -> list[Line]:
        """Operations, each after all that it needs; kernels that could be slowed come as late as they can.

        By then all collectives that do not wait for them are known, and others begin after their end.
        """
        streams: dict[str, list[Line]] = {}
        for line in self.lines:
            queue = streams.setdefault(line.op.stream, [])
            self._waits[line.place] = (*line.after, *((queue[-1].place,) if queue else ()))
            queue.append(line)
        at, over, found = dict.fromkeys(streams, 0), set[int](), list[Line]()
        while len(found) < len(self.lines):
            heads = [streams[stream][place] for stream, place in at.items() if place < len(streams[stream])]
            able = [line for line in heads if over.issuperset(line.after)]
            if not able:
                raise DeclinedError("operations wait for each other")
            line = next((line for line in able if not slowed(line)), able[0])
            at[line.op.stream] += 1
            over.add(line.place)
            found.append(line)
        return found

    def _play(self, line: Line) -> None:
        start = self._bound(line.place, self.ends)
        if isinstance(line.op, Compute):
            stretch = self._stretch(line)
            if slowed(line):
                self._flights = [(begin, end) for begin, end in self._flights if bool((end > start).any())]
            end = kernels.ends(start, line.alone * stretch, line.slowed * stretch, self._flights)
        elif line.teams:
            if line.place not in self.played:
                self._play_teams(line)
            found = self.played[line.place]
            start, end = start if found.start is start else _agreed(found.start), found.done
            if isinstance(line.op, Collective) and line.op.takes_sms:
                self._flights.append((start, _agreed(end)))
        else:
            end = start
        self.starts[line.place], self.ends[line.place] = start, _agreed(end)

    def _play_teams(self, line: Line) -> None:
        """Play a line's collectives, and with them those that share links with them."""
        places = self.joint.get(line.place, (line.place,))
        members = []
        for place in places:
            bound = np.broadcast_to(self._expected(place, line.place), self.ranks)
            follows = tuple(places.index(other) for other in self._waits[place] if other in places)
            members.append(Member(self.lines[place].teams, bound, follows))
            if len(places) > 1:
                self._assumed[place] = bound
        self.played |= dict(zip(places, self.teams.play(members), strict=True))

    def _bound(self, place: int, ends: Mapping[int, Floats]) -> Floats:
        """When all has ended that a line waits for, but for lines that are played together with it."""
        start, mates = _ORIGIN, self.joint.get(place, ())
        for other in self._waits[place]:
            if other not in mates:
                start = _later(start, ends[other])
        return start

    def _expected(self, place: int, first: int) -> Floats:
        """The bound of a line that is played together with `first`, which has come."""
        mates = self.joint.get(place, ())
        if all(other in self.ends for other in self._waits[place] if other not in mates):
            return self._bound(place, self.ends)
        if place in self._apart:
            apart = self._apart[place]
        else:
            before = self.ends if self.before is None else self.before.ends
            apart = self._bound(place, before) - self._bound(first, before)
        return np.maximum(self._bound(first, self.ends) + apart, 0.0)

    def _stretch(self, line: Line) -> Floats | float:
        on_gpu = isinstance(line.op, Compute) and line.op.on_gpu
        speed = np.array(self.cluster.speeds[: self.ranks]) if self.cluster.speeds and on_gpu else 1.0
        noise: Floats | float = 1.0
        if self.jitter.compute:
            noise = kernel_factors(self.jitter, np.arange(self.ranks), line.place)
        return noise / speed


def slowed(line: Line) -> bool:
    """Whether a line is kernels that communication slows."""
    return isinstance(line.op, Compute) and not bool(np.array_equal(line.alone, line.slowed))


def _later(one: Floats, other: Floats) -> Floats:
    """The larger of both; one of them itself where it is nowhere the smaller, for arrays of many ranks add up."""
    if len(other) >= len(one) and bool((other >= one).all()):
        return other
    if len(one) >= len(other) and bool((one >= other).all()):
        return one
    return np.maximum(one, other)


def _agreed(times: Floats) -> Floats:
    """One number where all are the same."""
    return times[:1] if len(times) > 1 and bool((times == times[0]).all()) else times
