"""Builds a Timeline from an engine's results: memory over time, spans and transfers in order.

An engine reports when operations ended; derived facts are computed here. If several memory operations happen on a rank
at one moment, the program's order counts, therefore an engine's internal order never shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.errors import OutOfMemoryError
from simulator.cluster.cluster import Cluster
from simulator.engine.allocator_log import LoggedAllocator
from simulator.engine.hbm import Hbm
from simulator.engine.routes import Routes
from simulator.records.lazy import AllRanks, LazyByRank
from simulator.records.operation import Allocate, Free, Op
from simulator.records.program import ProcessMemory, Program
from simulator.records.timeline import AllocatorEvent, MemorySample, Span, Timeline, TransferLog, by_rank


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Times of a rank's memory operations, in temporal order."""

    time: Floats  # time of each event, rising [s]
    # Place of each event in the rank's program; rising at equal times.
    place: Ints


def memory_events(time: Floats, place: Ints) -> MemoryEvents:
    """Return memory operations sorted by time [s]; equal times keep the order of `place`, which must be rising."""
    order = np.argsort(time, kind="stable")
    return MemoryEvents(time[order], place[order])


@dataclass(frozen=True, slots=True)
class MemoryPlayed:
    """Memory held by ranks over time; the fields are those in a Timeline."""

    memory: Sequence[MemorySample]
    allocations: Mapping[int, tuple[AllocatorEvent, ...]]
    reserved: dict[int, int]
    short_of_memory: tuple[int, ...]
    peak: MemorySample | None
    peak_bytes: Mapping[int, int]


def memory_over_time(
    program: Program,
    cluster: Cluster,
    events: Mapping[int, MemoryEvents],
    *,
    limit: bool,
    allocator: str | None,
) -> MemoryPlayed:
    """Return the memory held over time, from each rank's allocations and frees in `events`, in temporal order.

    A rank's memory depends on the operation list, the HBM size and the order between memory operations. A single rank
    is simulated for ranks with these in common; the results differ only in times.

    Raises
    ------
    OutOfMemoryError
        If `limit`, and a rank needs more memory than it has: the earliest such error.
    """
    # Ranks with a common list have common memory operations.
    list_of = program.lists.list_of
    followed: dict[_Kind, Hbm] = {}
    hbm_of: dict[int, Hbm] = {}
    lacking: dict[_Kind, int] = {}
    first: tuple[float, int] | None = None
    for rank, memory in events.items():
        capacity = float(cluster.gpus[rank].hbm_bytes)
        # Times are replaced by event numbers, which are common to the kind.
        kind = list_of[rank], capacity, memory.place.tobytes()
        # The first rank of its kind is simulated, with event numbers for times.
        if kind not in followed:
            followed[kind] = _hbm(program, rank, capacity, allocator, limit=limit)
            try:
                _follow(followed[kind], program, memory.place.tolist(), range(len(memory.place)))
            except OutOfMemoryError as error:
                # The number of the event that does not fit.
                lacking[kind] = int(error.time)
        if kind in lacking:
            # The earliest failure counts; at equal times, the lowest rank.
            moment = float(memory.time[lacking[kind]]), rank
            first = moment if first is None else min(first, moment)
        hbm_of[rank] = followed[kind]
    if first is not None:
        # Repeat the failing rank with true times, because the message states the time.
        _raise(program, cluster, first[1], events[first[1]], allocator)
    return _played(hbm_of, events)


_Kind = tuple[int, float, bytes]


def _raise(program: Program, cluster: Cluster, rank: int, memory: MemoryEvents, allocator: str | None) -> None:
    """Raise the OutOfMemoryError of `rank` with the true time, by a second pass over its memory operations."""
    capacity = float(cluster.gpus[rank].hbm_bytes)
    hbm = _hbm(program, rank, capacity, allocator, limit=True)
    _follow(hbm, program, memory.place.tolist(), memory.time.tolist())


def _hbm(program: Program, rank: int, capacity: float, allocator: str | None, *, limit: bool) -> Hbm:
    """Return a rank's empty HBM, of which the allocator may take what the rest of the process leaves."""
    beside = program.beside.nbytes
    return Hbm(rank, capacity, beside, limit, LoggedAllocator(allocator, capacity - beside) if allocator else None)


