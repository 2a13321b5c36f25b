"""Which kernels and collectives ran when, on which rank: one lane for each rank and stream, as a profiler shows it.

Rule: only what the timeline holds is drawn; work shorter than a pixel is merged with its neighbours, not dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from simulator.basics.intervals import length
from simulator.basics.units import format_time
from simulator.records.operation import HOST, ISSUE
from simulator.records.timeline import Span, Timeline
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LANES: Final = 32
_WIDTH: Final = 12.0  # [inch]
_PIXELS: Final = 1500  # of the time axis at 150 dpi
_MOST_VECTOR_BARS: Final = 4000  # beyond, an SVG holds the bars as an image


@dataclass(frozen=True, slots=True)
class _Bar:
    start: float
    end: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class _Lane:
    rank: int
    stream: str
    bars: tuple[_Bar, ...]


def figure(timeline: Timeline, groups: Mapping[str, Sequence[int]] | None = None) -> Figure:
    """Draw the lanes of at most 32 rank and stream pairs.

    Parameters
    ----------
    timeline : Timeline
    groups : mapping of str to sequence of int, optional
        Ranks of each collective, by its name. Where they are given, each rank also gets a lane of what it sends.

    Returns
    -------
    Figure
        The ranks shown are the first, the one that ends last, and others evenly chosen; a note says what is left out.

    Raises
    ------
    ValueError
        The timeline holds no spans.
    """
    if not timeline.spans:
        raise ValueError("the timeline holds no spans; nothing can be drawn")
    by_rank = {rank: list(spans) for rank, spans in groupby(sorted(timeline.spans, key=_order), lambda s: s.rank)}
    shown, note = _chosen(by_rank, extra=groups is not None)
    lanes = [lane for rank in shown for lane in _lanes(by_rank[rank], timeline.end)]
    if groups is not None:
        lanes = _with_transfers(lanes, timeline, shown, groups)
    kinds = _kinds(lanes)
    palette = style.colours(kinds)
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.3 * max(3, len(lanes)))
        axes = fig.subplots()
        _draw(axes, lanes, palette, timeline.end)
        _label(axes, lanes, shown)
        style.time_axis(axes, timeline.end)
        style.set_title(fig, finding(timeline))
        _legend(fig, palette, note)
    return fig


def finding(timeline: Timeline) -> str:
    """Say how the rank that ends last spent its time.

    Examples
    --------
    >>> finding(Timeline("events", 4.0, (Span(0, "compute", "a", "forward", 0.0, 3.0),
    ...                                  Span(0, "communication", "b", "all_reduce", 2.0, 4.0))))
    'rank 0 ends last, at 4 s: 75 % compute, 25 % communication that nothing hides, 0 % idle'
    >>> finding(Timeline("events", 4.0, (Span(0, "issue", "issue a", "issue", 0.0, 3.0),
    ...                                  Span(0, "compute", "a", "forward", 3.0, 4.0))))
    'rank 0 ends last, at 4 s: 25 % compute, 75 % waiting for its host, 0 % communication that nothing hides, 0 % idle'
    """
    ends = _ends(timeline.spans)
    slowest = _slowest(ends)
    spans = [span for span in timeline.spans if span.rank == slowest]
    total = max(timeline.end, max(span.end for span in spans))
    if total <= 0.0:
        return f"rank {slowest}: nothing takes any time"
    kernels = [s for s in spans if not _communicates(s) and s.stream not in (HOST, ISSUE)]
    work = [s for s in spans if s.stream != ISSUE]
    compute, computed = _union(kernels), _union([s for s in work if not _communicates(s)])
    busy, with_host = _union(work), _union(spans)
    waits = with_host - busy
    shares = (
        compute / total, (busy - computed) / total, 1.0 - with_host / total, (computed - compute) / total, waits / total
    )  # fmt: skip
    percents = [f"{abs(share):.0%}".replace("%", " %") for share in shares]
    together = len(ends) > 1 and max(ends.values()) - min(ends.values()) <= 1e-9 * total
    who = f"{f'all {len(ends)} ranks end' if together else f'rank {slowest} ends last,'} at {format_time(total)}"
    if compute == 0.0:
        return f"{who}: {percents[1]} communication, {percents[2]} idle"
    host = f"{percents[3]} the host's update, " if computed > compute else ""
    host += f"{percents[4]} waiting for its host, " if waits > 0.0 else ""
    return f"{who}: {percents[0]} compute, {host}{percents[1]} communication that nothing hides, {percents[2]} idle"


def _communicates(span: Span) -> bool:
    return span.stream.startswith(("communication", "copy"))


def _union(spans: Sequence[Span]) -> float:
    """Time with at least one of the spans under way [s]."""
    return length((span.start, span.end) for span in spans)


def _order(span: Span) -> tuple[int, int, str, float]:
    place = 0 if span.stream == "compute" else 1 if span.stream.startswith("communication") else 2
    return span.rank, place, span.stream, span.start


def _ends(spans: Iterable[Span]) -> dict[int, float]:
    """When each rank's last operation ended."""
    ends: dict[int, float] = {}
    for span in spans:
        ends[span.rank] = max(ends.get(span.rank, span.end), span.end)
    return ends


