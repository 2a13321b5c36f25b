"""Which spans of which ranks does a page show? A lane per rank and stream; ranks with equal spans share a lane."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.records.operation import Compute, KernelParts
from simulator.records.program import Program
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.numbers.participants import Participant, ParticipantTraffic, traffic
from simulator.report.plots.training.pipeline import first_of_stages, passes
from simulator.step.streams import dimension_of

# Operations of a single purpose stay whole: the optimizer, and copies and sums of gradients.
_SINGLE_PURPOSE: Final = ("optimizer", "copies", "accumulate")
# Distinct ranks shown; the first, the last to end and slow ranks are always among them.
_MOST_RANKS: Final = 16
# Maximum number of transfers in send and receive lanes.
_MOST_TRANSFERS: Final = 50_000
# Distinct servers and switches shown.
_MOST_OTHERS: Final = 8
# Smaller shares of the time are invisible, even with a hundredfold zoom on a thousand pixels.
_SEEN: Final = 1e-5
# Name ending that distinguishes process groups: "send 0 (pipeline 1)".
_OF_GROUP: Final = re.compile(r" \([a-z ]+ \d+\)$")
# Order of a rank's lanes.
_ORDER: Final = {"compute": 0, "communication": 1}


def lanes(
    timeline: Timeline,
    unit: float,
    groups: Mapping[str, Sequence[int]] | None,
    slow: Sequence[int],
    notes: list[str],
    program: Program | None = None,
) -> dict[str, Any]:
    """Return the timeline's spans as columns of numbers, a lane (row of the page's picture) per rank and stream.

    Returns
    -------
    dict
        `names` and `kinds`: texts. `lanes`: dicts with `rank` (or a server's or switch's vertex), `alike` (all
        ranks or vertices with equal spans), `stream`, and columns `start` (distance from the span before
        [units]), `duration` [units], `name` and `kind` (indices of the texts), and with a program `waits`:
        index of the name of the dependency that ended last before the span, -1 without a dependency; and
        `kernels`: index in `passes` (lists of kind and share), -1 for a span that is not split into kernels.
    """
    ranks = by_rank(timeline.spans)
    firsts = {group[0]: group for group in _equal_ranks(ranks, timeline.end)}
    # In large runs only chosen ranks have spans.
    last = timeline.last_rank if timeline.last_rank in ranks else None
    visible = _select(firsts, last, slow)
    if len(visible) < len(firsts):
        notes.append(f"{len(visible)} of {len(firsts)} different ranks are shown")
    texts: dict[str, dict[str, int]] = {"names": {}, "kinds": {}}
    # Too many transfers would make the page heavy, and be invisible anyway.
    moved = traffic(timeline, groups) if groups is not None and timeline.transfers <= _MOST_TRANSFERS else {}
    rows = []
    kernels: dict[KernelParts, int] = {}
    for rank in visible:
        awaited = {} if program is None else _awaited(program, rank, ranks[rank])
        made_of = {} if program is None else _kernels_of_passes(program, rank)
        rows += [
            _lane(rank, firsts[rank], stream, spans, unit, texts, awaited) | _kernels(spans, made_of, kernels)
            for stream, spans in _streams(ranks[rank])
        ]
        rows += [_traffic_lane(rank, firsts[rank], flow, unit, texts) for flow in moved.get(rank, ())]
    rows += _server_lanes(moved, unit, texts, notes)
    return {
        "names": list(texts["names"]),
        "kinds": list(texts["kinds"]),
        "passes": list(kernels),
        "lanes": rows,
        "last_rank": _first_of(firsts, last),
        "slow": [_first_of(firsts, rank) for rank in slow],
    }


def pipeline(timeline: Timeline, unit: float) -> dict[str, Any] | None:
    """Return a lane (picture row) per pipeline stage, with passes named by micro-batch; None without a pipeline."""
    firsts, ranks = first_of_stages(timeline), by_rank(timeline.spans)
    if len(firsts) < 2:
        return None
    spans = [
        Span(rank, f"stage {stage}", _pass_name(bar.kind, bar.micro, bar.chunk), bar.kind, bar.start, bar.end)
        for stage, rank in enumerate(firsts)
        for bar in passes(sorted(ranks[rank], key=lambda span: span.start))
    ]
    return lanes_of_streams(spans, unit)


def lanes_of_streams(spans: Iterable[Span], unit: float) -> dict[str, Any]:
    """Return spans as in `lanes`, with a lane for each rank and stream in the order of their first spans."""
    texts: dict[str, dict[str, int]] = {"names": {}, "kinds": {}}
    streams: dict[tuple[int, str], list[Span]] = {}
    for span in spans:
        streams.setdefault((span.rank, span.stream), []).append(span)
    rows = [_lane(rank, (rank,), stream, group, unit, texts) for (rank, stream), group in streams.items()]
    return {"names": list(texts["names"]), "kinds": list(texts["kinds"]), "lanes": rows, "last_rank": None, "slow": []}


def _pass_name(kind: str, micro: int, chunk: int) -> str:
    """Return a pass's name from its kind, micro-batch and chunk of layers: '3 backward, chunk 1'."""
    if micro < 0:
        return kind
    return f"{micro} {kind}" if chunk <= 0 else f"{micro} {kind}, chunk {chunk}"


