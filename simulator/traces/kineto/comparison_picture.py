"""Picture of a comparison with a trace: measured and simulated work of each rank on one time axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from simulator.records.timeline import Span
from simulator.report.plots.both.timeline import Bar, Block, Lane, blocks_figure, lane_of
from simulator.report.plots.picture import Picture
from simulator.report.views.timeline_pairs import TimelinePair, TimelinePairs
from simulator.report.views.view import view_of_spans
from simulator.traces.gpu_work import GpuStep, GpuWork
from simulator.traces.kineto.comparison import TraceComparison

# Maximum size of a timeline on the page, before text encoding [B].
_MOST_BYTES: Final = 500_000
# Ranks in the picture.
_MOST_RANKS: Final = 4
_NS: Final = 1e-9
_STREAMS: Final = ("kernels", "communication", "copies")


def pictures(comparison: TraceComparison) -> tuple[Picture, ...]:
    """Return the picture of both timelines."""
    end = max(step.duration for step in (*comparison.measured, *comparison.simulated)) * _NS
    pairs = list(zip(comparison.measured, comparison.simulated, strict=True))
    blocks = [
        Block(f"rank {step.rank}, {side}", lanes)
        for pair in pairs[:_MOST_RANKS]
        for side, step in zip(("measured", "simulated"), pair, strict=True)
        if (lanes := tuple(_lanes(step, end)))
    ]
    note = f"{_MOST_RANKS} of {len(pairs)} ranks shown" if len(pairs) > _MOST_RANKS else ""
    return (Picture("both_timelines", blocks_figure(blocks, end, comparison.sentences[0].rstrip("."), note)),)


def timelines(comparison: TraceComparison) -> TimelinePairs:
    """Return both timelines of each rank for a page, on one time axis, with the first difference marked."""
    end = max(step.duration for step in (*comparison.measured, *comparison.simulated)) * _NS
    pairs = []
    for measured, simulated in list(zip(comparison.measured, comparison.simulated, strict=True))[:_MOST_RANKS]:
        first = next(
            (diff for diff in (comparison.order, comparison.time) if diff is not None and diff.rank == measured.rank),
            None,
        )
        views = [view_of_spans(_spans(step), end) for step in (measured, simulated)]
        pairs.append(TimelinePair(f"rank {measured.rank}", views, None if first is None else first.start * _NS))
    return TimelinePairs(("measured", "simulated"), pairs, _MOST_BYTES, "trace of")


def _spans(step: GpuStep) -> Iterable[Span]:
    """Yield a span for each kind of each operation, kernels first."""
    for stream in _STREAMS:
        for work in step.work:
            if _stream(work) == stream:
                for part in work.parts():
                    yield Span(step.rank, stream, part.name, part.kind, part.start * _NS, part.end * _NS)


def _lanes(step: GpuStep, end: float) -> Iterable[Lane]:
    """Yield the rows of a step that have work: kernels, communication, copies."""
    for name in _STREAMS:
        lane = [work for work in step.work if _stream(work) == name]
        if lane:
            yield lane_of(name, [_bar(work) for work in lane], end)


def _stream(work: GpuWork) -> str:
    """Return the row of an operation."""
    return "communication" if work.communicates else "copies" if work.with_host else "kernels"


def _bar(work: GpuWork) -> Bar:
    return Bar(work.start * _NS, work.end * _NS, work.kind, work.kind)
