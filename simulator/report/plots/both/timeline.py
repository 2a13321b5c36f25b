"""Which kernels and collectives ran when, on which rank: one lane for each rank and stream, as a profiler shows it.

Rule: only what the timeline holds is drawn. Work shorter than a pixel is merged with neighbours in the same pixel, and
what is left is drawn a pixel wide, so that no span is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Final

from simulator.basics.intervals import length
from simulator.basics.units import format_time
from simulator.records.operation import HOST, ISSUE
from simulator.records.timeline import Span, Timeline
from simulator.report.numbers.participants import Participant, Traffic, traffic
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LANES: Final = 32
_WIDTH: Final = 12.0  # [inch]
_PIXELS: Final = 1500  # of the time axis at 150 dpi
# Narrowest bar as a share of the time axis: a pixel, also where long names leave the axis two thirds of its width.
_NARROWEST: Final = 1 / 1000
# Servers and switches that have lanes of their own.
_MOST_OTHERS: Final = 4
_MOST_VECTOR_BARS: Final = 4000  # beyond, an SVG holds the bars as an image


@dataclass(frozen=True, slots=True)
class _Bar:
    start: float
    end: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class _Lane:
    stream: str
    bars: tuple[_Bar, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """The lanes of one rank, server or switch, which stand for all that are alike.

    Attributes
    ----------
    name : str
    lanes : tuple of _Lane
    """

    name: str
    lanes: tuple[_Lane, ...]


def figure(timeline: Timeline, groups: Mapping[str, Sequence[int]] | None = None, slow: Collection[int] = ()) -> Figure:
    """Draw the lanes of at most 32 rank and stream pairs; ranks that do the same at the same time share theirs.

    Parameters
    ----------
    timeline : Timeline
    groups : mapping of str to sequence of int, optional
        Ranks of each collective, by its name. Where they are given, each rank and each server also gets a lane of what
        it sends, and of what it receives at other times.
    slow : collection of int, optional
        Ranks that are drawn in any case, and by themselves.

    Returns
    -------
    Figure
        The ranks shown are the first, the one that ends last, slow ones, and others evenly chosen; a note says what is
        left out.

    Raises
    ------
    ValueError
        The timeline holds no spans.
    """
    if not timeline.spans:
        raise ValueError("the timeline holds no spans; nothing can be drawn")
    by_rank = {rank: list(spans) for rank, spans in groupby(sorted(timeline.spans, key=_order), lambda s: s.rank)}
    moved = {} if groups is None else traffic(timeline, groups)
    alike = _alike_ranks(timeline, by_rank, moved, slow)
    shown, note = _chosen(by_rank, alike, slow, extra=max(map(len, moved.values()), default=0))
    blocks = [
        _Block(_named(ranks, slow), _lanes(by_rank[ranks[0]], moved.get(ranks[0], ()), timeline.end)) for ranks in shown
    ]
    others, left = _others(moved, timeline.end)
    blocks += others
    note = "; ".join(text for text in (note, left) if text)
    lanes = [lane for block in blocks for lane in block.lanes]
    palette = style.colours(_kinds(lanes))
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.3 * max(3, len(lanes)))
        axes = fig.subplots()
        _draw(axes, lanes, palette, timeline.end)
        _label(axes, blocks)
        style.time_axis(axes, timeline.end)
        style.set_title(fig, finding(timeline))
        _legend(fig, palette, note)
    return fig


def _alike_ranks(
    timeline: Timeline,
    by_rank: Mapping[int, Sequence[Span]],
    moved: Mapping[Participant, Sequence[Traffic]],
    slow: Collection[int],
) -> list[tuple[int, ...]]:
    """Ranks in groups that look the same, pixel by pixel; a slow rank stands alone."""
    pixel = timeline.end / _PIXELS or 1.0
    alike: dict[Hashable, list[int]] = {}
    for rank, spans in by_rank.items():
        looks = [(span.stream, span.kind, round(span.start / pixel), round(span.end / pixel)) for span in spans]
        alone = rank if rank in slow else None
        alike.setdefault((alone, tuple(looks), _look(moved.get(rank, ()), pixel)), []).append(rank)
    return [tuple(ranks) for ranks in alike.values()]


def _look(own: Sequence[Traffic], pixel: float) -> Hashable:
    """Transfers of one participant, to the pixel."""
    return tuple(
        (one.direction, tuple((round(start / pixel), round(end / pixel)) for start, end in one.intervals))
        for one in own
    )


def _others(moved: Mapping[Participant, Sequence[Traffic]], end: float) -> tuple[list[_Block], str]:
    """Lanes of servers and switches, those that look the same once, and what to say about the rest."""
    pixel = end / _PIXELS or 1.0
    alike: dict[Hashable, list[str]] = {}
    for who, own in moved.items():
        if isinstance(who, str):
            alike.setdefault(_look(own, pixel), []).append(who)
    named = [
        (names[0] if len(names) == 1 else f"{names[0]} ({len(names)} alike)", names[0]) for names in alike.values()
    ]
    blocks = [_Block(name, _lanes((), moved[first], end)) for name, first in named[:_MOST_OTHERS]]
    left = len(named) - len(blocks)
    return blocks, f"{left} more unlike servers or switches" if left else ""


def finding(timeline: Timeline) -> str:
    """Say how the rank that ends last spent its time.

    Examples
    --------
    >>> finding(Timeline("events", 4.0, (Span(0, "compute", "a", "forward", 0.0, 3.0),
    ...                                  Span(0, "communication", "b", "all_reduce", 2.0, 4.0))))
    'rank 0 ends last, at 4 s: 75 % compute, 25 % exposed communication, 0 % idle'
    >>> finding(Timeline("events", 4.0, (Span(0, "issue", "issue a", "issue", 0.0, 3.0),
    ...                                  Span(0, "compute", "a", "forward", 3.0, 4.0))))
    'rank 0 ends last, at 4 s: 25 % compute, 75 % waiting for its host, 0 % exposed communication, 0 % idle'
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
    percents = [style.percent(abs(share)) for share in shares]
    together = len(ends) > 1 and max(ends.values()) - min(ends.values()) <= 1e-9 * total
    who = f"{f'all {len(ends)} ranks end' if together else f'rank {slowest} ends last,'} at {format_time(total)}"
    # The mean of all ranks counts a rank that waits for its host as idle, which this sentence tells apart.
    idle = f"{percents[2]} idle{'' if waits > 0.0 else _mean_idle(timeline, total, percents[2])}"
    if compute == 0.0:
        return f"{who}: {percents[1]} communication, {idle}"
    host = f"{percents[3]} the host's update, " if computed > compute else ""
    host += f"{percents[4]} waiting for its host, " if waits > 0.0 else ""
    return f"{who}: {percents[0]} compute, {host}{percents[1]} exposed communication, {idle}"