def _equal_ranks(ranks: Mapping[int, Sequence[Span]], end: float) -> list[list[int]]:
    """Return groups of ranks that run the same operations at the same times, up to an invisible difference.

    Ranks of a stage differ by a few nanoseconds and by the number of their process group: "send 0 (pipeline 1)".
    """
    groups: dict[tuple[Any, ...], list[tuple[Floats, list[int]]]] = {}
    for rank in sorted(ranks):
        # Exact comparison of operations first; only ranks with the same list need their times compared.
        does = tuple((span.stream, span.kind, _OF_GROUP.sub("", span.name)) for span in ranks[rank])
        times = np.array([(span.start, span.end) for span in ranks[rank]])
        pairs = groups.setdefault(does, [])
        # Compare with the first rank of each group only.
        group = next((ranks for first, ranks in pairs if np.allclose(first, times, rtol=0.0, atol=_SEEN * end)), None)
        if group is None:
            group = []
            pairs.append((times, group))
        group.append(rank)
    return sorted(group for pairs in groups.values() for _, group in pairs)


def _first_of(firsts: Mapping[int, Sequence[int]], rank: int | None) -> int | None:
    """Return the first rank of the group of equal ranks containing `rank`; None if there is none."""
    return next((first for first, group in firsts.items() if rank in group), None)


