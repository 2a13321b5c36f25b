"""The compiled engine: plays a Program as arrays over ranks, one operation of all ranks at a time.

Rule: plays as if nothing were shared, then proves that nothing was, or declines. It gives the events engine's answer to
1e-9; where it cannot prove it, it gives none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.cluster.cluster import Cluster
from simulator.engine.compiled import kernels
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.meetings import Use, refuse_shared, use_of
from simulator.engine.compiled.rounds import Played, Shape, play, shape_of
from simulator.engine.compiled.template import Line, template
from simulator.engine.jitter import Jitter, kernel_factors, latency_factors
from simulator.engine.recording import Moment, memory_over_time, timeline_of
from simulator.engine.wiring import Wiring, capacities, wire
from simulator.program import Collective, Compute, Program
from simulator.timeline import Span, Timeline, TransferLog

NAME = "compiled"
Floats = npt.NDArray[np.float64]


def execute(
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
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
    return _Compiled(program, cluster, jitter or Jitter()).timeline(limit_memory=limit_memory, allocator=allocator)


@dataclass(slots=True)
class _Compiled:
    program: Program
    cluster: Cluster
    jitter: Jitter
    lines: tuple[Line, ...] = ()
    starts: dict[int, Floats] = field(default_factory=dict)
    ends: dict[int, Floats] = field(default_factory=dict)
    flights: list[kernels.Interval] = field(default_factory=list)
    played: dict[str, tuple[Wiring, Played]] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    _capacity: list[float] = field(default_factory=list)
    _wirings: dict[str, Wiring] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _shapes: dict[tuple[object, ...], Shape] = field(default_factory=dict)
    _known: dict[tuple[int, bytes], Played] = field(default_factory=dict)

    def timeline(self, *, limit_memory: bool, allocator: str | None) -> Timeline:
        """Play, prove, and write down."""
        if len(self.program.ranks) > self.cluster.world_size:
            raise DeclinedError("more ranks than the cluster has")
        self.lines = template(self.program)
        self._capacity = capacities(self.cluster)
        ops = [op for op in self.program.collectives().values() if op.duration is None]
        self._wirings = dict(zip((op.name for op in ops), wire(self.cluster, ops, self._capacity), strict=True))
        self._numbers = {op.name: number for number, op in enumerate(ops)}
        if len({line.op.stream for line in self.lines if _slowed(line)}) > 1:
            raise DeclinedError("kernels of several streams are slowed by communication")
        for line in self._in_order():
            self._play(line)
        refuse_shared(self.uses, self._link_name)
        memory = memory_over_time(self.program, self.cluster, self._moments(), limit=limit_memory, allocator=allocator)
        return timeline_of(NAME, self.cluster, self._spans(), tuple(self._logs()), memory)

    def _link_name(self, link: int) -> str:
        """Ranks' HBM is numbered behind the links."""
        links = len(self.cluster.router.bandwidth)
        return self.cluster.router.link_name(link) if link < links else f"HBM of rank {link - links}"

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
        start = self.starts.get(line.place, np.zeros(len(self.program.ranks)))
        for place in line.after:
            start = np.maximum(start, self.ends[place])
        self.starts[line.place] = start
        if isinstance(line.op, Compute):
            stretch = self._stretch(line)
            if _slowed(line):
                self.flights = [(begin, end) for begin, end in self.flights if bool((end > start).any())]
            self.ends[line.place] = kernels.ends(start, line.alone * stretch, line.slowed * stretch, self.flights)
        elif line.groups:
            end = np.empty_like(start)
            for op in line.groups:
                group = np.array(op.group)
                end[group] = self._collective(op, start[group])
            self.ends[line.place] = end
            if isinstance(line.op, Collective) and line.op.takes_sms:
                self.flights.append((start, end))
        else:
            self.ends[line.place] = start

    def _stretch(self, line: Line) -> Floats | float:
        ranks = len(self.program.ranks)
        on_gpu = isinstance(line.op, Compute) and line.op.on_gpu
        speed = np.array(self.cluster.speeds[:ranks]) if self.cluster.speeds and on_gpu else 1.0
        noise: Floats | float = 1.0
        if self.jitter.compute:
            noise = kernel_factors(self.jitter, np.arange(ranks), line.place)
        return noise / speed

    def _collective(self, op: Collective, start: Floats) -> Floats:
        """When each rank of a group is through that reaches it then."""
        if op.duration is not None:
            return np.full(len(start), start.max() + op.duration)
        begun = np.full(len(start), start.max()) if op.together else start
        begun = begun + op.startup
        shape = self._shape(op)
        zero = float(begun.min())
        key = (id(shape), (begun - zero).tobytes())
        if key not in self._known:
            self._known[key] = play(shape, begun - zero)
        relative = self._known[key]
        found = Played(relative.enter + zero, relative.end + zero, relative.done + zero, relative.crowd)
        self.played[op.name] = (shape.wiring, found)
        use = use_of(op.name, shape, found)
        if use is not None:
            self.uses.append(use)
        return found.done

    def _shape(self, op: Collective) -> Shape:
        """The same for collectives that are alike in everything but when they are played."""
        wiring = self._wirings[op.name]
        noise = latency_factors(self.jitter, self._numbers[op.name], op, wiring.transfers.src)
        key: tuple[object, ...] = (id(op.schedule), op.elements, op.itemsize, op.reduce_itemsize, wiring.paths)
        if noise is not None:
            key = (*key, op.name)
        if key not in self._shapes:
            self._shapes[key] = shape_of(op.schedule, wiring, len(op.group), noise, self._capacity)
        return self._shapes[key]

    def _moments(self) -> Iterator[Moment]:
        """Every taking and giving of memory."""
        for line in self.lines:
            if not isinstance(line.op, Compute | Collective):
                for rank, time in enumerate(self.ends[line.place].tolist()):
                    yield time, rank, line.place

    def _spans(self) -> Iterator[Span]:
        for line in self.lines:
            if isinstance(line.op, Compute | Collective):
                starts, ends = self.starts[line.place].tolist(), self.ends[line.place].tolist()
                for rank, ops in enumerate(self.program.ranks):
                    op = ops[line.place]
                    if isinstance(op, Compute):
                        yield Span(rank, op.stream, op.name, op.kind, starts[rank], ends[rank], op.nbytes, op.flops)
                    elif isinstance(op, Collective):
                        kind = op.schedule.operation
                        yield Span(rank, op.stream, op.name, kind, starts[rank], ends[rank], float(op.nbytes))

    def _logs(self) -> Iterator[TransferLog]:
        for name in self._wirings:
            wiring, found = self.played[name]
            columns = (wiring.nbytes, found.enter, found.end, wiring.route)
            yield TransferLog(name, wiring.transfers, *columns, wiring.links, wiring.vertices)


def _slowed(line: Line) -> bool:
    return isinstance(line.op, Compute) and not bool(np.array_equal(line.alone, line.slowed))
