"""When was a training stopped, by what, and how long? A row for each day, week or longer, a mark for each failure.

A bar behind a mark is as long as the time that the failure cost: until the work went on, and the work done again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.basics.counts import number_of
from simulator.basics.units import format_duration
from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DAY: Final = 86400.0
# Rows of days, of weeks, and of longer times.
_MOST_ROWS: Final = 35
_WEEK: Final = 7


class Stop(NamedTuple):
    """A failure that stopped a training."""

    time: float  # when [s]
    kind: str  # what failed
    # `lost`, `down`: Work that was done again, and time until the work went on [s].
    lost: float
    down: float


def figure(stops: Sequence[Stop], end: float) -> Figure:
    """Return a figure with a row for each day, week or longer of a training that ends at a time [s].

    Raises
    ------
    ValueError
        Nothing stopped the training.
    """
    if not stops:
        raise ValueError("nothing stopped the training; there is no failure to draw")
    days = max(end, *(stop.time for stop in stops)) / _DAY
    length = row_days(days)
    rows = max(1, math.ceil(days / length - 1e-9))
    kinds = sorted({stop.kind for stop in stops})
    palette = style.colours(kinds)
    with style.applied():
        fig = style.new_figure(10.0, 2.1 + 0.2 * max(rows, 4))
        axes = fig.subplots()
        for number, kind in enumerate(kinds):
            events = [stop for stop in stops if stop.kind == kind]
            for row, spans in _costs(events, length * _DAY, days * _DAY):
                axes.broken_barh(spans, (row - 0.3, 0.6), facecolors=style.paler(palette[kind], 0.45))
            places = [divmod(stop.time, length * _DAY) for stop in events]
            axes.scatter(
                [at for _, at in places],
                [row for row, _ in places],
                s=26,
                color=palette[kind],
                zorder=3,
                marker=style.MARKERS[number],
                edgecolors="white",
                linewidths=0.5,
                label=f"{kind}: {len(events)}",
            )
        _axes(axes, rows, length)
        fig.legend(loc="outside lower left", ncols=6, title="Failures by kind; bars: time that a failure cost",
                   alignment="left")  # fmt: skip
        style.set_title(fig, finding(stops, end))
    return fig


def row_days(days: float) -> int:
    """Return the days of a row: a day, a week, or as many weeks as leave 35 rows.

    >>> row_days(30), row_days(90), row_days(1000)
    (1, 7, 35)
    """
    if days <= _MOST_ROWS:
        return 1
    return _WEEK * max(1, math.ceil(days / _WEEK / _MOST_ROWS))


def _costs(stops: Sequence[Stop], length: float, end: float) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """Yield (row, [(begin, duration)]) for the time that failures cost [s], cut at the ends of rows and of the run."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for stop in stops:
        begin, until = stop.time, min(stop.time + stop.down + stop.lost, end)
        while begin < until:
            row = int(begin // length)
            stop_at = min(until, (row + 1) * length)
            rows.setdefault(row, []).append((begin - row * length, stop_at - begin))
            begin = stop_at
    yield from sorted(rows.items())


def _axes(axes: Axes, rows: int, length: int) -> None:
    """Label the rows, and the time within a row: hours of a day, or days."""
    unit, step, name = (3600.0, 3, "hour of the day") if length == 1 else (_DAY, max(1, length // 7), "day of the row")
    ticks = range(0, round(length * _DAY / unit) + 1, step)
    axes.set_xticks([unit * tick for tick in ticks], [str(tick) for tick in ticks])
    axes.set_xlim(0.0, length * _DAY)
    axes.set_xlabel(name if length != _WEEK else "day of the week")
    every = max(1, math.ceil(rows / 18))
    row_name = "day" if length == 1 else "week" if length == _WEEK else f"row of {length} days"
    axes.set_yticks(range(0, rows, every), [str(row + 1) for row in range(0, rows, every)])
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_ylabel(row_name)
    axes.grid(visible=True, axis="x")


def finding(stops: Sequence[Stop], end: float) -> str:
    """Return a sentence on the number of failures, and on the time that they cost together.

    Examples
    --------
    >>> finding([Stop(100.0, "error", 600.0, 600.0), Stop(9e4, "hang", 0.0, 1200.0)], 2 * 86400.0)
    'The first run is stopped 2 times in 2 days; a stop costs 20 minutes in the mean, the longest 20 minutes'
    """
    costs = [stop.down + stop.lost for stop in stops]
    mean, longest = format_duration(sum(costs) / len(costs)), format_duration(max(costs))
    return (
        f"The first run is stopped {number_of(len(stops), 'time')} in {format_duration(end)}; a stop costs {mean} in "
        f"the mean, the longest {longest}"
    )
