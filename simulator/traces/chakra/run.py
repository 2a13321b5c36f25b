"""Simulates Chakra execution traces on a machine, and says where the time of the step goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_time
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm_files import find_algorithm
from simulator.engine.play import Engine, play
from simulator.records.timeline import Timeline, by_rank
from simulator.report.plots.both.timeline import Bar, Block, Lane, blocks_figure, lane_of
from simulator.report.plots.picture import Picture
from simulator.report.tables.answer_table import AnswerColumn, AnswerTable
from simulator.traces.chakra.dependencies import repaired
from simulator.traces.chakra.matching import matched
from simulator.traces.chakra.trace_program import ConvertedTraces, converted
from simulator.traces.chakra.trace_reader import RankTrace, read_traces
from simulator.traces.gpu_work import GpuStep, GpuWork

# Kinds of the operations of nodes; every other kind is communication.
_OWN: Final = ("compute", "host", "memory")
# Operation that waits for a message, which takes time itself.
_RECEIVE: Final = "receive"
_RANKS_SHOWN: Final = 8
_NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ChakraRun:
    """Simulated execution traces."""

    converted: ConvertedTraces  # the program of the traces, and notes
    cluster: Cluster
    timeline: Timeline

    @property
    def steps(self) -> dict[int, GpuStep]:
        """The work of each rank that has operations."""
        end = round(self.timeline.end / _NS)
        return {
            rank: GpuStep.of(
                rank,
                end,
                [
                    GpuWork(
                        span.name,
                        round(span.start / _NS),
                        round(span.end / _NS),
                        ((span.kind, 1.0),),
                        communicates=span.kind not in _OWN,
                    )
                    for span in spans
                    if span.kind != _RECEIVE
                ],
            )
            for rank, spans in by_rank(self.timeline.spans).items()
        }

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences, the most important first."""
        ranks, counts = len(self.converted.program.ranks), self.converted.counts
        nodes = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        last = self.timeline.last_rank
        texts = [
            f"The step takes {format_time(self.timeline.end)} on {number_of(ranks, 'rank')} of {self.cluster.name} "
            f"({nodes})."
        ]
        if last is not None and (step := self.steps.get(last)) is not None and self.timeline.end:
            share = 100.0 * _NS / self.timeline.end
            texts.append(
                f"Rank {last} ends last: communication without a concurrent kernel takes {share * step.exposed:.0f} % "
                f"of the time, and {share * step.idle:.0f} % is idle."
            )
        return tuple(texts)

    def tables(self) -> tuple[AnswerTable, ...]:
        """Return the time of each rank, and the operations of each rank."""
        return _rank_table(self.steps), _operation_table(self.timeline)

    def pictures(self) -> tuple[Picture, ...]:
        """Return the picture of the timeline; nothing without operations that take time."""
        if not self.timeline.spans:
            return ()
        steps, end = list(self.steps.values()), self.timeline.end
        blocks = [Block(f"rank {step.rank}", tuple(_lanes(step, end))) for step in steps[:_RANKS_SHOWN]]
        note = f"{_RANKS_SHOWN} of {len(steps)} ranks shown" if len(steps) > _RANKS_SHOWN else ""
        busy = [block for block in blocks if block.lanes]
        return (Picture("timeline", blocks_figure(busy, end, self.sentences[0].rstrip("."), note)),) if busy else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain data, times in seconds."""
        return {
            "step_time_s": self.timeline.end,
            "topology": self.cluster.name,
            "ranks": len(self.converted.program.ranks),
            "nodes": dict(self.converted.counts),
            "last_rank": self.timeline.last_rank,
            "notes": list(self.converted.notes),
            "by_rank": [
                {
                    "rank": rank,
                    "exposed_comm_time_s": step.exposed * _NS,
                    "idle_time_s": step.idle * _NS,
                    "time_by_kind_s": {kind: time * _NS for kind, (_, time) in step.totals().items()},
                }
                for rank, step in self.steps.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Files PREFIX.0.et, PREFIX.1.et, ... of execution traces, and how they are read."""

    prefix: str  # path of the files without their endings
    world_size: int | None = None  # number of ranks that all do what the only file says
    repair: bool = False  # True: dependencies on nodes that do not exist, and a dependency of each circle, are dropped

    def read(self) -> tuple[tuple[RankTrace, ...], int]:
        """Return the trace of each rank, and the number of dropped dependencies."""
        traces = read_traces(self.prefix)
        if self.world_size is not None:
            if len(traces) > 1:
                raise ScenarioError(
                    f"--world-size: got {self.world_size}, but {self.prefix} has files of {len(traces)} ranks"
                )
            traces = traces * self.world_size
        mended = [repaired(trace) for trace in traces] if self.repair else []
        return tuple(mend.trace for mend in mended) or traces, sum(mend.missing + mend.circular for mend in mended)


