"""How does a training step scale: tokens per second and MFU against GPUs, with the line of perfect scaling?

Rule: draws reports' numbers, computes only the ideal line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.report.plots import style
from simulator.report.plots.plot import Comparison, ComparisonPlot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = tuple[str, int, float, float]


def figure(rows: Sequence[Row]) -> Figure:
    """Draw two panels.

    Parameters
    ----------
    rows : sequence of (line, GPUs, tokens per second, MFU)
    """
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row[1]):
        lines.setdefault(row[0], []).append(row)
    with style.applied():
        fig = style.new_figure(11.0, 4.6)
        speed, use = fig.subplots(1, 2)
        colours = style.colours(lines)
        for name, points in lines.items():
            gpus = [point[1] for point in points]
            speed.plot(gpus, [point[2] for point in points], marker="o", color=colours[name], label=name)
            use.plot(gpus, [100 * point[3] for point in points], marker="o", color=colours[name])
        best = max((points[0] for points in lines.values()), key=lambda point: point[2] / point[1])
        everywhere = sorted({row[1] for row in rows})
        ideal = [best[2] / best[1] * gpus for gpus in everywhere]
        speed.plot(everywhere, ideal, color="0.4", linestyle="--", label="ideal")
        for axes in (speed, use):
            axes.set_xscale("log", base=2)
            axes.set_xticks(everywhere, [str(gpus) for gpus in everywhere])
            axes.minorticks_off()
            axes.set_xlabel("GPUs")
        speed.set_yscale("log")
        speed.set_ylabel("tokens per second")
        use.set_ylabel("MFU (%)")
        use.set_ylim(0, 115 * max(row[3] for row in rows))
        fig.legend(loc="outside lower left", ncols=4, frameon=False)
        style.set_title(fig, finding(rows))
    return fig


def finding(rows: Sequence[Row]) -> str:
    """Say how much of the smallest cluster's speed a GPU keeps on the largest.

    Examples
    --------
    >>> finding([("zero3", 8, 800.0, 0.5), ("zero3", 64, 5760.0, 0.45)])
    'zero3: a GPU keeps 90% of its speed from 8 to 64 GPUs'
    """
    kept: list[tuple[float, str, int, int]] = []
    for line in dict.fromkeys(row[0] for row in rows):
        points = sorted((row for row in rows if row[0] == line), key=lambda row: row[1])
        first, last = points[0], points[-1]
        kept.append(((last[2] / last[1]) / (first[2] / first[1]), line, first[1], last[1]))
    share, line, few, many = max(kept)
    best = "" if len(kept) == 1 else "best "
    return f"{best}{line}: a GPU keeps {share:.0%} of its speed from {few} to {many} GPUs"


def _of_steps(compared: Comparison) -> dict[str, Figure]:
    return {"scaling": figure(compared.throughputs)} if compared.throughputs else {}


PLOT = ComparisonPlot("scaling", of=("training",), figures=_of_steps)
