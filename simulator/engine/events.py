"""The events engine: plays a Program on a Cluster with SimPy. Contention, stragglers, jitter, payload: everything.

Rule: every rank has a process for each of its streams; a stream runs one operation at a time, in order. The only module
that says how long a Program takes.
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
from simulator.cluster.cluster import Cluster
from simulator.engine.clock import Clock
from simulator.engine.collective_play import CollectivePlay
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.fabric import Fabric
from simulator.engine.jitter import Jitter, kernel_factors, latency_factors
from simulator.engine.kernels_run import Kernels
from simulator.engine.program_checks import check_program, waiting_text
from simulator.engine.progress import tell
from simulator.engine.recording import in_order, memory_events, memory_over_time, of_ranks, timeline_of
from simulator.engine.timed_collective import TimedCollective
from simulator.payload.carry import Payload, carry_all
from simulator.records.later import LaterValues
from simulator.records.operation import ISSUE, Collective, Compute, Op
from simulator.records.program import Program
from simulator.records.timeline import Sent, Span, Timeline, by_rank

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
    """Play a program to its end.

    Parameters
    ----------
    program : Program
    cluster : Cluster
    jitter : Jitter, optional
    payloads : mapping of collective name to Payload, optional
        Arrays to work on, in place.
    limit_memory : bool
        Whether going beyond HBM's capacity is an error; otherwise the timeline names the ranks that are short.
    allocator : str, optional
        "caching" or "expandable_segments"; bytes are only counted where it is left out.
    keep : collection of int, optional
        Ranks whose spans are wanted, beside that of the rank that ends last; all where it is left out.
    watch_all : bool
        Whether flows are looked for on every link, and not only where they can hold each other back: the same answer,
        later. It is the proof of `prune_links`.

    Returns
    -------
    Timeline
        The same with and without payload.

    Raises
    ------
    DeadlockError
        Nothing can happen any more and not everything has ended; says who waits for what.
    OutOfMemoryError
        A rank needs more HBM than it has.
    ValueError
        A program that contradicts itself: unknown names in `after`, ranks that are not there.
    """
    play = _Play(program, cluster, jitter or Jitter(), limit_memory, allocator, watch_all=watch_all)
    play.run()
    timeline = play.timeline()
    if payloads:
        carry_all(program, timeline, payloads)
    return timeline if keep is None else of_ranks(timeline, keep)


def execute_until_stuck(program: Program, cluster: Cluster, jitter: Jitter) -> tuple[Timeline, str]:
    """Play as far as it goes.

    Returns
    -------
    tuple
        What ended, and who waits for what; empty where everything did.
    """
    play = _Play(program, cluster, jitter, limit_memory=False, allocator=None)
    try:
        play.run()
    except DeadlockError as error:
        return play.timeline(), str(error)
    return play.timeline(), ""


@dataclass(slots=True)
class _Place:
    """Where a stream is: the operation that it is at, for reports of deadlocks."""

    rank: int
    stream: str
    at: Op | None = None
    awaiting: str | None = None


@dataclass(slots=True)
class _Play:
    program: Program
    cluster: Cluster
    jitter: Jitter
    limit_memory: bool
    allocator: str | None
    clock: Clock = field(default_factory=Clock)
    collectives: dict[str, CollectivePlay] = field(default_factory=dict)
    timed: dict[str, TimedCollective] = field(default_factory=dict)
    kernels: list[Kernels] = field(default_factory=list)
    places_in: dict[str, dict[int, int]] = field(default_factory=dict)
    last_came: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    memory_events: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    ended: list[dict[str, simpy.Event]] = field(default_factory=list)
    running: int = 0
    noted: int = 0
    watch_all: bool = False
    routed_collectives: dict[str, RoutedCollective] = field(default_factory=dict)

    def run(self) -> None:
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
        self.clock.play(lambda: tell("playing", self.noted / max(operations, 1), self.clock.now))
        if self.running:
            raise DeadlockError(self.clock.now, {_who(p): self._what(p) for p in self.places if p.at is not None})

    def _prepare(self) -> None:
        check_program(self.program, self.cluster)
        ranks = self.program.ranks
        capacity = capacities(self.cluster)
        fabric = Fabric(self.clock, capacity)
        ops = {name: op for name, op in self.program.collectives().items() if op.duration is None}
        for op in self.program.collectives().values():
            self.places_in[op.name] = {rank: place for place, rank in enumerate(op.group)}
            if op.duration is not None:
                self.timed[op.name] = TimedCollective(self.clock, op)
        routed_collectives = route_collectives(self.cluster, list(ops.values()), capacity, watch_all=self.watch_all)
        self.routed_collectives = dict(zip(ops, routed_collectives, strict=True))
        for number, (name, routed) in enumerate(self.routed_collectives.items()):
            jitter = latency_factors(self.jitter, number, ops[name], routed.transfers.src)
            self.collectives[name] = CollectivePlay(self.clock, fabric, ops[name], routed, jitter)
        for rank in range(len(ranks)):
            self.kernels.append(Kernels(self.clock))
            self.memory_events[rank] = []
            self.ended.append({op.name: simpy.Event(self.clock) for op in ranks[rank]})

    def _stream(self, place: _Place, queue: list[tuple[int, Op]]) -> Generator[simpy.Event, Any, None]:
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
        if isinstance(op, Compute):
            stretch = self._stretch(rank, number, on_gpu=op.on_gpu)
            slowed = op.duration if op.contended is None else op.contended
            yield self.kernels[rank].run(op.duration * stretch, slowed * stretch)
        elif isinstance(op, Collective):
            self.kernels[rank].communicate(+op.takes_sms)
            yield from self._communicate(rank, op)
            self.kernels[rank].communicate(-op.takes_sms)
        else:
            self.memory_events[rank].append((number, self.clock.now))

    def _communicate(self, rank: int, op: Collective) -> Generator[simpy.Event, Any, None]:
        place = self.places_in[op.name][rank]
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

    def _stretch(self, rank: int, number: int, *, on_gpu: bool) -> float:
        speed = self.cluster.speeds[rank] if self.cluster.speeds and on_gpu else 1.0
        noise = 1.0
        if self.jitter.compute:
            noise = float(kernel_factors(self.jitter, np.array([rank]), number)[0])
        return noise / speed

    def _note(self, place: _Place, op: Op, start: float) -> None:
        self.noted += 1
        end = self.clock.now
        if isinstance(op, Compute):
            self.spans.append(Span(place.rank, place.stream, op.name, op.kind, start, end, op.nbytes, op.flops))
        elif isinstance(op, Collective):
            kind = op.schedule.operation
            start = self.last_came[op.name] if op.rendezvous else start
            self.spans.append(Span(place.rank, place.stream, op.name, kind, start, end, float(op.nbytes)))

    def _what(self, place: _Place) -> str:
        if place.at is None:
            return "nothing"
        name = place.at.name
        missing = []
        if isinstance(place.at, Collective):
            missing = (self.timed[name] if name in self.timed else self.collectives[name]).missing()
        return waiting_text(place.at, place.awaiting, missing)

    def timeline(self) -> Timeline:
        events = {}
        for rank, own in self.memory_events.items():
            # By place in the program, which decides between those of one moment.
            numbers, times = np.array(sorted(own)).reshape(-1, 2).T
            events[rank] = memory_events(times, numbers.astype(np.int64))
        memory = memory_over_time(self.program, self.cluster, events, limit=self.limit_memory, allocator=self.allocator)
        # What never came to its end, and has no number for it, is no part of a record of the past.
        with np.errstate(invalid="ignore"):
            logs = {name: collective.log() for name, collective in self.collectives.items()}
        ended = {name: log for name, log in logs.items() if not np.isnan(log.end).any()}
        routed = {name: self.routed_collectives[name] for name in ended}
        sent = tuple(Sent(name, len(own.traffic), own.traffic.total_bytes) for name, own in routed.items())
        spans = in_order(self.spans)
        latest = min(spans, key=lambda span: (-span.end, span.rank), default=None)
        last = (0.0, None) if latest is None else (latest.end, latest.rank)
        routes = {id(own.routes): own.routes for own in routed.values()}.values()
        timeline = timeline_of(NAME, self.cluster, spans, last, tuple(ended.values()), memory, routes)
        work = LaterValues({rank: partial(_at_work, own) for rank, own in by_rank(spans).items()})
        return replace(timeline, sent=sent, transfers=sum(own.transfers for own in sent), at_work=work)


def _at_work(spans: Sequence[Span]) -> float:
    """How long anything was done, hosts that issue kernels left out [s]."""
    return length((span.start, span.end) for span in spans if span.stream != ISSUE)


def _who(place: _Place) -> str:
    return f"rank {place.rank} ({place.stream})"
