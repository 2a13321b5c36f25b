"""Makes a Timeline of what an engine has played: memory over time, spans and transfers in order.

Rule: an engine says when things happened; what follows from that is worked out here. Of what happens to a rank's memory
at one moment the order of its program counts, so that no engine's own order shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.cluster.cluster import Cluster
from simulator.engine.allocator_log import LoggedAllocator
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.memory import Hbm
from simulator.errors import OutOfMemoryError
from simulator.records.program import Allocate, Free, Op, Program, SameForAll
from simulator.records.timeline import Sent, Span, Timeline, TransferLog

# When an operation took or gave memory [s], and its place in its rank's program.
MemoryEvent = tuple[float, int]


def memory_over_time(
    program: Program,
    cluster: Cluster,
    memory_events: Mapping[int, Iterable[MemoryEvent]],
    *,
    limit: bool,
    allocator: str | None,
) -> list[Hbm]:
    """Take and give bytes as they were taken and given, on the ranks that are told.

    Raises
    ------
    OutOfMemoryError
        If `limit`, where a rank needs more than it has: that of the first of them.
    """
    memory, lacking = [], list[OutOfMemoryError]()
    for rank, own in memory_events.items():
        capacity = float(cluster.gpus[rank].hbm_bytes)
        hbm = Hbm(rank, capacity, limit, LoggedAllocator(allocator, capacity) if allocator else None)
        try:
            _follow(hbm, program, own)
        except OutOfMemoryError as error:
            lacking.append(error)
        memory.append(hbm)
    if lacking:
        raise min(lacking, key=lambda error: (error.time, error.rank))
    return memory


def refuse_unfit_at_start(program: Program, cluster: Cluster, allocator: str | None) -> None:
    """Raise OutOfMemoryError, before anything is played, where what a rank takes before it does anything is too much.

    Operations on memory that stand first on their stream and wait for nothing happen at 0 s, whatever is played then.
    """
    first: dict[tuple[int, int], int] = {}
    lists = program.ranks
    for rank in range(len(lists)):
        kind = 0 if isinstance(lists, SameForAll) else id(lists[rank])
        first.setdefault((kind, cluster.gpus[rank].hbm_bytes), rank)
    at_start = {rank: [(0.0, place) for place in _at_start(lists[rank])] for rank in first.values()}
    memory_over_time(program, cluster, at_start, limit=True, allocator=allocator)


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


def _follow(hbm: Hbm, program: Program, memory_events: Iterable[MemoryEvent]) -> None:
    ops = program.ranks[hbm.rank]
    for time, place in sorted(memory_events):
        op = ops[place]
        if isinstance(op, Allocate):
            hbm.allocate(op, time)
        elif isinstance(op, Free):
            hbm.free(op.allocation, time)


def timeline_of(
    engine: str,
    cluster: Cluster,
    spans: Iterable[Span],
    logs: Sequence[TransferLog],
    memory: Sequence[Hbm],
    routed_collectives: Sequence[tuple[str, RoutedCollective]],
) -> Timeline:
    """Put everything together; `routed_collectives` are those of the logs, by collective."""
    routes = {id(routed.routes): routed.routes.link for _, routed in routed_collectives}.values()
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *routes]))
    used = used[used < len(cluster.router.bandwidth)].tolist()
    router = cluster.router
    ordered = tuple(sorted(spans, key=lambda span: (span.rank, span.stream, span.start, span.end)))
    return Timeline(
        engine=engine,
        end=max((span.end for span in ordered), default=0.0),
        spans=ordered,
        logs=logs,
        sent=tuple(Sent(name, len(routed.traffic), routed.traffic.total_bytes) for name, routed in routed_collectives),
        memory=tuple(sample for hbm in memory for sample in hbm.samples),
        allocations={hbm.rank: tuple(hbm.allocator.events) for hbm in memory if hbm.allocator},
        reserved={hbm.rank: hbm.allocator.allocator.peak_reserved for hbm in memory if hbm.allocator},
        short_of_memory=tuple(hbm.rank for hbm in memory if hbm.short),
        link_names={link: router.link_name(link) for link in used},
        link_bandwidths={link: router.bandwidth[link] for link in used},
    )


def of_ranks(timeline: Timeline, keep: Collection[int]) -> Timeline:
    """The same with the operations of these ranks, and of the one that ends last."""
    if not timeline.spans:
        return timeline
    last = min(timeline.spans, key=lambda span: (-span.end, span.rank)).rank
    return replace(timeline, spans=tuple(span for span in timeline.spans if span.rank in keep or span.rank == last))
