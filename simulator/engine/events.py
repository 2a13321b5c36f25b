"""The events engine: simulates a Program on a Cluster with SimPy, with contention, stragglers, jitter and payload.

Each rank has a coroutine per stream, and a stream runs one operation at a time, in order. This engine is the readable
reference for the compiled engine.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import simpy

from simulator.basics.errors import DeadlockError
from simulator.basics.intervals import length
from simulator.basics.progress import tell
from simulator.cluster.changes import RateChange
from simulator.cluster.cluster import Cluster
from simulator.collectives.payload.carry import Payload, carry_all
from simulator.engine.clock import Clock
from simulator.engine.collective_play import CollectivePlay
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.compute_stream import Kernels
from simulator.engine.fabric import Fabric
from simulator.engine.jitter import Jitter, kernel_factors, latency_factors
from simulator.engine.program_checks import changes_of, check_program, never_ends, waiting_text
from simulator.engine.recording import in_order, memory_events, memory_over_time, of_ranks, timeline_of
from simulator.engine.timed_collective import TimedCollective
from simulator.records.lazy import LazyValues
from simulator.records.operation import ISSUE, Collective, Compute, Op
from simulator.records.program import Program
from simulator.records.timeline import CollectiveTotals, Span, Timeline, by_rank

NAME: Final = "events"


def execute(
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    payloads: Mapping[str, Payload] | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
    keep: Collection[int] | None = None,
    watch_all: bool = False,
) -> Timeline:
    """Simulate a program on a cluster with the events engine (a SimPy coroutine per stream); return the Timeline.

    Parameters
    ----------
    program : Program
        Operations of each rank.
    cluster : Cluster
        GPUs and links.
    jitter : Jitter, optional
        Noise on kernels and latencies.
    payloads : mapping of collective name to Payload, optional
        Arrays that the collectives change in place.
    limit_memory : bool
        True: exceeding a GPU's HBM is an error. False: the timeline names the ranks that lack memory.
    allocator : str, optional
        "caching" or "expandable_segments"; if omitted, bytes are only counted.
    keep : collection of int, optional
        Ranks whose spans are kept, in addition to the rank that ends last; if omitted, spans of all ranks.
    watch_all : bool
        True: watch every link, not only links where flows can hold each other back. The result is the same and takes
        longer; tests use it to check `prune_links`.

    Returns
    -------
    Timeline
        Equal with and without payload.

    Raises
    ------
    DeadlockError
        No event is left although operations have not ended; the message says which operations wait for what.
    OutOfMemoryError
        A rank needs more HBM than it has.
    ValueError
        The program contradicts itself: unknown names in `after`, or ranks that do not exist.
    """
    play = _Play(program, cluster, jitter or Jitter(), limit_memory, allocator, watch_all=watch_all)
    play.run()
    timeline = play.timeline()
    if payloads:
        carry_all(program, timeline, payloads)
    return timeline if keep is None else of_ranks(timeline, keep)


def execute_until_stuck(program: Program, cluster: Cluster, jitter: Jitter) -> tuple[Timeline, str]:
    """Simulate a program on a cluster, with unlimited memory, until the end or a deadlock.

    Returns
    -------
    tuple of (Timeline, str)
        Operations that ended, and which operations wait for what; empty text if everything ended.
    """
    play = _Play(program, cluster, jitter, limit_memory=False, allocator=None)
    try:
        play.run()
    except DeadlockError as error:
        return play.timeline(), str(error)
    return play.timeline(), ""


@dataclass(slots=True)
class _Place:
    """A stream's present operation and the awaited operation, for reports of deadlocks."""

    rank: int
    stream: str
    at: Op | None = None
    awaiting: str | None = None


