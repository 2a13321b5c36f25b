"""Do jobs disturb each other less if the last job starts later? The slowdown of each job against the later start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# [inch]
_WIDTH: Final = 8.0


def figure(last: str, delays: Sequence[float], slowdowns: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Return a figure of the slowdown of each job against the later start of the last job.

    Parameters
    ----------
    last : str
        Name of the job that starts later.
    delays : sequence of float
        How much later [s]; the first is 0.
    slowdowns : mapping of job to sequence of float
        Step time beside the others over step time alone, for each delay.
    title : str
        The finding.
    """
    palette = style.colours(slowdowns)
    with style.applied():
        columns, legend = style.legend_shape(_WIDTH, slowdowns)
        fig = style.new_figure(_WIDTH, 3.8 + legend)
        axes = fig.subplots()
        for number, (job, ratios) in enumerate(slowdowns.items()):
            axes.plot(delays, ratios, color=palette[job], marker=style.MARKERS[number % len(style.MARKERS)], label=job)
        # Differences of a thousandth must not fill the axis.
        low, high = axes.get_ylim()
        middle, room = (low + high) / 2, max((high - low) / 2, 0.02)
        axes.set_ylim(middle - room, middle + room)
        style.time_axis(axes, delays[-1])
        axes.set_xlabel(axes.get_xlabel().replace("time", f"later start of {last}"))
        axes.set_ylabel("slowdown (time beside others / alone)")
        axes.grid(visible=True)
        fig.legend(loc="outside lower left", ncols=columns)
        style.set_title(fig, title)
    return fig
