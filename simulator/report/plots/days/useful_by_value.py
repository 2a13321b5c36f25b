"""How much of the time is useful with each value of a fact? A bar for each value, and beside it the losses alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from simulator.report.plots import style
from simulator.report.plots.days.waterfall import USEFUL, percent_axis
from simulator.report.plots.stacked_bars import stacked_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Letters per line of a value.
_LABEL: Final = 24


def figure(along: str, shares: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Return a figure with a bar for each value: the whole time at the left, and its losses at the right.

    Parameters
    ----------
    along : str
        Name of the fact.
    shares : mapping of value to mapping of category to float
        Share of the time of each category, 0 to 1, "useful" first.
    title : str
        The finding.
    """
    bars = list(shares.values())
    names = [name for name in bars[0] if any(bar[name] for bar in bars)]
    lost = [name for name in names if name != USEFUL]
    with style.applied():
        fig = style.new_figure(11.0, 2.3 + 0.36 * len(bars))
        total, losses = fig.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        stacked_bars(total, bars, names, style.TIME_SHARES, longest=1.0, number=style.percent)
        total.set_yticks(range(len(bars)), [textwrap.fill(value, _LABEL) for value in shares])
        total.set_xlim(0.0, 1.0)
        percent_axis(total, "share of the time [%]")
        total.set_ylabel(along)
        ends = stacked_bars(losses, bars, lost, style.TIME_SHARES)
        losses.set_xlim(0.0, max(max(ends), 1e-6) * 1.05)
        percent_axis(losses, "lost share of the time [%]")
        handles, labels = total.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower left", ncols=5)
        style.set_title(fig, title)
    return fig
