"""Makes a Timeline of what an engine has played: memory over time, spans and transfers in order.

Rule: an engine says when things happened; what follows from that is worked out here. Of what happens to a rank's memory
at one moment the order of its program counts, so that no engine's own order shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.errors import OutOfMemoryError
from simulator.cluster.cluster import Cluster
from simulator.engine.allocator_log import LoggedAllocator
from simulator.engine.memory import Hbm
from simulator.engine.routes import Routes
from simulator.records.later import AllRanks, LaterByRank
from simulator.records.operation import Allocate, Free, Op
from simulator.records.program import Program
from simulator.records.timeline import AllocatorEvent, MemorySample, Span, Timeline, TransferLog, by_rank


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """When a rank's operations on memory happened, in the order in which they did.

    Attributes
    ----------
    time : float array
        Rising [s].
    place : int array
        Of each in the rank's program; rising where times are equal.
    """

    time: Floats
    place: Ints


def memory_events(time: Floats, place: Ints) -> MemoryEvents:
    """In the order of time; `place` is rising."""
    order = np.argsort(time, kind="stable")
    return MemoryEvents(time[order], place[order])


@dataclass(frozen=True, slots=True)
class MemoryPlayed:
    """What ranks held, over time; fields are those of a Timeline."""

    memory: Sequence[MemorySample]
    allocations: Mapping[int, tuple[AllocatorEvent, ...]]
    reserved: dict[int, int]
    short_of_memory: tuple[int, ...]
    peak: MemorySample | None


def memory_over_time(
    program: Program,
    cluster: Cluster,
    events: Mapping[int, MemoryEvents],
    *,
    limit: bool,
    allocator: str | None,
) -> MemoryPlayed:
    """Take and give bytes as they were taken and given, on the ranks that are told.

    What a rank holds depends on its list, its HBM's size and the order of what happens there. So one of the ranks that
    have these in common is followed, by the number of each event, and the others differ in times alone.

    Raises
    ------
    OutOfMemoryError
        If `limit`, where a rank needs more than it has: that of the first of them.
    """
    # Ranks of one list have one list of operations on memory.
    list_of = program.lists.list_of
    followed: dict[_Kind, Hbm] = {}
    hbm_of: dict[int, Hbm] = {}
    lacking: dict[_Kind, int] = {}
    first: tuple[float, int] | None = None
    for rank, own in events.items():
        capacity = float(cluster.gpus[rank].hbm_bytes)
        kind = list_of[rank], capacity, own.place.tobytes()
        if kind not in followed:
            followed[kind] = Hbm(rank, capacity, limit, LoggedAllocator(allocator, capacity) if allocator else None)
            try:
                _follow(followed[kind], program, own.place.tolist(), range(len(own.place)))
            except OutOfMemoryError as error:
                lacking[kind] = int(error.time)
        if kind in lacking:
            moment = float(own.time[lacking[kind]]), rank
            first = moment if first is None else min(first, moment)
        hbm_of[rank] = followed[kind]
    if first is not None:
        _raise(program, cluster, first[1], events[first[1]], allocator)
    return _played(hbm_of, events)


_Kind = tuple[int, float, bytes]


def _raise(program: Program, cluster: Cluster, rank: int, own: MemoryEvents, allocator: str | None) -> None:
    """Raise the rank's own OutOfMemoryError, with its time."""
    capacity = float(cluster.gpus[rank].hbm_bytes)
    hbm = Hbm(rank, capacity, True, LoggedAllocator(allocator, capacity) if allocator else None)
    _follow(hbm, program, own.place.tolist(), own.time.tolist())


