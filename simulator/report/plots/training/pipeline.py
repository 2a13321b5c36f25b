"""Which micro-batch passes through which stage, and when? A row for each stage of a pipeline, with a pale bubble.

Only the timeline's content is drawn. A bar is a micro-batch's pass through a chunk of layers, from its first kernel to
its last, including exchanges within the pass. 1F1B with 2 stages and 3 micro-batches (F forward, B backward):

    stage 0   F0 F1 .. .. B0 B0 F2 B1 B1 .. B2 B2
    stage 1   .. F0 B0 B0 F1 B1 B1 F2 B2 B2 .. ..
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.basics.intervals import length
from simulator.basics.units import format_time
from simulator.records.measures import share_text
from simulator.records.operation import ISSUE
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_STAGES: Final = 32
# [inch]
_WIDTH: Final = 12.0
# Pixels of the time axis, and pixels per digit of a micro-batch's number.
_PIXELS: Final = 1500
_OF_A_DIGIT: Final = 12
_PASSES: Final = {"forward": "forward", "recompute": "backward", "backward": "backward"}
_SHOWN: Final = ("forward", "backward", "weight gradient", "optimizer", "send", "idle")


@dataclass(frozen=True, slots=True)
class StagePass:
    """The work of a micro-batch on a rank's chunk of layers: a forward, backward or weight-gradient pass."""

    kind: str  # "forward", "backward", "weight gradient" or "optimizer"
    micro: int  # micro-batch; -1 for the optimizer
    chunk: int  # chunk of layers on the rank; -1 if unknown
    # `start`, `end`: [s]
    start: float
    end: float


def passes(spans: Sequence[Span]) -> list[StagePass]:
    """Return the micro-batch passes (and the optimizer) of a rank in time order, joined from its kernels' spans.

    >>> spans = [Span(0, "compute", f"layer {i} forward 2", "forward", i, i + 1.0) for i in (0, 1)]
    >>> passes(spans)
    [StagePass(kind='forward', micro=2, chunk=0, start=0, end=2.0)]
    """
    stage_passes: list[StagePass] = []
    chunk_of = _chunks(spans)
    for span in spans:
        kind, micro, chunk = _pass_of(span, chunk_of)
        if not kind:
            continue
        last = stage_passes[-1] if stage_passes else None
        # A rank may wait for others between the optimizer's kernels: these are separate bars.
        if kind == "optimizer" and last is not None and span.start > last.end:
            last = None
        # Embedding and head have no layer number: they belong to the chunk of their neighbour.
        if last is not None and (last.kind, last.micro) == (kind, micro) and chunk in (-1, last.chunk):
            stage_passes[-1] = StagePass(kind, micro, last.chunk, last.start, span.end)
        elif last is not None and (last.kind, last.micro, last.chunk) == (kind, micro, -1):
            stage_passes[-1] = StagePass(kind, micro, chunk, last.start, span.end)
        else:
            stage_passes.append(StagePass(kind, micro, chunk, span.start, span.end))
    return stage_passes


def _layer(span: Span) -> int | None:
    """Return the layer number in a span's name ("layer 3 forward 0": 3); None without a layer."""
    words = span.name.split()
    return int(words[1]) if words[0] == "layer" and words[1].isdigit() else None


def _chunks(spans: Sequence[Span]) -> dict[int, int]:
    """Return {layer: chunk number} for a rank's spans: contiguous layers form a chunk."""
    layers = sorted({layer for span in spans if (layer := _layer(span)) is not None})
    chunk_of: dict[int, int] = {}
    for layer in layers:
        before = chunk_of.get(layer - 1)
        chunk_of[layer] = before if before is not None else len(set(chunk_of.values()))
    return chunk_of


def _pass_of(span: Span, chunk_of: dict[int, int]) -> tuple[str, int, int]:
    """Return kind of pass, micro-batch and chunk of a span; the kind is "" if the span belongs to no pass."""
    if span.stream != "compute":
        return "", -1, -1
    if span.kind == "optimizer":
        return "optimizer", -1, -1
    # Kernels are named "layer 3 forward 0, ...": the last word before the comma is the micro-batch.
    number = span.name.partition(",")[0].split()[-1]
    if not number.isdigit():
        return "", -1, -1
    layer = _layer(span)
    kind = "weight gradient" if span.kind == "weight gradient" else _PASSES.get(span.kind, "")
    return kind, int(number), -1 if layer is None else chunk_of[layer]