def _played(hbm_of: Mapping[int, Hbm], events: Mapping[int, MemoryEvents]) -> MemoryPlayed:
    """Return the ranks' memory samples, allocator logs and peaks; samples and logs are computed on access."""
    samples = {rank: partial(_samples, hbm, rank, events[rank].time) for rank, hbm in hbm_of.items()}
    logs = {rank: partial(_log, hbm, events[rank].time) for rank, hbm in hbm_of.items() if hbm.allocator}
    peaks = {id(hbm): max(hbm.used, default=-1) for hbm in hbm_of.values()}
    # The first rank with the largest peak.
    most = max(hbm_of, key=lambda rank: peaks[id(hbm_of[rank])], default=None)
    peak = None
    if most is not None and hbm_of[most].used:
        # The first sample with the peak; earlier samples are needed for its categories.
        place = hbm_of[most].used.index(peaks[id(hbm_of[most])])
        *_, peak = hbm_of[most].samples(most, events[most].time[: place + 1].tolist())
    return MemoryPlayed(
        memory=AllRanks(LazyByRank(samples)),
        allocations=LazyByRank(logs),
        reserved={rank: hbm.allocator.allocator.peak_reserved for rank, hbm in hbm_of.items() if hbm.allocator},
        short_of_memory=tuple(rank for rank, hbm in hbm_of.items() if hbm.short),
        peak=peak,
        peak_bytes={rank: peaks[id(hbm)] for rank, hbm in hbm_of.items() if hbm.used},
    )


def _samples(hbm: Hbm, rank: int, time: Floats) -> list[MemorySample]:
    """Return a rank's samples of bytes held, one after each memory operation; `time` has the operations' times [s]."""
    return list(hbm.samples(rank, time.tolist()))


def _log(hbm: Hbm, time: Floats) -> list[AllocatorEvent]:
    """Return a rank's allocator log, with each event's number replaced by its time [s] from `time`."""
    times = time.tolist()
    events = hbm.allocator.events if hbm.allocator else ()
    return [replace(event, time=times[int(event.time)]) for event in events]


def refuse_unfit_at_start(program: Program, cluster: Cluster, allocator: str | None) -> None:
    """Raise OutOfMemoryError before the simulation if a rank's first allocations do not fit.

    Memory operations at the head of a stream without awaited operations happen at 0 s in any simulation.
    """
    first: dict[tuple[int, int], int] = {}
    for rank, number in enumerate(program.lists.list_of):
        # A single rank per list and HBM size suffices.
        first.setdefault((number, cluster.gpus[rank].hbm_bytes), rank)
    for (number, _), rank in first.items():
        places = np.array(_at_start(program.lists.lists[number]), np.int64)
        memory_of = {rank: MemoryEvents(np.zeros(len(places)), places)}
        memory_over_time(program, cluster, memory_of, limit=True, allocator=allocator)


def _at_start(ops: Sequence[Op]) -> list[int]:
    """Return the indices of the allocations and frees in a rank's operations that happen at 0 s."""
    places, busy = [], set[str]()
    for place, op in enumerate(ops):
        # An operation behind a kernel or collective does not happen at 0 s.
        if op.stream in busy:
            continue
        if isinstance(op, Allocate | Free) and not op.after:
            places.append(place)
        else:
            busy.add(op.stream)
    return places


def _follow(hbm: Hbm, program: Program, places: Sequence[int], times: Sequence[float]) -> None:
    """Apply the memory operations at indices `places` of a rank's program to its HBM, at the given times [s]."""
    # Ranks with a common list have common memory operations.
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
    beside: ProcessMemory,
    spans: Sequence[Span],
    last: tuple[float, int | None],
    logs: Sequence[TransferLog],
    memory: MemoryPlayed,
    routes: Iterable[Routes],
) -> Timeline:
    """Return a Timeline from an engine's results, except for the totals of transferred bytes.

    Parameters
    ----------
    engine : str
        Name of the engine.
    cluster : Cluster
        Names and bandwidths of links.
    beside : ProcessMemory
        Memory of each rank's process beside its allocations.
    spans : sequence of Span
        Operations.
    last : tuple of (float, int or None)
        When the last operation ends [s], and on which rank.
    logs : sequence of TransferLog
        Transfers of each collective.
    memory : MemoryPlayed
        Memory over time.
    routes : iterable of Routes
        Routes of the collectives, which name the used links.
    """
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *(used_routes.link for used_routes in routes)]))
    # Higher numbers are HBM, which has no name.
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
        beside=beside,
        **{field.name: getattr(memory, field.name) for field in fields(memory)},
    )


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans sorted by rank, stream, start and end."""
    return tuple(sorted(spans, key=attrgetter("rank", "stream", "start", "end")))


def of_ranks(timeline: Timeline, keep: Collection[int]) -> Timeline:
    """Return a timeline restricted to operations on the ranks in `keep` and on the rank that ends last."""
    ranks = by_rank(timeline.spans)
    numbers = {*keep, timeline.last_rank}
    spans = LazyByRank({rank: partial(ranks.__getitem__, rank) for rank in ranks if rank in numbers})
    return replace(timeline, spans=AllRanks(spans))
