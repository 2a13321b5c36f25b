"""How is a timeline written as Kineto traces, one per rank, for Perfetto (ui.perfetto.dev) and Holistic Trace Analysis?

Spans get the names that these tools look for, our own names are stored in `args`, and times are only rounded to
nanoseconds.

Requirements of the readers, with their sources:

- Holistic Trace Analysis 0.5 finds a file's rank by `"rank": ` with white space behind the colon, so JSON is not
  written compactly. It takes kernels named nccl... for communication, Memcpy... for memory, all others for computation.
  GPU streams must have numbers above 0. A kernel must have a launch with the same correlation, inside a ProfilerStep.
- It rounds starts up and ends down to whole microseconds; HTA_DISABLE_NS_ROUNDING=1 keeps shorter spans exact. It omits
  the last ProfilerStep of several unless include_last_profiler_step=True.
- Perfetto nests spans on the same track, so each stream, which runs a single operation at a time, has its own track.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from simulator.records.operation import HOST, ISSUE, Collective, KernelParts
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.traces.kineto_names import collective_args, kernel_name

Event = dict[str, Any]

# PyTorch's own numbers: compute on stream 7 by default, NCCL from 20 on. Only numbers above 0 matter.
_FIRST_STREAM: Final = {"compute": 7, "copy to host": 14, "copy to device": 15}
# CUDA's names for the two directions.
_COPIES: Final = {"copy to host": "DtoH", "copy to device": "HtoD"}
_OTHER_STREAMS: Final = 20
# Process numbers for launching CPU threads, far above the GPUs' numbers (ranks).
_CPU: Final = 1_000_000
# A launch takes no time in the simulation. It is placed a microsecond before its kernel, because queue analyses sort by
# time, and at equal times a kernel might come before its launch; kernels before 1 us are launched at 0 [ns].
_LAUNCH_LEAD: Final = 1_000


def write(
    timeline: Timeline,
    collectives: Mapping[str, Collective],
    folder: Path | str,
    *,
    ranks: Iterable[int] | None = None,
    steps: Sequence[float] = (),
    kernels: Callable[[int], Mapping[str, KernelParts]] = lambda rank: {},
) -> tuple[Path, ...]:
    """Write the timeline as Kineto traces rank0.json.gz, rank1.json.gz, ... into a folder; return the files.

    Parameters
    ----------
    collectives : mapping of str to Collective
        Collectives by name, as `Program.collectives` returns them.
    folder : path
        Created if necessary.
    ranks : iterable of int, optional
        Ranks to write; if omitted, every rank with spans.
    steps : sequence of float
        Start of each training step [s]; if omitted, a single step from 0.
    kernels : callable (rank) -> mapping of str to KernelParts
        Kinds of kernels in a rank's operations, by name, with their shares of the duration.

    Returns
    -------
    tuple of Path
        Files, by rank.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    spans = by_rank(timeline.spans)
    rank_order = sorted(spans) if ranks is None else sorted(set(ranks))
    world_size = max([*spans, *(rank for c in collectives.values() for rank in c.group)], default=0) + 1
    files: list[Path] = []
    for rank in rank_order:
        document = trace(timeline, spans.get(rank, ()), collectives, rank, world_size, steps, kernels(rank))
        files.append(target / f"rank{rank}.json.gz")
        files[-1].write_bytes(_compressed(document))
    return tuple(files)


