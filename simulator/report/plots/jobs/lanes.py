"""Which steps does each job do when? A lane for each job, and a thin lane below with the same steps alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More lanes cannot be compared.
_MOST: Final = 24
# Letters per line of a job's name.
_LABEL: Final = 24
# Steps narrower than this share of the time have no edges, which would cover them.
_NARROW: Final = 0.004
# Steps of this share of the time have their number written on them.
_WIDE: Final = 0.035


class JobLane(NamedTuple):
    """Steps of a job."""

    name: str  # name of the job
    start: float  # when it begins [s]
    steps: tuple[tuple[float, float], ...]  # when each step begins and ends [s]
    alone: float  # mean time of a step without the other jobs [s]


def figure(lanes: Sequence[JobLane], title: str) -> Figure:
    """Return a figure with two lanes for each job (at most 24 jobs): steps beside the others, and alone."""
    from matplotlib.patches import Patch

    visible = lanes[:_MOST]
    end = max(max(lane.steps[-1][1], lane.start + lane.alone * len(lane.steps)) for lane in visible)
    palette = style.colours(lane.name for lane in lanes)
    with style.applied():
        fig = style.new_figure(11.0, 1.9 + 0.5 * max(2, len(visible)))
        axes = fig.subplots()
        for row, lane in enumerate(visible):
            _steps(axes, row - 0.12, 0.5, lane.steps, palette[lane.name], end, numbered=True)
            times = [lane.start + lane.alone * step for step in range(len(lane.steps) + 1)]
            _steps(axes, row + 0.28, 0.16, list(pairwise(times)), style.GREY, end)
        axes.set_yticks(range(len(visible)), [textwrap.fill(lane.name, _LABEL) for lane in visible])
        axes.set_ylim(len(visible) - 0.5, -0.5)
        axes.set_xlim(0.0, end * 1.01)
        style.time_axis(axes, end)
        left = f"; {len(visible)} of {len(lanes)} jobs shown" if len(visible) < len(lanes) else ""
        note = Patch(color=style.GREY, label=f"thin: the same steps without the other jobs; gap: the job waits{left}")
        fig.legend(handles=[note], loc="outside lower left")
        style.set_title(fig, title)
    return fig


def _steps(
    axes: Axes, middle: float, height: float, steps: Sequence[tuple[float, float]], colour: str, duration: float,
    *, numbered: bool = False,
) -> None:  # fmt: skip
    """Draw steps as blocks around a height."""
    for step, (begin, end) in enumerate(steps):
        share = (end - begin) / duration
        axes.barh(middle, end - begin, left=begin, height=height, color=colour, edgecolor="white",
                  linewidth=0.8 if share >= _NARROW else 0.0)  # fmt: skip
        if numbered and share >= _WIDE:
            axes.text((begin + end) / 2, middle, str(step), ha="center", va="center", fontsize=8.5,
                      color=style.text_on(colour))  # fmt: skip
