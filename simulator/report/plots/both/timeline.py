"""Which kernels and collectives run when, on which rank? A lane for each rank and stream, like in a profiler.

Only the timeline's content is drawn. Work shorter than a pixel is merged with neighbours in the same pixel, and the
result is drawn a pixel wide, so that no span disappears.
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
from simulator.report.numbers.participants import Participant, ParticipantTraffic, traffic
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LANES: Final = 32
# [inch]
_WIDTH: Final = 12.0
# Pixels of the time axis at 150 dpi.
_PIXELS: Final = 1500
# Narrowest bar as a share of the time axis: a pixel, even if long names leave the axis only two thirds of the width.
_NARROWEST: Final = 1 / 1000
# Servers and switches with lanes.
_MOST_OTHERS: Final = 4
# With more bars, an SVG holds the bars as an image.
_MOST_VECTOR_BARS: Final = 4000


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a timeline picture: a span (timed piece of work), or several merged spans without a name."""

    start: float
    end: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline picture: the bars of a stream."""

    stream: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The picture rows (lanes) for a rank, server or switch, drawn once for equivalent participants."""

    name: str
    lanes: tuple[Lane, ...]


def figure(timeline: Timeline, groups: Mapping[str, Sequence[int]] | None = None, slow: Collection[int] = ()) -> Figure:
    """Return a figure with a row of bars per rank and stream, for at most 32 pairs; ranks with equal spans share rows.

    Parameters
    ----------
    groups : mapping of str to sequence of int, optional
        Ranks of each collective by name. If given, each rank and each server also gets a lane of its sends, and of
        receives at other times.
    slow : collection of int, optional
        Ranks that are always drawn, and separately.

    Returns
    -------
    Figure
        Shows the first rank, the last to end, slow ranks, and an even choice of others; a note lists the omissions.

    Raises
    ------
    ValueError
        The timeline holds no spans.
    """
    if not timeline.spans:
        raise ValueError("the timeline holds no spans; nothing can be drawn")
    by_rank = {rank: list(spans) for rank, spans in groupby(sorted(timeline.spans, key=_order), lambda s: s.rank)}
    moved = {} if groups is None else traffic(timeline, groups)
    rank_groups = _alike_ranks(timeline, by_rank, moved, slow)
    rows, note = _select(by_rank, rank_groups, slow, extra=max(map(len, moved.values()), default=0))
    blocks = [
        Block(_name(ranks, slow), _lanes(by_rank[ranks[0]], moved.get(ranks[0], ()), timeline.end)) for ranks in rows
    ]
    others, left = _server_blocks(moved, timeline.end)
    blocks += others
    note = "; ".join(text for text in (note, left) if text)
    return blocks_figure(blocks, timeline.end, finding(timeline), note)


def blocks_figure(blocks: Sequence[Block], end: float, title: str, note: str = "") -> Figure:
    """Return a figure with a row of bars for each lane, from 0 to `end` [s], with a title and a note."""
    lanes = [lane for block in blocks for lane in block.lanes]
    palette = style.colours(_kinds(lanes))
    # Settings may have the names of kernels, and are not drawn in their colours.
    palette |= {kind: colour for kind, colour in style.KERNELS.items() if kind in palette}
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.3 * max(3, len(lanes)))
        axes = fig.subplots()
        _draw(axes, lanes, palette, end)
        _label(axes, blocks)
        style.time_axis(axes, end)
        style.set_title(fig, title)
        _legend(fig, palette, note)
    return fig


def lane_of(name: str, bars: Sequence[Bar], end: float) -> Lane:
    """Return a row of bars in a picture from 0 to `end` [s]; bars shorter than a pixel are merged."""
    return Lane(name, merge(bars, end / _PIXELS))


def _alike_ranks(
    timeline: Timeline,
    by_rank: Mapping[int, Sequence[Span]],
    moved: Mapping[Participant, Sequence[ParticipantTraffic]],
    slow: Collection[int],
) -> list[tuple[int, ...]]:
    """Return groups of ranks whose spans and transfers look the same when rounded to pixels; a slow rank is its own."""
    pixel = timeline.end / _PIXELS or 1.0
    rank_groups: dict[Hashable, list[int]] = {}
    for rank, spans in by_rank.items():
        # Names are ignored: ranks that differ only in names have the same picture.
        looks = [(span.stream, span.kind, round(span.start / pixel), round(span.end / pixel)) for span in spans]
        slow_rank = rank if rank in slow else None
        rank_groups.setdefault((slow_rank, tuple(looks), _look(moved.get(rank, ()), pixel)), []).append(rank)
    return [tuple(ranks) for ranks in rank_groups.values()]