def _stages(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of each pipeline stage's first rank, sorted by the stage's first layer."""
    firsts: dict[frozenset[int], list[Span]] = {}
    for rank_spans in by_rank(spans).values():
        layers = frozenset(layer for span in rank_spans if (layer := _layer(span)) is not None)
        if layers:
            # Ranks with the same layers belong to the same stage.
            firsts.setdefault(layers, sorted(rank_spans, key=lambda span: span.start))
    return [firsts[layers] for layers in sorted(firsts, key=min)]


def first_of_stages(timeline: Timeline) -> list[int]:
    """Return the first recorded rank of each pipeline stage; empty without a pipeline."""
    if not any(span.kind == "send" for span in timeline.spans):
        return []
    return [stage[0].rank for stage in _stages(timeline.spans)]


def figure(close_up: CloseUp) -> Figure | None:
    """Return a figure with a row of micro-batch passes per pipeline stage.

    None without a pipeline or with too many stages.
    """
    spans, end = close_up.timeline.spans, close_up.timeline.end
    if not any(span.kind == "send" for span in spans):
        return None
    stages = _stages(spans)
    if not 1 < len(stages) <= _MOST_STAGES:
        return None
    # Issuing kernels on the host does not make a GPU busy.
    idle = [1 - length((span.start, span.end) for span in stage if span.stream != ISSUE) / end for stage in stages]
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.42 * len(stages))
        axes = fig.subplots()
        for row, stage in enumerate(stages):
            _row(axes, row, stage, end)
        axes.set_xlim(0.0, end)
        axes.set_yticks(range(len(stages)), [f"stage {row} (rank {stage[0].rank})" for row, stage in enumerate(stages)])
        axes.set_ylim(len(stages) - 0.4, -0.6)
        style.time_axis(axes, end)
        style.set_title(fig, _finding(idle, end))
        _legend(fig, stages)
    return fig


def _finding(idle: Sequence[float], end: float) -> str:
    """Return a sentence with the mean, lowest and highest idle share of the stages, in a step of `end` seconds."""
    least, most = (pick(range(len(idle)), key=idle.__getitem__) for pick in (min, max))
    mean = sum(idle) / len(idle)
    return (
        f"Mean idle time of {len(idle)} stages: {share_text(mean)} of {format_time(end)} (lowest: stage {least}, "
        f"{share_text(idle[least])}; highest: stage {most}, {share_text(idle[most])})"
    )


def _row(axes: Axes, row: int, stage: Sequence[Span], end: float) -> None:
    """Draw a pipeline stage's row: bars of passes with micro-batch numbers, and sends and receives below."""
    axes.broken_barh([(0.0, end)], (row - 0.4, 0.8), facecolors=style.PALE)
    work = passes(stage)
    for kind in ("forward", "backward", "weight gradient", "optimizer"):
        # Later chunks of a rank are paler.
        for later in (False, True):
            bars = [(bar.start, bar.end - bar.start) for bar in work if bar.kind == kind and (bar.chunk > 0) == later]
            axes.broken_barh(
                bars, (row - 0.4, 0.8), facecolors=style.OPERATIONS[kind], edgecolors="white", linewidths=0.4,
                alpha=0.65 if later else 1.0,
            )  # fmt: skip
    for bar in _legible(work, end):
        axes.text(
            (bar.start + bar.end) / 2, row, str(bar.micro), fontsize=style.SMALLEST_TEXT, ha="center",
            va="center_baseline", color=style.text_on(style.OPERATIONS[bar.kind]), clip_on=True,
        )  # fmt: skip
    sends = [(span.start, span.end - span.start) for span in stage if span.kind == "send"]
    axes.broken_barh(sends, (row + 0.3, 0.1), facecolors=style.OPERATIONS["send"])


def _legible(work: Sequence[StagePass], end: float) -> Iterator[StagePass]:
    """Yield the passes whose bars are wide enough for the micro-batch number."""
    for bar in work:
        room = (bar.end - bar.start) / end * _PIXELS
        if bar.micro >= 0 and room > _OF_A_DIGIT * len(str(bar.micro)):
            yield bar


def _legend(fig: Figure, stages: Sequence[Sequence[Span]]) -> None:
    """Draw the legend: a colour per kind of pass, and a note on numbers and paler bars."""
    from matplotlib.patches import Patch

    work = [bar for stage in stages for bar in passes(stage)]
    kinds = {"send", "idle", *(bar.kind for bar in work)}
    handles = [Patch(facecolor=style.OPERATIONS[kind], label=kind) for kind in _SHOWN if kind in kinds]
    later = "paler: later chunks of the rank's layers; " if any(bar.chunk > 0 for bar in work) else ""
    note = f"numbers: micro-batches; {later}below a row: sends and receives"
    fig.legend(handles=handles, loc="outside lower left", ncols=len(handles), title=note, alignment="left")


PLOT = CloseUpPlot(figure=figure)
