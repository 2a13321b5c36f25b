"""How far are simulated training runs from measured ones: the ratio of their tokens/s, a point a run, a colour a group.

Rule: every run is drawn, the worst too; the line is agreement, the band ten per cent to either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAND: Final = 0.1


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that are drawn alike.

    Attributes
    ----------
    name : str
    measured, simulated : tuple of float
        Tokens/s of one GPU.
    """

    name: str
    measured: tuple[float, ...]
    simulated: tuple[float, ...]


def figure(groups: Sequence[Group], finding: str) -> Figure:
    """Draw the groups on one pair of axes.

    Parameters
    ----------
    groups : sequence of Group
    finding : str
        The sentence above the figure.

    Raises
    ------
    ValueError
        No run.
    """
    if not any(group.measured for group in groups):
        raise ValueError("no run to draw; give at least one group with a run")
    with style.applied():
        fig = style.new_figure(8.4, 4.4)
        axes = fig.subplots()
        axes.axhspan(1.0 - _BAND, 1.0 + _BAND, color=style.PALE, zorder=0)
        axes.axhline(1.0, color=style.BLACK, linewidth=0.8)
        for i, group in enumerate(groups):
            # Where colours begin again, markers do not.
            marker = style.MARKERS[(i + i // len(style.PALETTE)) % len(style.MARKERS)]
            axes.plot(
                group.measured,
                [s / m for s, m in zip(group.simulated, group.measured, strict=True)],
                color=style.PALETTE[i % len(style.PALETTE)],
                marker=marker,
                linestyle="none",
                markersize=4.5,
                alpha=0.75,
                label=group.name,
            )
        axes.set_xscale("log")
        axes.set_xlabel("measured tokens/s of one GPU")
        axes.set_ylabel("simulated / measured")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
        style.set_title(fig, finding)
    return fig