def _mean_idle(timeline: Timeline, total: float, told: str) -> str:
    """Return the mean idle share of all ranks, in brackets, where it is another one than was told of a single rank."""
    if not timeline.at_work:
        return ""
    mean = style.percent(max(0.0, 1.0 - fmean(timeline.at_work.values()) / total))
    return "" if mean == told else f" ({mean} in the mean of all ranks)"


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


def _chosen(
    by_rank: Mapping[int, Sequence[Span]], alike: Sequence[tuple[int, ...]], slow: Collection[int], *, extra: int
) -> tuple[list[tuple[int, ...]], str]:
    """Groups of ranks whose lanes are shown, and what to say about the others."""
    most_streams = max(len({s.stream for s in spans}) for spans in by_rank.values()) + extra
    most = max(1, _MOST_LANES // most_streams)
    if len(alike) <= most:
        return list(alike), ""
    slowest = _slowest(_ends(span for spans in by_rank.values() for span in spans))
    wanted = [place for place, ranks in enumerate(alike) if slowest in ranks or ranks[0] in slow]
    evenly = [place * len(alike) // most for place in range(most)]
    # Where there is no room for all, those that nobody asked for give way, from the end on.
    places = sorted(dict.fromkeys([*wanted, *evenly]).keys(), key=lambda place: (place not in wanted, place))[:most]
    shown = [alike[place] for place in sorted(places)]
    drawn = sum(map(len, shown))
    choice = f"the one that ends last (rank {slowest}){', slow ones' if slow else ''}, others evenly chosen"
    return shown, f"{drawn} of {len(by_rank)} ranks: {choice}"


def _lanes(spans: Sequence[Span], moved: Sequence[Traffic], end: float) -> tuple[_Lane, ...]:
    """One rank's streams, and what it sends and receives where that is known."""
    lanes = []
    for stream, group in groupby(spans, lambda s: s.stream):
        bars = [_Bar(s.start, s.end, s.kind, s.name) for s in group]
        lanes.append(_Lane(stream, merge(bars, end / _PIXELS)))
    for one in moved:
        bars = [_Bar(start, stop, "transfer", "") for start, stop in one.intervals]
        lanes.append(_Lane(one.direction, merge(bars, end / _PIXELS)))
    return tuple(lanes)


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


def _kinds(lanes: Sequence[_Lane]) -> list[str]:
    filled: dict[str, float] = {}
    for lane in lanes:
        for bar in lane.bars:
            filled[bar.kind] = filled.get(bar.kind, 0.0) + bar.end - bar.start
    return sorted(filled, key=lambda kind: (-filled[kind], kind))


def _draw(axes: Axes, lanes: Sequence[_Lane], palette: dict[str, str], end: float) -> None:
    raster = sum(len(lane.bars) for lane in lanes) > _MOST_VECTOR_BARS
    for row, lane in enumerate(lanes):
        # Narrow bars lie above wide ones: a pixel that a neighbour covered would be lost.
        bars = sorted(lane.bars, key=lambda bar: bar.end - bar.start < _NARROWEST * end)
        spans = [(bar.start, max(bar.end - bar.start, _NARROWEST * end)) for bar in bars]
        shades = [palette[bar.kind] for bar in bars]
        # A thin white edge parts neighbours of one kind; where bars are narrow it would hide them.
        wide = [bar.end - bar.start > 6 * end / _PIXELS for bar in bars]
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


def _label(axes: Axes, blocks: Sequence[_Block]) -> None:
    names = [f"{block.name}  {lane.stream}" for block in blocks for lane in block.lanes]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    row = 0
    for block in blocks[:-1]:
        row += len(block.lanes)
        axes.axhline(row - 0.5, color=style.GREY, linewidth=0.5)


def _named(ranks: Sequence[int], slow: Collection[int]) -> str:
    """A rank, or several that are alike with their number.

    Examples
    --------
    >>> _named((3,), {3}), _named((0, 1, 2, 3), ()), _named((0, 2, 5), ())
    ('rank 3 (slow)', 'ranks 0-3 (4 alike)', 'rank 0 (3 alike)')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}{' (slow)' if ranks[0] in slow else ''}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]} ({len(ranks)} alike)"
    return f"rank {ranks[0]} ({len(ranks)} alike)"


def _legend(fig: Figure, palette: dict[str, str], note: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=kind) for kind, colour in palette.items()]
    fig.legend(handles=handles, loc="outside lower left", ncols=min(8, len(handles)), title=note or None,
                  alignment="left")  # fmt: skip


def _of_point(close_up: CloseUp) -> Figure:
    return figure(close_up.timeline, close_up.groups, close_up.slow)


PLOT = CloseUpPlot(figure=_of_point)
