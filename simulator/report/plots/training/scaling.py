"""How does a training step scale? Throughput and MFU against GPUs, with the line of perfect scaling.

Draws the reports' numbers and computes only the ideal line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.basics.work_unit import TOKEN, rate_name, work_unit
from simulator.report.plots import style
from simulator.report.plots.plot import ComparedPoints, ComparisonPlot, Throughput

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GPUS: Final = "cluster.world_size"
# Octaves between the interval bars of two lines.
_APART: Final = 0.06


def figure(rows: Sequence[Throughput], unit: str = TOKEN) -> Figure:
    """Return a figure with two panels against the number of GPUs: throughput in units of work per second (with 80 %
    intervals), and MFU.
    """
    lines: dict[str, list[Throughput]] = {}
    for row in sorted(rows, key=lambda row: row.gpus):
        lines.setdefault(row.line, []).append(row)
    with style.applied():
        fig = style.new_figure(11.0, 4.6)
        speed, use = fig.subplots(1, 2)
        colours = style.colours(lines)
        for name, points in lines.items():
            gpus = [point.gpus for point in points]
            speed.plot(gpus, [point.tokens_per_s for point in points], marker="o", color=colours[name], label=name)
            use.plot(gpus, [100 * point.mfu for point in points], marker="o", color=colours[name])
        _intervals(speed, lines, colours)
        # The ideal line extends the best speed per GPU among the smallest clusters.
        best = max((points[0] for points in lines.values()), key=lambda point: point.tokens_per_s / point.gpus)
        everywhere = sorted({row.gpus for row in rows})
        ideal = [best.tokens_per_s / best.gpus * gpus for gpus in everywhere]
        speed.plot(everywhere, ideal, color=style.GREY, linestyle="--", label="ideal")
        for axes in (speed, use):
            axes.set_xscale("log", base=2)
            axes.set_xticks(everywhere, [f"{gpus:,}" for gpus in everywhere])
            axes.minorticks_off()
            axes.set_xlabel("GPUs")
        _logarithmic(speed)
        speed.set_ylabel(f"{unit}s per second")
        use.set_ylabel("MFU (%)")
        use.set_ylim(0, 115 * max(row.mfu for row in rows))
        fig.legend(loc="outside lower left", ncols=4, frameon=False)
        style.set_title(fig, finding(rows))
    return fig


def speedup_figure(table: pd.DataFrame, label: str | None = None) -> Figure:
    """Draw the speedup over the number of GPUs, with the line of an ideal speedup.

    Parameters
    ----------
    table : DataFrame
        Rows with `cluster.world_size`, `speedup` and `efficiency`, as `simulator.sweep` returns.
    label : str, optional
        Column whose values name the lines; a single line if omitted.

    Raises
    ------
    ValueError
        The table has no speedups or no column `label`, or a line would have several points of a number of GPUs.
    """
    if "speedup" not in table:
        raise ValueError("got a table without speedup; sweep a training step over several values of cluster.world_size")
    if label is not None and label not in table:
        raise ValueError(f"label: got {label!r}; must be a column of the table: {', '.join(map(str, table.columns))}")
    frame = table.dropna(subset=["speedup"]).sort_values(_GPUS)
    lines = {str(name): rows for name, rows in frame.groupby(label, sort=False)} if label else {"simulated": frame}
    for name, rows in lines.items():
        if rows[_GPUS].duplicated().any():
            # Columns of text that tell the rows apart.
            columns = [
                column
                for column in frame.select_dtypes(exclude="number")
                if not frame.duplicated([column, _GPUS]).any() and frame[column].notna().all()
            ]
            hint = f"label={columns[0]!r}" if columns else "a column of the settings that differ, or draw fewer rows"
            raise ValueError(f"several rows of the line {name!r} have the same number of GPUs; write {hint}")
    everywhere = sorted({int(gpus) for gpus in frame[_GPUS]})
    rate = rate_name(work_unit([{"work_unit": unit} for unit in frame.get("work_unit", ())]))
    with style.applied():
        fig = style.new_figure(6.4, 4.8)
        axes = fig.subplots()
        colours = style.colours(lines)
        for name, rows in lines.items():
            axes.plot(rows[_GPUS], rows["speedup"], marker="o", color=colours[name], label=name)
        ideal = [gpus / everywhere[0] for gpus in everywhere]
        axes.plot(everywhere, ideal, color=style.GREY, linestyle="--", label="ideal")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(everywhere, [f"{gpus:,}" for gpus in everywhere])
        axes.set_yticks(ideal, [f"{times:g}x" for times in ideal])
        axes.minorticks_off()
        axes.set_xlabel("GPUs")
        axes.set_ylabel(f"{rate} relative to {everywhere[0]:,} GPUs")
        fig.legend(loc="outside lower left", ncols=4, frameon=False)
        best_name, best = max(
            ((name, float(rows["efficiency"].iloc[-1])) for name, rows in lines.items()), key=lambda pair: pair[1]
        )
        which = f" ({best_name})" if label else ""
        style.set_title(fig, f"{everywhere[-1]:,} GPUs reach {style.percent(best)} of the ideal speedup{which}")
    return fig


def _logarithmic(axes: Axes) -> None:
    """Set the vertical axis to a logarithmic scale with labels such as 20,000 instead of 2 x 10^4."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(visible=True, axis="y")


def _intervals(axes: Axes, lines: Mapping[str, Sequence[Throughput]], colours: Mapping[str, str]) -> None:
    """Draw each point's 80 % prediction interval of throughput as a bar, shifted sideways for several lines."""
    for place, (name, points) in enumerate(lines.items()):
        intervals = [(p.gpus, p.low, p.high) for p in points if p.low is not None and p.high is not None]
        # Shift bars by a few hundredths of an octave: bars of equal points stay distinguishable.
        shift = 2.0 ** (_APART * (place - (len(lines) - 1) / 2))
        for gpus, low, high in intervals:
            label = "uncertainty (80 %)" if place == 0 and gpus == intervals[0][0] else None
            axes.plot([gpus * shift] * 2, [low, high], color=colours[name], linewidth=5, alpha=0.3, label=label)


def finding(rows: Sequence[Throughput]) -> str:
    """Return a sentence on the share of a GPU's speed on the smallest cluster that remains on the largest.

    Examples
    --------
    >>> finding([Throughput("zero3", 8, 800.0, 0.5), Throughput("zero3", 64, 5760.0, 0.45)])
    '64 GPUs keep 90 % (zero3) of the speed per GPU on 8 GPUs'
    """
    shares: list[tuple[float, str, int, int]] = []
    for line in dict.fromkeys(row.line for row in rows):
        points = sorted((row for row in rows if row.line == line), key=lambda row: row.gpus)
        first, last = points[0], points[-1]
        share = (last.tokens_per_s / last.gpus) / (first.tokens_per_s / first.gpus)
        shares.append((share, line, first.gpus, last.gpus))
    share, line, few, many = max(shares)
    least, other, *_ = min(shares)
    lowest = "" if len(shares) == 1 else f"{style.percent(least)} ({other}) to "
    return f"{many:,} GPUs keep {lowest}{style.percent(share)} ({line}) of the speed per GPU on {few:,} GPUs"


def _of_steps(compared: ComparedPoints) -> dict[str, Figure]:
    """Return the scaling figure of compared training steps; empty for a single cluster size."""
    if not compared.throughputs:
        return {}
    return {"scaling": figure(compared.throughputs, work_unit(report for _, report in compared.rows))}


PLOT = ComparisonPlot(figures=_of_steps)
