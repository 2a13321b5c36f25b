"""How certain is the outcome of a training of days? The share of the runs that have ended by a day, or that do some
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(values: Sequence[float], axis: str, title: str, *, rising: bool) -> Figure:
    """Return a figure of the share of the runs against a value of each run, with 5, 50 and 95 % marked.

    Parameters
    ----------
    values : sequence of float
        A number for each run.
    axis : str
        Name of the number, with its unit.
    title : str
        The finding.
    rising : bool
        If True, draw the share of the runs with at most a value, else the share with at least the value.
    """
    ordered = np.sort(np.asarray(values, float))
    below = np.arange(len(ordered) + 1) / len(ordered)
    low, high = float(ordered[0]), float(ordered[-1])
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    places = np.concatenate([[low - room], ordered, [high + room]])
    shares = np.concatenate([below, [1.0]]) if rising else 1.0 - np.concatenate([below, [1.0]])
    with style.applied():
        fig = style.new_figure(7.5, 4.0)
        axes = fig.subplots()
        axes.step(places, 100 * shares, where="post", color=style.BLUE, linewidth=1.8)
        for number, part in enumerate((0.05, 0.5, 0.95)):
            value = float(np.quantile(ordered, part))
            share = part if rising else 1.0 - part
            text = f"{style.percent(share)}: {value:.4g}"
            axes.plot([value], [100 * share], linestyle="none", marker=style.MARKERS[number], markersize=8,
                      color=style.VERMILION, markeredgecolor="white", label=text)  # fmt: skip
        axes.set_xlim(low - room, high + room)
        axes.set_ylim(-3, 103)
        axes.ticklabel_format(axis="x", useOffset=False, style="plain")
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel(axis)
        axes.set_ylabel("finished runs [%]" if rising else "runs that do at least this much [%]")
        axes.grid(visible=True)
        fig.legend(loc="outside lower left", ncols=3)
        style.set_title(fig, title)
    return fig