def simulate_traces(
    files: TraceFiles,
    topology: str,
    *,
    gpu: str | None = None,
    algorithm: str = "auto",
    factor: float = 1.0,
    groups: Mapping[str, Sequence[int]] | None = None,
    engine: Engine = "auto",
) -> ChakraRun:
    """Simulate execution traces on a topology with as many ranks.

    Parameters
    ----------
    topology : str
        Name or path of a topology.
    gpu : str, optional
        GPU in place of the topology's.
    algorithm : str
        Algorithm of collectives.
    factor : float
        Factor on the measured times of kernels.
    groups : mapping of str to sequence of int, optional
        Ranks of process groups by name.

    Raises
    ------
    ScenarioError
        The traces are faulty, or cannot run on the topology.
    """
    if algorithm != "auto":
        find_algorithm(algorithm)
    traces, dropped = files.read()
    matches = matched(traces, groups)
    cluster = build(topology, len(traces), gpu=gpu, network_time=traces[0].network_time)
    conversion = converted(traces, matches, cluster, algorithm=algorithm, factor=factor)
    if dropped:
        note = f"dependencies on nodes that do not exist, or in circles, are dropped: {dropped}"
        conversion = replace(conversion, notes=(*conversion.notes, note))
    return ChakraRun(conversion, cluster, play(engine, conversion.program, cluster, limit_memory=False))


def _lanes(step: GpuStep, end: float) -> Iterator[Lane]:
    """Yield a row for each kind of a rank's own work, and a row for its communication."""
    for name in (*_OWN, "communication"):
        lane = [work for work in step.work if ("communication" if work.communicates else work.kind) == name]
        if lane:
            yield lane_of(name, [Bar(work.start * _NS, work.end * _NS, work.kind, work.name) for work in lane], end)


def _rank_table(steps: Mapping[int, GpuStep]) -> AnswerTable:
    """Return a row for each rank: time of its kinds of work, exposed communication and idle time [s]."""
    totals = {rank: step.totals() for rank, step in steps.items()}
    kinds = sorted({kind for times in totals.values() for kind in times}, key=lambda kind: (kind not in _OWN, kind))
    columns = (
        AnswerColumn("rank", "rank"),
        *(AnswerColumn(f"{kind}_s", kind, format_time) for kind in kinds),
        AnswerColumn("exposed_comm_s", "exposed", format_time),
        AnswerColumn("idle_s", "idle", format_time),
    )
    rows = [
        (
            rank,
            *(totals[rank].get(kind, (0, 0))[1] * _NS for kind in kinds),
            step.exposed * _NS,
            step.idle * _NS,
        )
        for rank, step in steps.items()
    ]
    title = "Time of each rank; operations of several streams overlap"
    return AnswerTable("ranks", title, columns, rows, most=_RANKS_SHOWN)


def _operation_table(timeline: Timeline) -> AnswerTable:
    """Return a row for each operation: rank, stream, name, kind, start and end [s]."""
    columns = tuple(AnswerColumn(key, key) for key in ("rank", "stream", "name", "kind", "start_s", "end_s"))
    rows = [(span.rank, span.stream, span.name, span.kind, span.start, span.end) for span in timeline.spans]
    return AnswerTable("operations", "Operations of each rank", columns, rows, most=0)
