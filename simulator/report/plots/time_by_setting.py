"""How long does a collective take under each of several settings? A bar each, with the fastest named.

For sweeps with a constant number of ranks and a constant size; the bars share an axis from 0, so lengths are times.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_time
from simulator.report.numbers.algorithm_crossovers import ScalingPoint
from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Letters per line of a label.
_LABEL: Final = 45
# More bars cannot be compared.
_MOST: Final = 40
# Times that differ by less than this share are equal.
_EQUAL: Final = 1e-9


def finding(points: Sequence[ScalingPoint]) -> str:
    """Return a sentence on which setting of a collective is fastest, and how much longer the slowest takes.

    Examples
    --------
    >>> finding([ScalingPoint("ring", 8, 1024, 2e-3), ScalingPoint("tree", 8, 1024, 1e-3)])
    'tree is fastest (1 ms); ring is slowest (2 ms, 2.0x)'
    """
    best, worst = min(points, key=lambda p: p.time), max(points, key=lambda p: p.time)
    equal = [point.algorithm for point in points if point.time <= best.time * (1 + _EQUAL)]
    if len(equal) == len(points):
        return f"all {len(points)} settings take {format_time(best.time)}"
    others = len(equal) - 1
    first = f"{best.algorithm} and {others} more settings are fastest" if others else f"{best.algorithm} is fastest"
    slow = f"{worst.algorithm} is slowest ({format_time(worst.time)}, {worst.time / best.time:.1f}x)"
    return f"{first} ({format_time(best.time)}); {slow}"


def time_by_setting(points: Sequence[ScalingPoint]) -> Figure:
    """Return a figure with a bar of time for each simulated setting of a collective, at most the forty fastest."""
    ranked = sorted(range(len(points)), key=lambda place: (points[place].time, place))
    # The fastest, in the scenario's order.
    best = [points[place] for place in sorted(ranked[:_MOST])]
    longest = max(point.time for point in best)
    with style.applied():
        fig = style.new_figure(9.0, 1.6 + 0.38 * len(best))
        axes = fig.subplots()
        axes.barh(range(len(best)), [point.time for point in best], height=0.7, color=style.BLUE, label="simulated")
        for row, point in enumerate(best):
            axes.text(1.01, row, format_time(point.time), transform=axes.get_yaxis_transform(), va="center")
        predictions = [(point.predicted, row) for row, point in enumerate(best) if point.predicted is not None]
        if predictions:
            axes.plot(*zip(*predictions, strict=True), linestyle="none", marker="|", markersize=14, markeredgewidth=2,
                      color=style.ORANGE, label="closed form")  # fmt: skip
            fig.legend(loc="outside lower left", ncols=2)
        axes.set_yticks(range(len(best)), [textwrap.fill(point.algorithm, _LABEL) for point in best])
        axes.set_ylim(len(best) - 0.5, -0.5)
        axes.set_xlim(0, 1.03 * longest)
        style.time_axis(axes, longest)
        left_out = f" (the fastest {len(best)} of {len(points)})" if len(best) < len(points) else ""
        style.set_title(fig, finding(points) + left_out)
    return fig