def _look(flows: Sequence[ParticipantTraffic], pixel: float) -> Hashable:
    """Return a comparable key: a participant's transfer directions and intervals, rounded to pixels."""
    return tuple(
        (flow.direction, tuple((round(start / pixel), round(end / pixel)) for start, end in flow.intervals))
        for flow in flows
    )


def _server_blocks(moved: Mapping[Participant, Sequence[ParticipantTraffic]], end: float) -> tuple[list[Block], str]:
    """Return the picture rows of servers and switches, equal ones drawn once, and a text on omitted ones."""
    pixel = end / _PIXELS or 1.0
    groups: dict[Hashable, list[str]] = {}
    for who, flows in moved.items():
        if isinstance(who, str):
            groups.setdefault(_look(flows, pixel), []).append(who)
    labels = [
        (names[0] if len(names) == 1 else f"{names[0]} ({len(names)} equal)", names[0]) for names in groups.values()
    ]
    blocks = [Block(name, _lanes((), moved[first], end)) for name, first in labels[:_MOST_OTHERS]]
    left = len(labels) - len(blocks)
    return blocks, f"{left} more servers or switches not shown" if left else ""


def finding(timeline: Timeline) -> str:
    """Return a sentence on the last rank to end: its shares of compute, exposed communication and idle time.

    Examples
    --------
    >>> finding(Timeline("events", 4.0, (Span(0, "compute", "a", "forward", 0.0, 3.0),
    ...                                  Span(0, "communication", "b", "all_reduce", 2.0, 4.0))))
    'rank 0 ends last, at 4 s: 75 % compute, 25 % exposed communication, 0 % idle'
    >>> finding(Timeline("events", 4.0, (Span(0, "issue", "issue a", "issue", 0.0, 3.0),
    ...                                  Span(0, "compute", "a", "forward", 3.0, 4.0))))
    'rank 0 ends last, at 4 s: 25 % compute, 75 % waiting for the host, 0 % exposed communication, 0 % idle'
    """
    ends = _ends(timeline.spans)
    slowest = _slowest(ends)
    spans = [span for span in timeline.spans if span.rank == slowest]
    total = max(timeline.end, max(span.end for span in spans))
    if total <= 0.0:
        return f"rank {slowest}: all operations take 0 s"
    kernels = [s for s in spans if not _communicates(s) and s.stream not in (HOST, ISSUE)]
    work = [s for s in spans if s.stream != ISSUE]
    # Unions of intervals, from the smallest to the largest:
    #    compute    kernels on the GPU
    #    computed   + the host's update
    #    busy       + communication
    #    with_host  + the host issuing kernels
    # The differences are the host's update, exposed communication and waiting for the host.
    compute, computed = _union(kernels), _union([s for s in work if not _communicates(s)])
    busy, with_host = _union(work), _union(spans)
    waits = with_host - busy
    shares = (
        compute / total, (busy - computed) / total, 1.0 - with_host / total, (computed - compute) / total, waits / total
    )  # fmt: skip
    percents = [style.percent(abs(share)) for share in shares]
    # Ends within rounding count as simultaneous.
    together = len(ends) > 1 and max(ends.values()) - min(ends.values()) <= 1e-9 * total
    who = f"{f'all {len(ends)} ranks end' if together else f'rank {slowest} ends last,'} at {format_time(total)}"
    # The mean over ranks counts waiting for the host as idle, whereas this sentence separates the two.
    idle = f"{percents[2]} idle{'' if waits > 0.0 else _mean_idle(timeline, total, percents[2])}"
    if compute == 0.0:
        return f"{who}: {percents[1]} communication, {idle}"
    host = f"{percents[3]} host update, " if computed > compute else ""
    host += f"{percents[4]} waiting for the host, " if waits > 0.0 else ""
    return f"{who}: {percents[0]} compute, {host}{percents[1]} exposed communication, {idle}"


def _mean_idle(timeline: Timeline, total: float, text: str) -> str:
    """Return the mean idle share of all ranks as " (mean of all ranks: 5 %)"; "" if equal to `text`."""
    if not timeline.at_work:
        return ""
    mean = style.percent(max(0.0, 1.0 - fmean(timeline.at_work.values()) / total))
    return "" if mean == text else f" (mean of all ranks: {mean})"