@dataclass(slots=True)
class _Play:
    """State of a simulation with the events engine."""

    program: Program
    cluster: Cluster
    jitter: Jitter
    limit_memory: bool
    allocator: str | None
    clock: Clock = field(default_factory=Clock)
    collectives: dict[str, CollectivePlay] = field(default_factory=dict)  # with simulated transfers, by name
    timed: dict[str, TimedCollective] = field(default_factory=dict)  # in closed form, by name
    kernels: list[Kernels] = field(default_factory=list)  # by rank
    places_in: dict[str, dict[int, int]] = field(default_factory=dict)  # participant number of each rank, by name
    last_came: dict[str, float] = field(default_factory=dict)  # latest arrival, by name [s]
    spans: list[Span] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    # (place in the program, time) by rank.
    memory_events: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    ended: list[dict[str, simpy.Event]] = field(default_factory=list)  # end of each operation, by rank and name
    running: int = 0  # streams that have not finished
    noted: int = 0  # ended operations, for progress
    watch_all: bool = False
    routed_collectives: dict[str, RoutedCollective] = field(default_factory=dict)

    def run(self) -> None:
        """Run the simulation with a coroutine for each stream; DeadlockError if a stream has not ended."""
        self._prepare()
        for rank, ops in enumerate(self.program.ranks):
            streams: dict[str, list[tuple[int, Op]]] = {}
            for number, op in enumerate(ops):
                streams.setdefault(op.stream, []).append((number, op))
            for stream, queue in streams.items():
                place = _Place(rank, stream)
                self.places.append(place)
                self.running += 1
                self.clock.process(self._stream(place, queue))
        operations = sum(map(len, self.program.ranks))
        self.clock.play(lambda: tell("simulating", self.noted / max(operations, 1), self.clock.now))
        # The queue is empty but a stream still waits: a deadlock.
        if self.running:
            raise DeadlockError(self.clock.now, {_who(p): self._what(p) for p in self.places if p.at is not None})
        # The ranks have gone on while the write of a checkpoint waits for a link.
        if waiting := next((name for name, collective in self.collectives.items() if not collective.has_ended), None):
            raise never_ends(self.clock.now, waiting)

    def _prepare(self) -> None:
        """Check the program, route its collectives, and create the events for operations' ends."""
        check_program(self.program, self.cluster)
        ranks = self.program.ranks
        capacity = capacities(self.cluster)
        fabric = Fabric(self.clock, capacity, self.cluster.changing_links)
        ops = {name: op for name, op in self.program.collectives().items() if op.duration is None}
        for op in self.program.collectives().values():
            self.places_in[op.name] = {rank: place for place, rank in enumerate(op.group)}
            if op.duration is not None:
                self.timed[op.name] = TimedCollective(self.clock, op)
        routed_collectives = route_collectives(self.cluster, list(ops.values()), capacity, watch_all=self.watch_all)
        self.routed_collectives = dict(zip(ops, routed_collectives, strict=True))
        # Closed-form collectives are not numbered, just like in the compiled engine: both draw equal noise.
        for number, (name, routed) in enumerate(self.routed_collectives.items()):
            jitter = latency_factors(self.jitter, number, ops[name], routed.transfers.src)
            self.collectives[name] = CollectivePlay(self.clock, fabric, ops[name], routed, jitter)
        for rank in range(len(ranks)):
            self.kernels.append(Kernels(self.clock))
            self.memory_events[rank] = []
            self.ended.append({op.name: simpy.Event(self.clock) for op in ranks[rank]})
        for change in changes_of(self.program, self.cluster):
            self.clock.when(change.time, partial(self._change, change, fabric, capacity))

    def _change(self, change: RateChange, fabric: Fabric, capacity: Sequence[float]) -> None:
        """Slow links and GPUs down, or let them recover; `capacity` has the links' usual capacities [B/s]."""
        # Also after the last operation: the write of a checkpoint may still be under way.
        fabric.change({link: capacity[link] * factor for link, factor in change.links.items()})
        for rank, factor in change.ranks.items():
            self.kernels[rank].run_at(factor)
        detour = self.cluster.avoided.index(change.avoided)
        for collective in self.collectives.values():
            collective.reroute(detour)
        fabric.reroute(change.avoided)

    def _stream(self, place: _Place, queue: list[tuple[int, Op]]) -> Generator[simpy.Event, Any, None]:
        """Run a stream's numbered operations one by one in a SimPy process; keep `place` up to date for reports."""
        for number, op in queue:
            place.at = op
            for name in op.after:
                place.awaiting = name
                if not self.ended[place.rank][name].processed:
                    yield self.ended[place.rank][name]
            place.awaiting = None
            start = self.clock.now
            yield from self._play(place.rank, number, op)
            self.ended[place.rank][op.name].succeed()
            self._note(place, op, start)
        place.at = None
        self.running -= 1

    def _play(self, rank: int, number: int, op: Op) -> Generator[simpy.Event, Any, None]:
        """Run operation `op`, at index `number` in a rank's program, within a SimPy process."""
        if isinstance(op, Compute):
            stretch = self._stretch(rank, number, op)
            slowed = op.duration if op.contended is None else op.contended
            yield self.kernels[rank].run(op.duration * stretch, slowed * stretch, on_gpu=op.on_gpu)
        elif isinstance(op, Collective):
            # The collective counts from its arrival on: its kernels occupy SMs while they wait.
            self.kernels[rank].communicate(+op.takes_sms)
            yield from self._communicate(rank, op)
            self.kernels[rank].communicate(-op.takes_sms)
        else:
            self.memory_events[rank].append((number, self.clock.now))

    def _communicate(self, rank: int, op: Collective) -> Generator[simpy.Event, Any, None]:
        """Let `rank` take part in a collective within a SimPy process, from arrival to the rank's own end."""
        place = self.places_in[op.name][rank]
        # Each arrival overwrites the former, so the last rank's arrival remains.
        self.last_came[op.name] = self.clock.now
        if op.duration is not None:
            yield self.timed[op.name].reach(place)
        else:
            collective = self.collectives[op.name]
            if op.together:
                yield collective.gather(place)
            if op.startup:
                yield self.clock.reach(self.clock.now + op.startup)
            collective.reach(place)
            yield collective.done[place]

    def _stretch(self, rank: int, number: int, kernel: Compute) -> float:
        """Return the factor on a kernel's duration: work x noise / GPU speed; it is operation `number` on `rank`."""
        speed = self.cluster.speeds[rank] if self.cluster.speeds and kernel.on_gpu else 1.0
        noise = 1.0
        if self.jitter.compute:
            noise = float(kernel_factors(self.jitter, np.array([rank]), number)[0])
        work = 1.0 if kernel.work < 0 else float(self.program.work[kernel.work, rank])
        return work * (noise / speed)

    def _note(self, place: _Place, op: Op, start: float) -> None:
        """Record an operation, started at `start` [s] and ending now, in a span on the stream in `place`."""
        self.noted += 1
        end = self.clock.now
        if isinstance(op, Compute):
            self.spans.append(Span(place.rank, place.stream, op.name, op.kind, start, end, op.nbytes, op.flops))
        elif isinstance(op, Collective):
            kind = op.schedule.operation
            start = self.last_came[op.name] if op.rendezvous else start
            is_given = op.duration is not None
            self.spans.append(
                Span(place.rank, place.stream, op.name, kind, start, end, float(op.nbytes), 0.0, is_given)
            )

    def _what(self, place: _Place) -> str:
        """Return the operation or ranks for which a stream waits, in words."""
        if place.at is None:
            return "nothing"
        name = place.at.name
        missing = []
        if isinstance(place.at, Collective):
            missing = (self.timed[name] if name in self.timed else self.collectives[name]).missing()
        return waiting_text(place.at, place.awaiting, missing)

    def timeline(self) -> Timeline:
        """Return the Timeline with everything recorded so far: spans, transfers, memory and links."""
        events = {}
        for rank, of_rank in self.memory_events.items():
            # Sorted by place in the program, which decides the order at equal times.
            numbers, times = np.array(sorted(of_rank)).reshape(-1, 2).T
            events[rank] = memory_events(times, numbers.astype(np.int64))
        memory = memory_over_time(self.program, self.cluster, events, limit=self.limit_memory, allocator=self.allocator)
        # After a deadlock, collectives without an end (NaN) are omitted: a timeline records completed operations.
        with np.errstate(invalid="ignore"):
            logs = {name: collective.log() for name, collective in self.collectives.items()}
        ended = {name: log for name, log in logs.items() if not np.isnan(log.end).any()}
        routed = {name: self.routed_collectives[name] for name in ended}
        sent = tuple(
            CollectiveTotals(name, len(of_rank.traffic), of_rank.traffic.total_bytes)
            for name, of_rank in routed.items()
        )
        spans = in_order(self.spans)
        # Ties go to the lowest rank.
        latest = min(spans, key=lambda span: (-span.end, span.rank), default=None)
        last = (0.0, None) if latest is None else (latest.end, latest.rank)
        routes = {id(routes): routes for of_rank in routed.values() for routes in of_rank.every_routes}.values()
        timeline = timeline_of(
            NAME, self.cluster, self.program.beside, spans, last, tuple(ended.values()), memory, routes
        )
        work = LazyValues({rank: partial(_at_work, of_rank) for rank, of_rank in by_rank(spans).items()})
        return replace(timeline, sent=sent, transfers=sum(of_rank.transfers for of_rank in sent), at_work=work)


def _at_work(spans: Sequence[Span]) -> float:
    """Return the time covered by the spans of kernels and collectives [s], without the stream that issues kernels."""
    return length((span.start, span.end) for span in spans if span.stream != ISSUE)


def _who(place: _Place) -> str:
    return f"rank {place.rank} ({place.stream})"
