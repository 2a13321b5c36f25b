"""One walk through all lines of a program: when each begins and ends on every rank, if operations meet as is assumed.

Rule: a line is played when all that it waits for is known. Lines that share links are played together when the first of
them comes; where the others begin depends on what comes later, they are taken to begin as they did in the walk before,
as much later as the first one does now. Whether that was right is known at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

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
from simulator.program import Collective, Compute

Floats = npt.NDArray[np.float64]
# What was assumed and what came of it may differ by rounding, over the time since the start.
_SETTLED: Final = 1e-13
_ORIGIN: Final[Floats] = np.zeros(1)


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
    _flights: list[kernels.Interval] = field(default_factory=list)

    def run(self) -> Walk:
        """Play every line."""
        for line in self._in_order():
            self._play(line)
        return self

    def settled(self) -> bool:
        """Whether lines that were played together began as was assumed."""
        for place, assumed in self._assumed.items():
            bound = self._bound(place, self.ends)
            if bool((np.abs(bound - assumed) > _SETTLED * np.abs(bound)).any()):
                return False
        return True

    def meetings(self) -> list[Meeting]:
        """Where flows of several lines were on one link at once that could not give all what they take alone."""
        loads = [(place, partial(self.teams.load, self.lines[place].teams, one)) for place, one in self.played.items()]
        found, looked_at = list[Meeting](), set[tuple[int, ...]]()
        for places in crossing(sorted(loads, key=lambda load: self._began(load[0])), self.teams.capacity):
            if places not in looked_at:
                looked_at.add(places)
                found += self._among(places)
        return found

    def _began(self, place: int) -> tuple[float, int]:
        return float(self.played[place].start.min()), place

    def _among(self, places: Sequence[int]) -> list[Meeting]:
        """Of lines that could meet: where they did."""
        lines = [(self.lines[place].teams, self.played[place]) for place in places]
        return [replace(m, whose=tuple(places[number] for number in m.whose)) for m in self.teams.met(lines)]

    def _in_order(self) -> Iterator[Line]:
        """Operations, each after all that it needs; kernels that could be slowed come as late as they can.

        By then all collectives that do not wait for them are known, and others begin after their end.
        """
        streams: dict[str, list[Line]] = {}
        for line in self.lines:
            queue = streams.setdefault(line.op.stream, [])
            self._waits[line.place] = (*line.after, *((queue[-1].place,) if queue else ()))
            queue.append(line)
        at = dict.fromkeys(streams, 0)
        left = len(self.lines)
        while left:
            heads = [streams[stream][place] for stream, place in at.items() if place < len(streams[stream])]
            able = [line for line in heads if all(place in self.ends for place in line.after)]
            if not able:
                raise DeclinedError("operations wait for each other")
            line = next((line for line in able if not slowed(line)), able[0])
            at[line.op.stream] += 1
            left -= 1
            yield line

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
        before = self.ends if self.before is None else self.before.ends
        late = self._bound(first, self.ends) - self._bound(first, before)
        return np.maximum(self._bound(place, before) + late, 0.0)

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