def _compressed(document: Event) -> bytes:
    """Return a trace as gzipped JSON, without time or name in the gzip header: equal traces have equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write(json.dumps(document, separators=(", ", ": "), allow_nan=False).encode())
    return buffer.getvalue()


def trace(
    timeline: Timeline,
    spans: Sequence[Span],
    collectives: Mapping[str, Collective],
    rank: int,
    world_size: int,
    steps: Sequence[float] = (),
    kernels: Mapping[str, KernelParts] | None = None,
) -> Event:
    """Return a rank's Kineto trace as plain data.

    Parameters
    ----------
    timeline : Timeline
        Supplies the end and the memory samples.
    spans : sequence of Span
        Spans of this rank.
    collectives, steps
        See `write`.
    kernels : mapping of str to KernelParts, optional
        Kinds of kernels in the rank's operations.
    rank, world_size : int
        This rank, and the number of ranks.
    """
    # The host's processors are not a stream of the GPU.
    spans = [span for span in spans if span.stream not in (HOST, ISSUE)]
    groups = _groups(collectives, world_size)
    streams = _streams(spans)
    launches, work, flows = _work(spans, collectives, groups, rank, streams, kernels or {})
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world_size,
            "pg_count": len(groups),
            "pg_config": [_group_config(name, group) for group, name in groups.items()],
            "nccl_version": "",
        },
        "deviceProperties": [{"id": rank, "name": "simulated GPU"}],
        "displayTimeUnit": "ms",
        "traceEvents": [
            *_names(rank, streams),
            *_steps(rank, timeline.end, steps),
            *launches,
            *work,
            *flows,
            *_memory(timeline, rank),
        ],
    }


def _groups(collectives: Mapping[str, Collective], world_size: int) -> dict[tuple[int, ...], str]:
    """Return {ranks of a process group: name}, named "0", "1", ... as in PyTorch; "0" is the group of all ranks."""
    everybody = tuple(range(world_size))
    # A copy to the host is a collective of a single rank, without a process group.
    communicate = (c.group for c in collectives.values() if not c.schedule.operation.startswith("copy"))
    distinct = dict.fromkeys([everybody, *communicate])
    return {group: str(number) for number, group in enumerate(distinct)}


def _group_config(name: str, group: tuple[int, ...]) -> Event:
    """Return the description of a process group, with name, size and ranks, as PyTorch writes it into traces."""
    return {
        "pg_name": name,
        "pg_desc": "default_pg" if name == "0" else f"group_{name}",
        "backend_config": "cuda:nccl",
        "pg_size": len(group),
        "ranks": list(group),
    }


def _streams(spans: Sequence[Span]) -> dict[str, int]:
    """Return {stream name: number above 0} for the streams of the spans."""
    names = sorted({span.stream for span in spans})
    # Streams without a number of PyTorch's are numbered in order of their names.
    others = [name for name in names if name not in _FIRST_STREAM]
    numbers = {name: number for name, number in _FIRST_STREAM.items() if name in names}
    return numbers | {name: _OTHER_STREAMS + i for i, name in enumerate(others)}


def _work(
    spans: Sequence[Span],
    collectives: Mapping[str, Collective],
    groups: Mapping[tuple[int, ...], str],
    rank: int,
    streams: Mapping[str, int],
    kernels: Mapping[str, KernelParts],
) -> tuple[list[Event], list[Event], list[Event]]:
    """Return three lists of trace events for a rank's spans: CPU launches, GPU operations, and arrows between them."""
    launches: list[Event] = []
    work: list[Event] = []
    flows: list[Event] = []
    ordered = sorted(spans, key=lambda span: (span.start, streams[span.stream], span.end))
    # HTA takes index and correlation 0 for "none", hence numbers from 1 on.
    for correlation, span in enumerate(ordered, 1):
        start, end = _nanoseconds(span.start), _nanoseconds(span.end)
        launched = max(0, start - _LAUNCH_LEAD)
        name, category, args = _described(span, collectives, groups, rank, kernels)
        ids = {"correlation": correlation, "External id": correlation}
        cpu = {"pid": _CPU + rank, "tid": _CPU + rank}
        gpu = {"pid": rank, "tid": streams[span.stream]}
        runtime = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
        launches.append(_complete("cuda_runtime", runtime, cpu, launched, launched, ids))
        args = {"device": rank, "stream": streams[span.stream], **ids, **args}
        work.append(_complete(category, name, gpu, start, end, args))
        flow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
        # An arrow ("flow event") from the launch ("s") to the start of the kernel ("f", bound to the enclosing slice).
        flows.append({"ph": "s", **flow, **cpu, "ts": _us(launched)})
        flows.append({"ph": "f", **flow, **gpu, "ts": _us(start), "bp": "e"})
    return launches, work, flows


