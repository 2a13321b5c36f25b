"""Which settings buy speed with memory? A point per run, peak memory against speed, and the Pareto front.

Draws the reports' numbers. On the front are runs that no other run beats in speed with the same memory or less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.units import format_memory
from simulator.basics.work_unit import rate_name, work_unit
from simulator.report.plots import style
from simulator.report.plots.plot import ComparedPoints, ComparisonPlot
from simulator.report.plots.side_labels import LINE, NamedPoint, name_points
from simulator.report.plots.training.memory import bytes_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = tuple[str, Mapping[str, Any]]
# Maximum number of names; the front's come first.
_MOST_NAMES: Final = 30
# Minimum height of the axes [inch].
_HEIGHT: Final = 3.4
# A capacity beyond this multiple of the highest peak would flatten all points.
_FARTHEST: Final = 2.0


def front(rows: Sequence[Row]) -> list[int]:
    """Return the indices of the runs on the Pareto front, the one with least memory first.

    >>> front([("a", {"tokens_per_s_per_gpu": 5.0, "peak_memory_bytes": 9, "fits": True}),
    ...        ("b", {"tokens_per_s_per_gpu": 4.0, "peak_memory_bytes": 3, "fits": True}),
    ...        ("c", {"tokens_per_s_per_gpu": 4.0, "peak_memory_bytes": 4, "fits": True})])
    [1, 0]
    """
    fitting = [place for place, (_, report) in enumerate(rows) if report["fits"]]
    order = sorted(fitting, key=lambda p: (rows[p][1]["peak_memory_bytes"], -rows[p][1]["tokens_per_s_per_gpu"], p))
    best: list[int] = []
    for place in order:
        # Sorted by memory: a run is on the front if it is faster than every run with less memory.
        if not best or _speed(rows[place]) > _speed(rows[best[-1]]):
            best.append(place)
    return best


def _speed(row: Row) -> float:
    """Return a run's speed per GPU [tokens/s or samples/s]."""
    return float(row[1]["tokens_per_s_per_gpu"])


def _rate(rows: Sequence[Row]) -> str:
    """Return the name of the runs' speed: tokens/s or samples/s."""
    return rate_name(work_unit(report for _, report in rows))


def finding(rows: Sequence[Row]) -> str:
    """Return a sentence on the Pareto front's run with least memory and its fastest run, or a single run with both."""
    best = [rows[place] for place in front(rows)]
    if not best:
        return "no run fits in memory"
    (low, least), (high, fastest) = best[0], best[-1]
    need = format_memory(least["peak_memory_bytes"])
    if len(best) == 1:
        speed = f"{_speed(best[0]):,.0f} {_rate(rows)} per GPU"
        return f"{low} is fastest and needs the least memory: {need}, {speed}"
    times, more = _speed(best[-1]) / _speed(best[0]), fastest["peak_memory_bytes"] / least["peak_memory_bytes"]
    faster = f"{100 * (times - 1):.1f} % faster" if times < 2 else f"{times:.3g}x as fast"
    return f"{low} needs the least memory ({need}); {high} is {faster} and needs {more:.3g}x the memory"


def figure(rows: Sequence[Row]) -> Figure:
    """Return a figure with a point per run, peak memory against speed per GPU; hollow points do not fit in memory.

    Parameters
    ----------
    rows : sequence of (label, training report)
    """
    best = front(rows)
    places = [*best, *(place for place in range(len(rows)) if place not in best)][:_MOST_NAMES]
    height = max(_HEIGHT, LINE * len(places))
    highest = float(max(report["peak_memory_bytes"] for _, report in rows))
    with style.applied():
        fig = style.new_figure(10.0, height + 1.8)
        axes = fig.subplots()
        line = [rows[place] for place in best]
        # A staircase: between two front runs, the run with less memory is the best choice.
        axes.step([_speed(row) for row in line], [row[1]["peak_memory_bytes"] for row in line], where="post",
                  color=style.BLUE, linewidth=1.2,
                  label="Pareto front" if len(line) > 1 else None)  # fmt: skip
        for fits, face, label in ((True, style.BLUE, "fits"), (False, "white", "does not fit")):
            some = [row for row in rows if row[1]["fits"] is fits]
            if some:
                axes.plot([_speed(row) for row in some], [row[1]["peak_memory_bytes"] for row in some], "o",
                          markersize=6, color=style.BLUE, markerfacecolor=face, label=label)  # fmt: skip
        highest = _capacity(axes, rows, highest)
        axes.margins(x=0.08)
        axes.set_ylim(0, 1.08 * highest)
        bytes_axis(axes.yaxis, highest, "peak memory per GPU")
        axes.set_xlabel(f"{_rate(rows)} per GPU")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(visible=True)
        points = [
            NamedPoint(_speed(rows[place]), rows[place][1]["peak_memory_bytes"], rows[place][0], place in best)
            for place in places
        ]
        name_points(axes, points, height)
        fig.legend(loc="outside lower left", ncols=4)
        style.set_title(fig, finding(rows))
    return fig


def _capacity(axes: Axes, rows: Sequence[Row], highest: float) -> float:
    """Draw the capacity as a line if it is common to all runs and near; return the highest value to show [B]."""
    capacities = {report["capacity_bytes"] for _, report in rows}
    nearest = min(capacities)
    if len(capacities) > 1 or nearest > _FARTHEST * highest:
        return highest
    axes.axhline(nearest, color=style.BLACK, linewidth=1.4, linestyle=(0, (6, 3)),
                 label=f"capacity {format_memory(nearest)}")  # fmt: skip
    return max(highest, float(nearest))


def _of_steps(compared: ComparedPoints) -> dict[str, Figure]:
    """Return the memory-against-speed figure of compared training steps; empty for a single run."""
    return {"memory_vs_time": figure(compared.rows)} if len(compared.rows) > 1 else {}


PLOT = ComparisonPlot(figures=_of_steps)
