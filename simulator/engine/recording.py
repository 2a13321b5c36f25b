"""From what an engine found to a Timeline: memory over time, spans and transfers in order. The same for every engine.

Rule: an engine says when things happened; what follows from that is worked out here. Of what happens to a rank's memory
at one moment the order of its program counts, so that no engine's own order shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.cluster.cluster import Cluster
from simulator.engine.allocator_log import LoggedAllocator
from simulator.engine.memory import Hbm
from simulator.program import Allocate, Free, Program
from simulator.timeline import Span, Timeline, TransferLog

# Time, rank and place in its program of an operation on memory.
Moment = tuple[float, int, int]


def memory_over_time(
    program: Program, cluster: Cluster, moments: Iterable[Moment], *, limit: bool, allocator: str | None
) -> list[Hbm]:
    """Take and give bytes as they were taken and given.

    Raises
    ------
    OutOfMemoryError
        If `limit`, where a rank needs more than it has.
    """
    found = []
    for rank in range(len(program.ranks)):
        capacity = float(cluster.gpus[rank].hbm_bytes)
        desk = LoggedAllocator(allocator, capacity) if allocator else None
        found.append(Hbm(rank, capacity, limit, desk))
    for time, rank, place in sorted(moments):
        op = program.ranks[rank][place]
        if isinstance(op, Allocate):
            found[rank].allocate(op, time)
        elif isinstance(op, Free):
            found[rank].free(op.allocation, time)
    return found


def timeline_of(
    engine: str, cluster: Cluster, spans: Iterable[Span], logs: tuple[TransferLog, ...], memory: Sequence[Hbm]
) -> Timeline:
    """Put everything together."""
    used = sorted({link for log in logs for route in log.routes for link in route})
    router = cluster.router
    ordered = tuple(sorted(spans, key=lambda span: (span.rank, span.stream, span.start, span.end)))
    return Timeline(
        engine=engine,
        end=max((span.end for span in ordered), default=0.0),
        spans=ordered,
        logs=logs,
        memory=tuple(sample for hbm in memory for sample in hbm.samples),
        allocations={hbm.rank: tuple(hbm.allocator.events) for hbm in memory if hbm.allocator},
        reserved={hbm.rank: hbm.allocator.allocator.peak_reserved for hbm in memory if hbm.allocator},
        short_of_memory=tuple(hbm.rank for hbm in memory if hbm.short),
        link_names={link: router.link_name(link) for link in used},
        link_bandwidths={link: router.bandwidth[link] for link in used},
    )