def _communicates(span: Span) -> bool:
    """Return True if a span's stream carries communication or copies."""
    return span.stream.startswith(("communication", "copy"))


def _union(spans: Sequence[Span]) -> float:
    """Return the seconds with at least one of the spans in flight."""
    return length((span.start, span.end) for span in spans)


def _order(span: Span) -> tuple[int, int, str, float]:
    """Return a span's sort key: rank, compute stream before communication before other streams, stream, start."""
    place = 0 if span.stream == "compute" else 1 if span.stream.startswith("communication") else 2
    return span.rank, place, span.stream, span.start


def _ends(spans: Iterable[Span]) -> dict[int, float]:
    """Return the time [s] at which each rank's last span ends: {rank: time}."""
    ends: dict[int, float] = {}
    for span in spans:
        ends[span.rank] = max(ends.get(span.rank, span.end), span.end)
    return ends


def _slowest(ends: Mapping[int, float]) -> int:
    """Return the rank with the latest end time, given {rank: end}; ties go to the lowest rank."""
    return min(ends, key=lambda rank: (-ends[rank], rank))


def _select(
    by_rank: Mapping[int, Sequence[Span]], rank_groups: Sequence[tuple[int, ...]], slow: Collection[int], *, extra: int
) -> tuple[list[tuple[int, ...]], str]:
    """Return the groups of equal ranks to draw, as many as the picture can hold, and a text on omitted groups."""
    most_streams = max(len({s.stream for s in spans}) for spans in by_rank.values()) + extra
    most = max(1, _MOST_LANES // most_streams)
    if len(rank_groups) <= most:
        return list(rank_groups), ""
    slowest = _slowest(_ends(span for spans in by_rank.values() for span in spans))
    required = [place for place, ranks in enumerate(rank_groups) if slowest in ranks or ranks[0] in slow]
    evenly = [place * len(rank_groups) // most for place in range(most)]
    # Required groups come first; the evenly chosen ones fill the remaining room.
    places = sorted(dict.fromkeys([*required, *evenly]).keys(), key=lambda place: (place not in required, place))[:most]
    visible = [rank_groups[place] for place in sorted(places)]
    count = sum(map(len, visible))
    choice = f"the last to end (rank {slowest}){', slow ranks' if slow else ''} and evenly chosen ranks"
    return visible, f"{count} of {len(by_rank)} ranks shown: {choice}"


def _lanes(spans: Sequence[Span], moved: Sequence[ParticipantTraffic], end: float) -> tuple[Lane, ...]:
    """Return a rank's picture rows: a row per stream, and a row each for its sends and receives."""
    lanes = []
    for stream, group in groupby(spans, lambda s: s.stream):
        bars = [Bar(s.start, s.end, s.kind, s.name) for s in group]
        lanes.append(lane_of(stream, bars, end))
    for flow in moved:
        bars = [Bar(start, stop, "transfer", "") for start, stop in flow.intervals]
        lanes.append(lane_of(flow.direction, bars, end))
    return tuple(lanes)


def merge(bars: Sequence[Bar], pixel: float) -> tuple[Bar, ...]:
    """Return bars with those shorter than a pixel merged per pixel; the kind with the most time gives the colour.

    A pixel that is more than half full is drawn full, and adjacent full pixels of a kind become a single bar; otherwise
    invisible gaps would wash the colour out. Example (pixels between |):

        spans    |a a b  |aaaaaa |      a|
        drawn    |aaaaaaa|aaaaaaa|      a|     a bar over two pixels, and a short bar
    """
    long_bars: list[Bar] = []
    cells: dict[int, list[Bar]] = {}
    for bar in bars:
        if bar.end - bar.start >= pixel or pixel <= 0.0:
            long_bars.append(bar)
        else:
            # A short bar belongs to the pixel at its middle.
            cells.setdefault(int((bar.start + bar.end) / 2 / pixel), []).append(bar)
    joined: list[Bar] = []
    for cell, members in sorted(cells.items()):
        bar = _cell(members, cell * pixel, pixel)
        # A gap of less than half a pixel is invisible: extend the bar before.
        if joined and joined[-1].kind == bar.kind and bar.start - joined[-1].end < pixel / 2:
            bar = Bar(joined.pop().start, bar.end, bar.kind, "")
        joined.append(bar)
    return tuple(sorted(long_bars + joined, key=lambda bar: (bar.start, bar.end)))


def _cell(members: Sequence[Bar], start: float, pixel: float) -> Bar:
    """Return a single bar for the short bars within a pixel, of the kind with the most time."""
    filled: dict[str, float] = {}
    for bar in members:
        filled[bar.kind] = filled.get(bar.kind, 0.0) + bar.end - bar.start
    kind = max(filled, key=lambda k: (filled[k], k))
    first, last = min(bar.start for bar in members), max(bar.end for bar in members)
    if sum(filled.values()) > pixel / 2:
        return Bar(min(start, first), max(start + pixel, last), kind, "")
    return Bar(first, last, kind, "")


def _kinds(lanes: Sequence[Lane]) -> list[str]:
    """Return the kinds of work in the rows by falling total time, so that the first get the most distinct colours."""
    filled: dict[str, float] = {}
    for lane in lanes:
        for bar in lane.bars:
            filled[bar.kind] = filled.get(bar.kind, 0.0) + bar.end - bar.start
    return sorted(filled, key=lambda kind: (-filled[kind], kind))


def _draw(axes: Axes, lanes: Sequence[Lane], palette: dict[str, str], end: float) -> None:
    """Draw the bars of all rows into the axes, row 0 first, with the palette's colour for each kind of work."""
    raster = sum(len(lane.bars) for lane in lanes) > _MOST_VECTOR_BARS
    for row, lane in enumerate(lanes):
        # Narrow bars lie above wide ones; a pixel covered by a neighbour would be lost.
        bars = sorted(lane.bars, key=lambda bar: bar.end - bar.start < _NARROWEST * end)
        spans = [(bar.start, max(bar.end - bar.start, _NARROWEST * end)) for bar in bars]
        shades = [palette[bar.kind] for bar in bars]
        # A thin white edge separates neighbours of a kind; it would hide narrow bars.
        wide = [bar.end - bar.start > 6 * end / _PIXELS for bar in bars]
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=shades, rasterized=raster, antialiased=not raster,
                         edgecolors=["white" if w else "none" for w in wide], linewidths=0.5)  # fmt: skip
        for bar in lane.bars:
            _write(axes, bar, row, palette[bar.kind], end)
    axes.set_xlim(0.0, end if end > 0.0 else 1.0)
    axes.grid(visible=True, axis="x")


def _write(axes: Axes, bar: Bar, row: int, colour: str, end: float) -> None:
    """Write a bar's name inside the bar if there is enough room."""
    room = (bar.end - bar.start) / end * _PIXELS if end > 0.0 else 0.0
    # At 150 dpi; a letter of 8 pt is about 5.3 pt wide.
    letters = int(room / 150 * 72 / 5.3)
    if len(bar.name) <= letters and bar.name:
        axes.text((bar.start + bar.end) / 2, row, bar.name, fontsize=8.0, ha="center", va="center_baseline",
                  color=style.text_on(colour), clip_on=True)  # fmt: skip


def _label(axes: Axes, blocks: Sequence[Block]) -> None:
    """Label the rows with participant and stream, and draw a line between the rows of different participants."""
    names = [f"{block.name}  {lane.stream}" for block in blocks for lane in block.lanes]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    row = 0
    for block in blocks[:-1]:
        row += len(block.lanes)
        axes.axhline(row - 0.5, color=style.GREY, linewidth=0.5)


def _name(ranks: Sequence[int], slow: Collection[int]) -> str:
    """Return a name for a rank, or for several equal ranks with their number.

    >>> _name((3,), {3}), _name((0, 1, 2, 3), ()), _name((0, 2, 5), ())
    ('rank 3 (slow)', 'ranks 0-3 (4 equal)', 'rank 0 (3 equal)')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}{' (slow)' if ranks[0] in slow else ''}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]} ({len(ranks)} equal)"
    return f"rank {ranks[0]} ({len(ranks)} equal)"


def _legend(fig: Figure, palette: dict[str, str], note: str) -> None:
    """Draw the legend below the figure: a colour per kind of work, with the note as its title."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=kind) for kind, colour in palette.items()]
    fig.legend(handles=handles, loc="outside lower left", ncols=min(8, len(handles)), title=note or None,
                  alignment="left")  # fmt: skip


def _of_point(close_up: CloseUp) -> Figure:
    """Return the timeline figure of a simulated point."""
    return figure(close_up.timeline, close_up.groups, close_up.slow)


PLOT = CloseUpPlot(figure=_of_point)
