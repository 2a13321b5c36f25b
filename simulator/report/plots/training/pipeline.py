"""Which micro-batch went through which stage when: a row for each stage of a pipeline, its bubble left pale.

Rule: only what the timeline holds is drawn. A bar is one pass of one micro-batch through one chunk of layers, from its
first kernel to its last, so that what is exchanged inside of a pass is part of it.
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
_WIDTH: Final = 12.0  # [inch]
# Pixels that a micro-batch's number needs, for each of its digits, of some 1500.
_PIXELS: Final = 1500
_OF_A_DIGIT: Final = 12
_PASSES: Final = {"forward": "forward", "recompute": "backward", "backward": "backward"}
_SHOWN: Final = ("forward", "backward", "weight gradient", "optimizer", "send", "idle")


@dataclass(frozen=True, slots=True)
class StagePass:
    """One micro-batch through one chunk of a rank.

    Attributes
    ----------
    kind : str
    micro : int
        -1 for the optimizer's step.
    chunk : int
    start, end : float
        [s]
    """

    kind: str
    micro: int
    chunk: int
    start: float
    end: float


def passes(spans: Sequence[Span]) -> list[StagePass]:
    """The passes of a rank, in order.

    Examples
    --------
    >>> spans = [Span(0, "compute", f"layer {i} forward 2", "forward", i, i + 1.0) for i in (0, 1)]
    >>> passes(spans)
    [StagePass(kind='forward', micro=2, chunk=0, start=0, end=2.0)]
    """
    found: list[StagePass] = []
    chunk_of = _chunks(spans)
    for span in spans:
        kind, micro, chunk = _what(span, chunk_of)
        if not kind:
            continue
        last = found[-1] if found else None
        # Between the optimizer's kernels a rank may wait for others.
        if kind == "optimizer" and last is not None and span.start > last.end:
            last = None
        # Embedding and head have no number: they are of the chunk that their neighbour is of.
        if last is not None and (last.kind, last.micro) == (kind, micro) and chunk in (-1, last.chunk):
            found[-1] = StagePass(kind, micro, last.chunk, last.start, span.end)
        elif last is not None and (last.kind, last.micro, last.chunk) == (kind, micro, -1):
            found[-1] = StagePass(kind, micro, chunk, last.start, span.end)
        else:
            found.append(StagePass(kind, micro, chunk, span.start, span.end))
    return found


def _layer(span: Span) -> int | None:
    words = span.name.split()
    return int(words[1]) if words[0] == "layer" and words[1].isdigit() else None


def _chunks(spans: Sequence[Span]) -> dict[int, int]:
    """By layer the number of the run of neighbouring layers that it is in."""
    layers = sorted({layer for span in spans if (layer := _layer(span)) is not None})
    chunk_of: dict[int, int] = {}
    for layer in layers:
        before = chunk_of.get(layer - 1)
        chunk_of[layer] = before if before is not None else len(set(chunk_of.values()))
    return chunk_of


def _what(span: Span, chunk_of: dict[int, int]) -> tuple[str, int, int]:
    """Kind, micro-batch and chunk; an empty kind for what is no part of a pass."""
    if span.stream != "compute":
        return "", -1, -1
    if span.kind == "optimizer":
        return "optimizer", -1, -1
    number = span.name.partition(",")[0].split()[-1]
    if not number.isdigit():
        return "", -1, -1
    layer = _layer(span)
    kind = "weight gradient" if span.kind == "weight gradient" else _PASSES.get(span.kind, "")
    return kind, int(number), -1 if layer is None else chunk_of[layer]


def _stages(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans of the first rank of each stage, the first layers' first."""
    firsts: dict[frozenset[int], list[Span]] = {}
    for own in by_rank(spans).values():
        layers = frozenset(layer for span in own if (layer := _layer(span)) is not None)
        if layers:
            firsts.setdefault(layers, sorted(own, key=lambda span: span.start))
    return [firsts[layers] for layers in sorted(firsts, key=min)]