def _select(firsts: Mapping[int, Sequence[int]], last: int | None, slow: Sequence[int]) -> list[int]:
    """Return the ranks to show: the last to end, slow ranks, and an even spread of the others."""
    required = [rank for rank in (_first_of(firsts, number) for number in (last, *slow)) if rank is not None]
    every = sorted(firsts)
    spread = [every[i * len(every) // _MOST_RANKS] for i in range(_MOST_RANKS)] if len(every) > _MOST_RANKS else every
    return sorted(dict.fromkeys([*required, *spread]))[: _MOST_RANKS + len(required)]


def _streams(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """Return a rank's spans as (stream, spans) pairs: compute, communication, then the rest by name."""
    by_stream: dict[str, list[Span]] = {}
    for span in spans:
        # Each pipeline boundary has a separate stream; a single lane shows every boundary.
        stream = "sends to stages" if dimension_of(span.stream) == "pp" else span.stream
        by_stream.setdefault(stream, []).append(span)
    ordered = sorted(by_stream, key=lambda stream: (_ORDER.get(stream.partition(" ")[0], 2), stream))
    return [(stream, sorted(by_stream[stream], key=lambda span: span.start)) for stream in ordered]


def _awaited(program: Program, rank: int, spans: Sequence[Span]) -> dict[str, str]:
    """Return {operation: dependency that ended last} for the operations of a rank that have dependencies."""
    ends = {span.name: span.end for span in spans}
    # Example: "layer 1 forward" after ("layer 0 forward", "gather layer 1"); the later of both ends is the start.
    waits = ((op.name, [name for name in op.after if name in ends]) for op in program.ranks[rank])
    return {name: max(after, key=ends.__getitem__) for name, after in waits if after}


def _lane(
    rank: int,
    group: Sequence[int],
    stream: str,
    spans: Sequence[Span],
    unit: float,
    texts: dict[str, dict[str, int]],
    awaited: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a lane (picture row) of a rank's spans on a stream; new names and kinds are added to `texts`."""
    starts = np.array([span.start for span in spans])
    ends = np.array([span.end for span in spans])
    names = [texts["names"].setdefault(span.name, len(texts["names"])) for span in spans]
    kinds = [texts["kinds"].setdefault(span.kind, len(texts["kinds"])) for span in spans]
    lane = _columns(rank, group, stream, starts, ends, unit) | {"name": names, "kind": kinds}
    if not awaited:
        return lane
    before = [awaited.get(span.name) for span in spans]
    numbers = [-1 if name is None else texts["names"].setdefault(name, len(texts["names"])) for name in before]
    return lane | {"waits": numbers}


def _kernels(
    spans: Sequence[Span], made_of: Mapping[str, KernelParts], numbers: dict[KernelParts, int]
) -> dict[str, list[int]]:
    """Return a column with the number of each span's kernels, {} if none is split; add new kernels to `numbers`."""
    column = [numbers.setdefault(made_of[span.name], len(numbers)) if span.name in made_of else -1 for span in spans]
    return {"kernels": column} if max(column, default=-1) >= 0 else {}


def _traffic_lane(
    who: Participant,
    group: Sequence[Participant],
    flow: ParticipantTraffic,
    unit: float,
    texts: dict[str, dict[str, int]],
) -> dict[str, Any]:
    """Return a lane (picture row) with each transfer that a participant sends or receives."""
    names = [texts["names"].setdefault(name, len(texts["names"])) for name in flow.names]
    kind = texts["kinds"].setdefault("transfer", len(texts["kinds"]))
    columns = _columns(who, group, flow.direction, flow.start, flow.end, unit)
    return columns | {"name": names, "kind": [kind] * len(names)}


def _server_lanes(
    moved: Mapping[Participant, Sequence[ParticipantTraffic]],
    unit: float,
    texts: dict[str, dict[str, int]],
    notes: list[str],
) -> list[dict[str, Any]]:
    """Return lanes (picture rows) for servers and switches; participants with equal transfers share lanes."""
    groups: dict[Any, list[str]] = {}
    for who, flows in moved.items():
        if isinstance(who, str):
            looks = [_columns(flow.direction, (), "", flow.start, flow.end, unit) for flow in flows]
            groups.setdefault(repr(looks), []).append(who)
    visible = list(groups.values())[:_MOST_OTHERS]
    if len(visible) < len(groups):
        notes.append(f"{len(visible)} of {len(groups)} different servers and switches are shown")
    return [_traffic_lane(names[0], names, flow, unit, texts) for names in visible for flow in moved[names[0]]]


def _columns(
    rank: Participant, group: Sequence[Participant], stream: str, starts: Any, ends: Any, unit: float
) -> dict[str, Any]:
    """Return a lane's columns of starts (as differences) and durations in whole units of `unit` seconds."""
    begins, stops = (np.rint(times / unit).astype(np.int64) for times in (starts, ends))
    return {
        "rank": rank,
        "alike": list(group),
        "stream": stream,
        # Differences are small numbers, which take less room in JSON than times since the start.
        "start": np.diff(begins, prepend=0).tolist(),
        "duration": (stops - begins).tolist(),
    }


def _kernels_of_passes(program: Program, rank: int) -> Mapping[str, KernelParts]:
    """Return the kinds of kernels, with shares of the duration, of each pass of a rank whose kernels are known."""
    return {
        op.name: op.kernel_shares
        for op in program.ranks[rank]
        if isinstance(op, Compute) and op.parts and op.kind not in _SINGLE_PURPOSE
    }