def _described(
    span: Span,
    collectives: Mapping[str, Collective],
    groups: Mapping[tuple[int, ...], str],
    rank: int,
    kernels: Mapping[str, KernelParts],
) -> tuple[str, str, Event]:
    """Return a span's name, category ("kernel" or "gpu_memcpy") and arguments, as trace tools expect them."""
    collective = collectives.get(span.name)
    # Copies are collectives of a single rank in the program, yet memcpy in a trace.
    if collective is not None and not collective.schedule.operation.startswith("copy"):
        args = collective_args(collective, groups[collective.group], rank)
        return kernel_name(collective), "kernel", {**args, "op": span.name}
    facts: Event = {"kind": span.kind, "bytes": span.nbytes, "flops": span.flops}
    if span.stream in _COPIES:
        return f"Memcpy {_COPIES[span.stream]} {span.name}", "gpu_memcpy", facts
    # `simulator compare-trace` reads these kinds.
    return span.name, "kernel", {**facts, "kernels": [list(kernel) for kernel in kernels.get(span.name, ())]}


def _steps(rank: int, end: float, steps: Sequence[float]) -> list[Event]:
    """Return a trace event "ProfilerStep#N" for each training step, given the steps' starts and the run's end [s]."""
    borders = [*sorted(steps or (0.0,)), end]
    where = {"pid": _CPU + rank, "tid": _CPU + rank}
    events: list[Event] = []
    for number, (start, stop) in enumerate(pairwise(borders)):
        # The last step ends a nanosecond after its last operation, to keep this operation inside the step.
        begin, last = _nanoseconds(start), _nanoseconds(stop) + (number == len(borders) - 2)
        events.append(_complete("user_annotation", f"ProfilerStep#{number}", where, begin, last, {}))
    return events


def _complete(category: str, name: str, where: Event, start: int, end: int, args: Event) -> Event:
    """Return a trace event with start and duration (type "X"), from times in nanoseconds."""
    times = {"ts": _us(start), "dur": _us(end - start)}
    return {"ph": "X", "cat": category, "name": name, **where, **times, "args": args}


def _memory(timeline: Timeline, rank: int) -> list[Event]:
    """Return a counter event with the bytes by category for each memory sample of a rank."""
    return [
        # Perfetto stacks the categories of a counter.
        {"ph": "C", "name": "HBM in use", "pid": rank, "ts": _us(_nanoseconds(s.time)), "args": dict(s.by_category)}
        for s in by_rank(timeline.memory).get(rank, ())
    ]


def _names(rank: int, streams: Mapping[str, int]) -> list[Event]:
    """Return metadata events that name the processes (host, GPU) and tracks (launches, streams) of a rank's trace."""
    events = [
        _meta("process_name", _CPU + rank, 0, {"name": "simulated host"}),
        _meta("process_labels", _CPU + rank, 0, {"labels": "CPU"}),
        _meta("process_sort_index", _CPU + rank, 0, {"sort_index": rank}),
        _meta("process_name", rank, 0, {"name": f"rank {rank}"}),
        _meta("process_labels", rank, 0, {"labels": f"GPU {rank}"}),
        # GPU tracks come below the CPU tracks.
        _meta("process_sort_index", rank, 0, {"sort_index": 5_000_000 + rank}),
        _meta("thread_name", _CPU + rank, _CPU + rank, {"name": "launches"}),
    ]
    for name, number in streams.items():
        events.append(_meta("thread_name", rank, number, {"name": f"stream {number} {name}"}))
        events.append(_meta("thread_sort_index", rank, number, {"sort_index": number}))
    return events


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    """Return a metadata event (type "M") for a process or a thread of a trace."""
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _nanoseconds(seconds: float) -> int:
    """Return seconds as a rounded number of nanoseconds."""
    # Both ends of a span are rounded the same way, so touching spans still touch and nothing overlaps.
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> int | float:
    """Return nanoseconds as microseconds, as an integer if possible (shorter in JSON)."""
    return nanoseconds // 1000 if nanoseconds % 1000 == 0 else nanoseconds / 1000