def first_of_stages(timeline: Timeline) -> list[int]:
    """The first rank of each stage whose operations are kept; none where layers are not cut over ranks."""
    if not any(span.kind == "send" for span in timeline.spans):
        return []
    return [own[0].rank for own in _stages(timeline.spans)]


def figure(close_up: CloseUp) -> Figure | None:
    """Draw a pipeline; None where layers are not cut over ranks, or over too many to be seen."""
    spans, end = close_up.timeline.spans, close_up.timeline.end
    if not any(span.kind == "send" for span in spans):
        return None
    stages = _stages(spans)
    if not 1 < len(stages) <= _MOST_STAGES:
        return None
    idle = [1 - length((span.start, span.end) for span in own if span.stream != ISSUE) / end for own in stages]
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.42 * len(stages))
        axes = fig.subplots()
        for row, own in enumerate(stages):
            _row(axes, row, own, end)
        axes.set_xlim(0.0, end)
        axes.set_yticks(range(len(stages)), [f"stage {row} (rank {own[0].rank})" for row, own in enumerate(stages)])
        axes.set_ylim(len(stages) - 0.4, -0.6)
        style.time_axis(axes, end)
        style.set_title(fig, _finding(idle, end))
        _legend(fig, stages)
    return fig


def _finding(idle: Sequence[float], end: float) -> str:
    least, most = (pick(range(len(idle)), key=idle.__getitem__) for pick in (min, max))
    mean = sum(idle) / len(idle)
    return (
        f"{len(idle)} stages are idle for {share_text(mean)} of {format_time(end)} in the mean: stage {least} for "
        f"{share_text(idle[least])}, stage {most} for {share_text(idle[most])}"
    )


def _row(axes: Axes, row: int, own: Sequence[Span], end: float) -> None:
    axes.broken_barh([(0.0, end)], (row - 0.4, 0.8), facecolors=style.PALE)
    made = passes(own)
    for kind in ("forward", "backward", "weight gradient", "optimizer"):
        for later in (False, True):
            bars = [(one.start, one.end - one.start) for one in made if one.kind == kind and (one.chunk > 0) == later]
            axes.broken_barh(
                bars, (row - 0.4, 0.8), facecolors=style.OPERATIONS[kind], edgecolors="white", linewidths=0.4,
                alpha=0.65 if later else 1.0,
            )  # fmt: skip
    for one in _legible(made, end):
        axes.text(
            (one.start + one.end) / 2, row, str(one.micro), fontsize=style.SMALLEST_TEXT, ha="center",
            va="center_baseline", color=style.text_on(style.OPERATIONS[one.kind]), clip_on=True,
        )  # fmt: skip
    sends = [(span.start, span.end - span.start) for span in own if span.kind == "send"]
    axes.broken_barh(sends, (row + 0.3, 0.1), facecolors=style.OPERATIONS["send"])


def _legible(made: Sequence[StagePass], end: float) -> Iterator[StagePass]:
    """Passes that are wide enough for their number."""
    for one in made:
        room = (one.end - one.start) / end * _PIXELS
        if one.micro >= 0 and room > _OF_A_DIGIT * len(str(one.micro)):
            yield one


def _legend(fig: Figure, stages: Sequence[Sequence[Span]]) -> None:
    from matplotlib.patches import Patch

    made = [one for own in stages for one in passes(own)]
    there = {"send", "idle", *(one.kind for one in made)}
    handles = [Patch(facecolor=style.OPERATIONS[kind], label=kind) for kind in _SHOWN if kind in there]
    later = "paler: a rank's later chunks of layers; " if any(one.chunk > 0 for one in made) else ""
    note = f"numbers: micro-batches; {later}below a row: sends and receives"
    fig.legend(handles=handles, loc="outside lower left", ncols=len(handles), title=note, alignment="left")


PLOT = CloseUpPlot(figure=figure)