def _played(hbm_of: Mapping[int, Hbm], events: Mapping[int, MemoryEvents]) -> MemoryPlayed:
    samples = {rank: partial(_samples, hbm, rank, events[rank].time) for rank, hbm in hbm_of.items()}
    logs = {rank: partial(_log, hbm, events[rank].time) for rank, hbm in hbm_of.items() if hbm.allocator}
    peaks = {id(hbm): max(hbm.used, default=-1) for hbm in hbm_of.values()}
    most = max(hbm_of, key=lambda rank: peaks[id(hbm_of[rank])], default=None)
    peak = None
    if most is not None and hbm_of[most].used:
        place = hbm_of[most].used.index(peaks[id(hbm_of[most])])
        *_, peak = hbm_of[most].samples(most, events[most].time[: place + 1].tolist())
    return MemoryPlayed(
        memory=AllRanks(LaterByRank(samples)),
        allocations=LaterByRank(logs),
        reserved={rank: hbm.allocator.allocator.peak_reserved for rank, hbm in hbm_of.items() if hbm.allocator},
        short_of_memory=tuple(rank for rank, hbm in hbm_of.items() if hbm.short),
        peak=peak,
    )


def _samples(hbm: Hbm, rank: int, time: Floats) -> list[MemorySample]:
    return list(hbm.samples(rank, time.tolist()))


def _log(hbm: Hbm, time: Floats) -> list[AllocatorEvent]:
    times = time.tolist()
    events = hbm.allocator.events if hbm.allocator else ()
    return [replace(event, time=times[int(event.time)]) for event in events]


def refuse_unfit_at_start(program: Program, cluster: Cluster, allocator: str | None) -> None:
    """Raise OutOfMemoryError, before anything is played, where what a rank takes before it does anything is too much.

    Operations on memory that stand first on their stream and wait for nothing happen at 0 s, whatever is played then.
    """
    first: dict[tuple[int, int], int] = {}
    lists = program.ranks
    for rank, number in enumerate(program.lists.list_of):
        first.setdefault((number, cluster.gpus[rank].hbm_bytes), rank)
    for rank in first.values():
        places = np.array(_at_start(lists[rank]), np.int64)
        own = {rank: MemoryEvents(np.zeros(len(places)), places)}
        memory_over_time(program, cluster, own, limit=True, allocator=allocator)


def _at_start(ops: Sequence[Op]) -> list[int]:
    """Places of the operations on memory that wait for nothing and stand behind nothing else on their stream."""
    places, busy = [], set[str]()
    for place, op in enumerate(ops):
        if op.stream in busy:
            continue
        if isinstance(op, Allocate | Free) and not op.after:
            places.append(place)
        else:
            busy.add(op.stream)
    return places


def _follow(hbm: Hbm, program: Program, places: Sequence[int], times: Sequence[float]) -> None:
    # Operations on memory are the same for all ranks of a list.
    ops = program.lists.lists[program.lists.list_of[hbm.rank]]
    for place, time in zip(places, times, strict=True):
        op = ops[place]
        if isinstance(op, Allocate):
            hbm.allocate(op, time)
        elif isinstance(op, Free):
            hbm.free(op.allocation, time)


def timeline_of(
    engine: str,
    cluster: Cluster,
    spans: Sequence[Span],
    last: tuple[float, int | None],
    logs: Sequence[TransferLog],
    memory: MemoryPlayed,
    routes: Iterable[Routes],
) -> Timeline:
    """Put everything together but what was sent; `last` is when operations end, and on which rank."""
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *(own.link for own in routes)]))
    used = used[used < len(cluster.router.bandwidth)].tolist()
    router = cluster.router
    return Timeline(
        engine=engine,
        end=last[0],
        spans=spans,
        logs=logs,
        link_names={link: router.link_name(link) for link in used},
        link_bandwidths={link: router.bandwidth[link] for link in used},
        last_rank=last[1],
        **{field.name: getattr(memory, field.name) for field in fields(memory)},
    )


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """By rank, stream, start, end."""
    return tuple(sorted(spans, key=lambda span: (span.rank, span.stream, span.start, span.end)))


def of_ranks(timeline: Timeline, keep: Collection[int]) -> Timeline:
    """The same with the operations of these ranks, and of the one that ends last."""
    ranks = by_rank(timeline.spans)
    kept = {*keep, timeline.last_rank}
    spans = LaterByRank({rank: partial(ranks.__getitem__, rank) for rank in ranks if rank in kept})
    return replace(timeline, spans=AllRanks(spans))
