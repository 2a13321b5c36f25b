"""How does a collective's time grow with workers and with array size, and at which places are the crossovers?

Points are simulated runs, lines are closed forms. Both axes are logarithmic: the distance between two lines is the
factor between two algorithms, at any scale.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.units import format_bytes, format_time
from simulator.report.numbers.algorithm_crossovers import Axis, Crossing, ScalingPoint, crossings, finding, headline
from simulator.report.plots import style
from simulator.report.plots.plot import ComparedPoints, ComparisonPlot
from simulator.report.plots.time_by_setting import time_by_setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Crossing", "ScalingPoint", "crossings", "figures", "finding", "headline", "time_against_size",
           "time_against_workers"]  # fmt: skip

_MOST_PANELS: Final = 6
_MOST_TICKS: Final = 7
# More lines in a panel cross too often; each line then gets its own panel.
_MOST_LINES: Final = 6
_MOST_APART: Final = 12
# Letters per line of a panel's title.
_TITLE: Final = 42
_ALONG: Final = {"world_size": "GPUs", "nbytes": "array size per rank"}


def figures(points: Sequence[ScalingPoint], overrides: Sequence[Crossing] = ()) -> dict[str, Figure]:
    """Return the figures for which a sweep of collectives has enough runs, by name.

    Parameters
    ----------
    overrides : sequence of Crossing
        Searched crossovers; others are interpolated.

    Returns
    -------
    dict of str to Figure
        "time_against_workers" if world sizes differ, "time_against_size" if sizes differ; if neither does,
        "time_by_setting".
    """
    by_name: dict[str, Figure] = {}
    sizes = {point.nbytes for point in points}
    workers = {point.world_size for point in points}
    if len(workers) == 1 and len(sizes) == 1:
        return {"time_by_setting": time_by_setting(points)}
    if len(workers) > 1 or not points:
        by_name["time_against_workers"] = time_against_workers(points, overrides)
    if len(sizes) > 1:
        by_name["time_against_size"] = time_against_size(points, overrides)
    return by_name


def time_against_workers(points: Sequence[ScalingPoint], overrides: Sequence[Crossing] = ()) -> Figure:
    """Return a figure of time [s] against number of workers, a panel for each array size (at most six).

    Raises
    ------
    ValueError
        No points, the same setting twice, or a time that is not positive.
    """
    return _draw(points, "world_size", overrides)


def time_against_size(points: Sequence[ScalingPoint], overrides: Sequence[Crossing] = ()) -> Figure:
    """Return a figure of time [s] against array size [B], a panel per number of workers; see `time_against_workers`."""
    return _draw(points, "nbytes", overrides)


def _draw(points: Sequence[ScalingPoint], along: Axis, overrides: Sequence[Crossing]) -> Figure:
    """Return a figure of time along an axis: a panel per value of the other axis, each with a line per algorithm."""
    if not points:
        raise ValueError("got no points; a scaling figure needs at least one run")
    names = list(dict.fromkeys(point.algorithm for point in points))
    if len(names) > _MOST_LINES:
        return _draw_apart(points, along, names)
    fixed_name: Axis = "nbytes" if along == "world_size" else "world_size"
    values = sorted({getattr(point, fixed_name) for point in points})
    visible = spread(values, _MOST_PANELS)
    crossed = crossings(points, overrides)
    palette = style.colours(names)
    columns = min(3, len(visible))
    rows = -(-len(visible) // columns)
    with style.applied():
        fig = style.new_figure(max(6.4, 4.2 * columns), 1.9 + 3.1 * rows)
        grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= len(visible):
                axes.set_visible(False)
                continue
            value = visible[number]
            here = [point for point in points if getattr(point, fixed_name) == value]
            _panel(axes, here, along, names, palette)
            axes.set_title(_fixed_text(fixed_name, value), loc="left")
            _mark(axes, [c for c in crossed if c.along == along and c.fixed == value], len(_algorithms(here)) > 1)
            # Only the lowest panel of a column has a label.
            below = number + columns >= len(visible)
            if below:
                axes.set_xlabel(_ALONG[along])
                axes.tick_params(axis="x", labelbottom=True)
            if number % columns == 0:
                axes.set_ylabel("time per operation")
        _ticks(grid[0][0], sorted({getattr(point, along) for point in points}), along)
        note = f" ({len(visible)} of {len(values)} panels shown)" if len(visible) < len(values) else ""
        style.set_title(fig, headline(points, overrides) + note)
        _legend(fig, points, names, palette, crossed=any(c.along == along and c.fixed in visible for c in crossed))
    return fig


def _draw_apart(points: Sequence[ScalingPoint], along: Axis, names: Sequence[str]) -> Figure:
    """Return a figure for sweeps with many algorithms: a panel per algorithm, with the others pale behind."""
    fixed_name: Axis = "nbytes" if along == "world_size" else "world_size"
    # Show only the other axis's largest value; otherwise the number of panels would multiply.
    fixed = max(getattr(point, fixed_name) for point in points)
    here = [point for point in points if getattr(point, fixed_name) == fixed]
    visible = [name for name in names if any(point.algorithm == name for point in here)][:_MOST_APART]
    columns = min(3, len(visible))
    rows = -(-len(visible) // columns)
    with style.applied():
        fig = style.new_figure(4.0 * columns, 1.9 + 2.6 * rows)
        grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= len(visible):
                axes.set_visible(False)
                continue
            others = [name for name in visible if name != visible[number]]
            _panel(axes, here, along, others, dict.fromkeys(others, style.PALE))
            _panel(axes, here, along, [visible[number]], {visible[number]: style.BLUE})
            axes.set_title(textwrap.fill(visible[number], _TITLE), loc="left")
            if number + columns >= len(visible):
                axes.set_xlabel(_ALONG[along])
                axes.tick_params(axis="x", labelbottom=True)
            if number % columns == 0:
                axes.set_ylabel("time per operation")
        _ticks(grid[0][0], sorted({getattr(point, along) for point in here}), along)
        left_out = f", {len(visible)} of {len(names)} settings shown" if len(visible) < len(names) else ""
        style.set_title(fig, f"{headline(points)} ({_fixed_text(fixed_name, fixed)}{left_out}; pale: other settings)")
    return fig


def spread(values: Sequence[Any], most: int) -> list[Any]:
    """Pick at most `most` values, evenly, including the first and the last.

    >>> spread([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 4, 7]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _algorithms(points: Sequence[ScalingPoint]) -> set[str]:
    """Return the set of the points' algorithms."""
    return {point.algorithm for point in points}


def _fixed_text(name: Axis, value: int) -> str:
    """Format a panel's fixed array size or number of workers: '1 MiB', '8 GPUs'."""
    return format_bytes(value) if name == "nbytes" else f"{value} GPU" + "s" * (value != 1)


def _panel(
    axes: Axes, points: Sequence[ScalingPoint], along: Axis, names: Sequence[str], palette: dict[str, str]
) -> None:
    """Draw a line and points of time for each algorithm into a panel with logarithmic axes."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, name in enumerate(names):
        line = sorted((getattr(p, along), p.time, p.predicted) for p in points if p.algorithm == name)
        if not line:
            continue
        xs = [x for x, _, _ in line]
        # Without an exact closed form, a thin dotted line joins the runs and guides the eye.
        formula = [(x, predicted) for x, _, predicted in line if predicted is not None]
        if formula:
            axes.plot(*zip(*formula, strict=True), color=palette[name], linewidth=1.6)
        if len(formula) < len(line):
            axes.plot(xs, [time for _, time, _ in line], color=palette[name], linewidth=0.9, linestyle=":")
        axes.plot(xs, [time for _, time, _ in line], linestyle="none", color=palette[name], markersize=5.5,
                  marker=style.MARKERS[number % len(style.MARKERS)], markeredgecolor="white",
                  markeredgewidth=0.6)  # fmt: skip
    axes.grid(visible=True, which="major")


def _mark(axes: Axes, crossed: Sequence[Crossing], compared: bool) -> None:
    """Mark each crossover with a circle; write the places at which the fastest algorithm changes, or "no crossover"."""
    for crossing in crossed:
        axes.plot([crossing.at], [crossing.time], linestyle="none", marker="o", markersize=11 if crossing.leads else 8,
                  markerfacecolor="none", markeredgecolor=style.BLACK, markeredgewidth=1.2)  # fmt: skip
    leads = [crossing for crossing in crossed if crossing.leads]
    lines = [f"{crossing.after} fastest above {crossing.place()}" for crossing in leads[:2]]
    if len(leads) > 2:
        lines.append(f"and {len(leads) - 2} more crossovers")
    if not leads and crossed:
        lines.append("fastest setting unchanged")
    if compared and not crossed:
        lines.append("no crossover")
    if lines:
        axes.text(0.03, 0.97, "\n".join(lines), transform=axes.transAxes, ha="left", va="top", fontsize=8.5,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5})  # fmt: skip


def _ticks(axes: Axes, values: Sequence[int], along: Axis) -> None:
    """Label a panel's axes at a few of the values: bytes or numbers of workers, and round times."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ticks = spread(values, _MOST_TICKS)
    axes.set_xticks(ticks, [format_bytes(v).replace(" ", "\n") if along == "nbytes" else str(v) for v in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    # Less than about a decade: label 1, 2 and 5 as well.
    if high / low < 20:
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.set_ylim(low / 1.3, high * 1.3)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_time(seconds)))


def _legend(
    fig: Figure, points: Sequence[ScalingPoint], names: Sequence[str], palette: dict[str, str], *, crossed: bool
) -> None:
    """Draw the legend: a marker per algorithm, and the meaning of points, lines and circles."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=palette[name], marker=style.MARKERS[i % len(style.MARKERS)], label=name, linewidth=1.6)
        for i, name in enumerate(names)
    ]
    handles.append(Line2D([], [], color=style.GREY, marker="o", linestyle="none", label="point: simulated"))
    if any(point.predicted is not None for point in points):
        handles.append(Line2D([], [], color=style.GREY, linewidth=1.6, label="line: closed form"))
    if any(point.predicted is None for point in points):
        handles.append(Line2D([], [], color=style.GREY, linewidth=0.9, linestyle=":", label="dotted: no closed form"))
    if crossed:
        handles.append(Line2D([], [], color=style.BLACK, marker="o", markersize=9, markerfacecolor="none",
                              linestyle="none", label="circle: crossover"))  # fmt: skip
    room = max(2, int(fig.get_figwidth() / 1.9))
    fig.legend(handles=handles, loc="outside lower left", ncols=min(room, len(handles)))


def _of_collectives(compared: ComparedPoints) -> dict[str, Figure]:
    """Return the scaling figures of the compared collectives by name; empty for a single point."""
    return figures(compared.times, compared.crossings) if len(compared.times) > 1 else {}


PLOT = ComparisonPlot(figures=_of_collectives)
