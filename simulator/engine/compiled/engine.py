"""The compiled engine: plays a Program as arrays over ranks, one operation of all ranks at a time.

Rule: plays as if operations shared nothing with each other, then proves that they did not, or declines. It gives the
events engine's answer to 1e-9; where it cannot prove it, it gives none. As long as ranks keep step, one number stands
for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from simulator.cluster.cluster import Cluster
from simulator.engine.compiled import kernels
from simulator.engine.compiled.busiest import busiest
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.meetings import first_meeting, joined, refuse
from simulator.engine.compiled.played import Played
from simulator.engine.compiled.teams import Teams, Together
from simulator.engine.compiled.template import Line, active, template
from simulator.engine.jitter import Jitter, kernel_factors
from simulator.engine.recording import Moment, memory_over_time, timeline_of
from simulator.program import Collective, Compute, Program
from simulator.timeline import Later, Span, Timeline, TransferLog

NAME = "compiled"
Floats = npt.NDArray[np.float64]
# Beyond so many transfers only the busiest link is told: the others' busy times would need every transfer.
_MOST_BOOKED = 2**19


def execute(
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
    keep: Collection[int] | None = None,
) -> Timeline:
    """Play a program to its end, or decline.

    Parameters and result are those of `engine.events.execute`, without payload.

    Raises
    ------
    DeclinedError
        It cannot be proven that this is the events engine's answer; the message says why.
    OutOfMemoryError
        As there.
    """
    if len(program.ranks) > cluster.world_size:
        raise DeclinedError("more ranks than the cluster has")
    play = _Play(program, cluster, jitter or Jitter(), template(program))
    play.run()
    return play.timeline(keep, limit_memory=limit_memory, allocator=allocator)


@dataclass(slots=True)
class _Play:
    """Times by place in the program: arrays over ranks, or one number where all agree."""

    program: Program
    cluster: Cluster
    jitter: Jitter
    lines: tuple[Line, ...]
    starts: dict[int, Floats] = field(default_factory=dict)
    ends: dict[int, Floats] = field(default_factory=dict)
    flights: list[kernels.Interval] = field(default_factory=list)
    played: dict[int, tuple[float, Together]] = field(default_factory=dict)
    teams: Teams = field(init=False)

    active: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.active = active(self.program)
        self.teams = Teams.of(self.program, self.cluster, self.jitter)

    @property
    def ranks(self) -> int:
        return len(self.program.ranks)

    def run(self) -> None:
        """Play every line, and prove that none disturbed another."""
        if len({line.op.stream for line in self.lines if _slowed(line)}) > 1:
            raise DeclinedError("kernels of several streams are slowed by communication")
        for line in self._in_order():
            self._play(line)
        self._prove()

    def _in_order(self) -> Iterator[Line]:
        """Operations, each after all that it needs; kernels that could be slowed come as late as they can.

        By then all collectives that do not wait for them are known, and others begin after their end.
        """
        streams: dict[str, list[Line]] = {}
        for line in self.lines:
            streams.setdefault(line.op.stream, []).append(line)
        at = dict.fromkeys(streams, 0)
        left = len(self.lines)
        while left:
            heads = [streams[stream][place] for stream, place in at.items() if place < len(streams[stream])]
            able = [line for line in heads if all(place in self.ends for place in line.after)]
            if not able:
                raise DeclinedError("operations wait for each other")
            line = next((line for line in able if not _slowed(line)), able[0])
            before = at[line.op.stream]
            if before:
                self.starts[line.place] = self.ends[streams[line.op.stream][before - 1].place]
            at[line.op.stream] += 1
            left -= 1
            yield line

    def _play(self, line: Line) -> None:
        start = self.starts.get(line.place, np.zeros(1))
        for place in line.after:
            start = np.maximum(start, self.ends[place])
        self.starts[line.place] = start
        if isinstance(line.op, Compute):
            stretch = self._stretch(line)
            if _slowed(line):
                self.flights = [(begin, end) for begin, end in self.flights if bool((end > start).any())]
            end = kernels.ends(start, line.alone * stretch, line.slowed * stretch, self.flights)
        elif line.teams:
            zero, found = self.teams.play(line.teams, np.broadcast_to(start, self.ranks))
            self.played[line.place] = zero, found
            end = found.done + zero
            if isinstance(line.op, Collective) and line.op.takes_sms:
                self.flights.append((start, _agreed(end)))
        else:
            end = start
        self.ends[line.place] = _agreed(end)

    def _stretch(self, line: Line) -> Floats | float:
        on_gpu = isinstance(line.op, Compute) and line.op.on_gpu
        speed = np.array(self.cluster.speeds[: self.ranks]) if self.cluster.speeds and on_gpu else 1.0
        noise: Floats | float = 1.0
        if self.jitter.compute:
            noise = kernel_factors(self.jitter, np.arange(self.ranks), line.place)
        return noise / speed

    def _prove(self) -> None:
        """DeclinedError where flows of two lines were on one link at once."""
        on_links = [
            (zero + float(found.use.enter.min()), zero + float(found.use.end.max()), place)
            for place, (zero, found) in self.played.items()
            if found.use is not None and len(found.use.link)
        ]
        for places in _crossing(sorted(on_links)):
            uses = [(self.played[place][0], self.played[place][1].use) for place in places]
            if first_meeting(joined([use.later(zero) for zero, use in uses if use is not None])):
                self._look_closely(places)

    def _look_closely(self, places: Sequence[int]) -> None:
        """The same flow by flow, where all flows of a channel, taken as one, are too many."""
        uses, names = [], []
        for place in places:
            zero, found = self.played[place]
            use = self.teams.every_flow(self.lines[place].teams, found)
            if use is not None:
                uses.append(use.later(zero))
                names += [op.name for op in self.lines[place].teams if op.duration is None]
        use = joined(uses)
        met = first_meeting(use)
        if met is not None:
            raise refuse(use, met, names, self.teams.link_name)

    def timeline(self, keep: Collection[int] | None, *, limit_memory: bool, allocator: str | None) -> Timeline:
        """Write down what happened, on all ranks or on those that are to be kept and the one that ends last."""
        ends = np.max([np.broadcast_to(end, self.ranks) for end in self.ends.values()], axis=0)
        kept = self.active if keep is None else sorted({*keep, self.active[int(np.argmax(ends[self.active]))]})
        memory = memory_over_time(
            self.program,
            self.cluster,
            self._moments(kept, alone=keep is not None),
            limit=limit_memory,
            allocator=allocator,
        )
        teams = self._teams()
        found = timeline_of(
            NAME,
            self.cluster,
            self._spans(kept),
            Later([partial(self._log, *team) for team in teams]),
            memory,
            [(op.name, self.teams.wirings[op.name]) for op, *_ in teams],
        )
        if sum(sent.transfers for sent in found.sent) <= _MOST_BOOKED:
            return found
        flights = [(self.teams.wirings[op.name], zero, _played(together, n)) for op, zero, together, n in teams]
        return replace(found, links=busiest(flights, self.cluster.router))

    def _moments(self, kept: Sequence[int], *, alone: bool) -> dict[int, list[Moment]]:
        """Of the ranks that are kept; where they stand alone, also of one of each other kind of rank."""
        on_hbm = [line.place for line in self.lines if not isinstance(line.op, Compute | Collective)]
        times = [self.ends[place] for place in on_hbm]
        ranks = {*kept, *(self._unlike(times) if alone else ())}
        return {
            rank: [(float(at[rank if len(at) > 1 else 0]), place) for at, place in zip(times, on_hbm, strict=True)]
            for rank in sorted(ranks)
        }

    def _unlike(self, times: Sequence[Floats]) -> list[int]:
        """The first rank of each kind: of one GPU's size, and with operations on memory in one order."""
        if not times:
            return self.active[:1]
        sizes = np.array([self.cluster.gpus[rank].hbm_bytes for rank in self.active], np.float64)
        if all(len(at) == 1 for at in times):
            return [self.active[i] for i in np.unique(sizes, return_index=True)[1].tolist()]
        table = np.stack([np.broadcast_to(at, self.ranks)[self.active] for at in times])
        order = np.vstack([np.argsort(table, axis=0, kind="stable"), sizes])
        first: dict[bytes, int] = {}
        for column, rank in zip(order.T, self.active, strict=True):
            first.setdefault(column.tobytes(), rank)
        return list(first.values())

    def _teams(self) -> list[tuple[Collective, float, Together, int]]:
        """Every collective that was played, in the program's order, and its number in its line."""
        order = {name: number for number, name in enumerate(self.teams.wirings)}
        found = [
            (op, *self.played[line.place], number)
            for line in self.lines
            for number, op in enumerate(line.teams)
            if op.duration is None
        ]
        return sorted(found, key=lambda team: order[team[0].name])

    def _log(self, op: Collective, zero: float, together: Together, number: int) -> TransferLog:
        wiring = self.teams.wirings[op.name]
        enter, end = _played(together, number).times()
        columns = (wiring.nbytes, enter + zero, end + zero, wiring.route)
        return TransferLog(op.name, wiring.transfers, *columns, wiring.links, wiring.vertices)

    def _spans(self, kept: Sequence[int]) -> Iterator[Span]:
        for rank in kept:
            for place, op in enumerate(self.program.ranks[rank]):
                start, end = (float(at[rank if len(at) > 1 else 0]) for at in (self.starts[place], self.ends[place]))
                if isinstance(op, Compute):
                    yield Span(rank, op.stream, op.name, op.kind, start, end, op.nbytes, op.flops)
                elif isinstance(op, Collective):
                    yield Span(rank, op.stream, op.name, op.schedule.operation, start, end, float(op.nbytes))


def _played(together: Together, number: int) -> Played:
    found = together.played[number]
    assert found is not None
    return found


def _slowed(line: Line) -> bool:
    return isinstance(line.op, Compute) and not bool(np.array_equal(line.alone, line.slowed))


def _agreed(times: Floats) -> Floats:
    """One number where all are the same."""
    return times[:1] if len(times) > 1 and bool((times == times[0]).all()) else times


def _crossing(intervals: Sequence[tuple[float, float, int]]) -> Iterator[list[int]]:
    """Sorted intervals (begin, end, place) that hang together because they overlap; the places of several each."""
    together: list[int] = []
    until = -np.inf
    for begin, end, place in intervals:
        if begin >= until:
            if len(together) > 1:
                yield together
            together = []
        together.append(place)
        until = max(until, end)
    if len(together) > 1:
        yield together