def _slowest(ends: Mapping[int, float]) -> int:
    """The rank that ends last; the lowest of several."""
    return min(ends, key=lambda rank: (-ends[rank], rank))


def _chosen(by_rank: dict[int, list[Span]], *, extra: bool) -> tuple[list[int], str]:
    """Ranks whose lanes are shown, and what to say about the others."""
    ranks = sorted(by_rank)
    most_streams = max(len({s.stream for s in spans}) for spans in by_rank.values()) + extra
    most = max(1, _MOST_LANES // most_streams)
    if len(ranks) <= most:
        return ranks, ""
    slowest = _slowest(_ends(span for spans in by_rank.values() for span in spans))
    evenly = {ranks[i * len(ranks) // most] for i in range(most)}
    if slowest not in evenly:
        evenly = set(sorted(evenly)[: most - 1]) | {slowest}
    choice = f"the first, the one that ends last (rank {slowest}), others evenly chosen"
    return sorted(evenly), f"{len(evenly)} of {len(ranks)} ranks: {choice}"


def _lanes(spans: Sequence[Span], end: float) -> list[_Lane]:
    lanes: list[_Lane] = []
    for stream, group in groupby(spans, lambda s: s.stream):
        bars = [_Bar(s.start, s.end, s.kind, s.name) for s in group]
        lanes.append(_Lane(spans[0].rank, stream, merge(bars, end / _PIXELS)))
    return lanes


def merge(bars: Sequence[_Bar], pixel: float) -> tuple[_Bar, ...]:
    """Merge bars shorter than a pixel that lie in the same pixel; the kind that fills most of it gives the colour.

    A pixel that is more than half full is drawn full, and full pixels of one kind in a row become one bar: else the
    gaps that nobody can see would wash the colour out.
    """
    kept: list[_Bar] = []
    cells: dict[int, list[_Bar]] = {}
    for bar in bars:
        if bar.end - bar.start >= pixel or pixel <= 0.0:
            kept.append(bar)
        else:
            cells.setdefault(int((bar.start + bar.end) / 2 / pixel), []).append(bar)
    joined: list[_Bar] = []
    for cell, members in sorted(cells.items()):
        bar = _cell(members, cell * pixel, pixel)
        if joined and joined[-1].kind == bar.kind and bar.start - joined[-1].end < pixel / 2:
            bar = _Bar(joined.pop().start, bar.end, bar.kind, "")
        joined.append(bar)
    return tuple(sorted(kept + joined, key=lambda bar: (bar.start, bar.end)))


def _cell(members: Sequence[_Bar], start: float, pixel: float) -> _Bar:
    filled: dict[str, float] = {}
    for bar in members:
        filled[bar.kind] = filled.get(bar.kind, 0.0) + bar.end - bar.start
    kind = max(filled, key=lambda k: (filled[k], k))
    first, last = min(bar.start for bar in members), max(bar.end for bar in members)
    if sum(filled.values()) > pixel / 2:
        return _Bar(min(start, first), max(start + pixel, last), kind, "")
    return _Bar(first, last, kind, "")


def _with_transfers(
    lanes: list[_Lane], timeline: Timeline, shown: Sequence[int], groups: Mapping[str, Sequence[int]]
) -> list[_Lane]:
    """Add, below each rank's streams, a lane of what it sends."""
    import numpy as np

    sends: dict[int, list[_Bar]] = {rank: [] for rank in shown}
    for log in timeline.logs:
        for participant, rank in enumerate(groups.get(log.collective, ())):
            if rank not in sends:
                continue
            rows = np.flatnonzero(log.transfers.src == participant)
            times = zip(log.enter[rows].tolist(), log.end[rows].tolist(), strict=True)
            sends[rank] += [_Bar(start, end, "transfer", "") for start, end in times]
    with_sends: list[_Lane] = []
    for rank in shown:
        with_sends += [lane for lane in lanes if lane.rank == rank]
        with_sends.append(_Lane(rank, "sends", merge(sends[rank], timeline.end / _PIXELS)))
    return with_sends


def _kinds(lanes: Sequence[_Lane]) -> list[str]:
    filled: dict[str, float] = {}
    for lane in lanes:
        for bar in lane.bars:
            filled[bar.kind] = filled.get(bar.kind, 0.0) + bar.end - bar.start
    return sorted(filled, key=lambda kind: (-filled[kind], kind))


def _draw(axes: Axes, lanes: Sequence[_Lane], palette: dict[str, str], end: float) -> None:
    raster = sum(len(lane.bars) for lane in lanes) > _MOST_VECTOR_BARS
    for row, lane in enumerate(lanes):
        spans = [(bar.start, bar.end - bar.start) for bar in lane.bars]
        shades = [palette[bar.kind] for bar in lane.bars]
        # A thin white edge parts neighbours of one kind; where bars are narrow it would hide them.
        wide = [bar.end - bar.start > 6 * end / _PIXELS for bar in lane.bars]
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=shades, rasterized=raster, antialiased=not raster,
                         edgecolors=["white" if w else "none" for w in wide], linewidths=0.5)  # fmt: skip
        for bar in lane.bars:
            _write(axes, bar, row, palette[bar.kind], end)
    axes.set_xlim(0.0, end if end > 0.0 else 1.0)
    axes.grid(visible=True, axis="x")


def _write(axes: Axes, bar: _Bar, row: int, colour: str, end: float) -> None:
    """Write a bar's name into it where it fits."""
    room = (bar.end - bar.start) / end * _PIXELS if end > 0.0 else 0.0
    letters = int(room / 150 * 72 / 5.3)  # a letter of 8 pt is about 5.3 pt wide
    if len(bar.name) <= letters and bar.name:
        axes.text((bar.start + bar.end) / 2, row, bar.name, fontsize=8.0, ha="center", va="center_baseline",
                  color=style.text_on(colour), clip_on=True)  # fmt: skip


def _label(axes: Axes, lanes: Sequence[_Lane], shown: Sequence[int]) -> None:
    axes.set_yticks(range(len(lanes)), [f"rank {lane.rank}  {lane.stream}" for lane in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    for row in range(1, len(lanes)):
        if lanes[row].rank != lanes[row - 1].rank:
            axes.axhline(row - 0.5, color=style.GREY, linewidth=0.5)


def _legend(fig: Figure, palette: dict[str, str], note: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=kind) for kind, colour in palette.items()]
    fig.legend(handles=handles, loc="outside lower left", ncols=min(8, len(handles)), title=note or None,
                  alignment="left")  # fmt: skip


def _of_point(close_up: CloseUp) -> Figure:
    return figure(close_up.timeline, close_up.groups)


PLOT = CloseUpPlot("timeline", of=("collective", "training"), figure=_of_point)
