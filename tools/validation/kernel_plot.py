"""How far is each simulated matmul from its measured time? A plot of their ratio over the work, a panel per dtype.

Every shape is a point, including the worst; the line means agreement. Measured times faster than the GPU's peak or HBM
bandwidth (the roofline) have a different mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RATIOS: Final = (0.5, 0.7, 1.0, 1.4, 2.0)


@dataclass(frozen=True, slots=True)
class DtypePanel:
    """A panel for a dtype.

    Attributes
    ----------
    title : str
        Title of the panel.
    flops : tuple of float
        Work of each matmul [FLOP].
    measured, simulated : tuple of float
        Times [s].
    possible : tuple of bool
        Whether the measured time respects the GPU's peak and HBM bandwidth.
    """

    title: str
    flops: tuple[float, ...]
    measured: tuple[float, ...]
    simulated: tuple[float, ...]
    possible: tuple[bool, ...]


def figure(panels: Sequence[DtypePanel], finding: str) -> Figure:
    """Draw the panels in a row, with common axes.

    Parameters
    ----------
    panels : sequence of DtypePanel
        Panels to draw.
    finding : str
        Sentence above the figure.

    Raises
    ------
    ValueError
        There is no panel.
    """
    if not panels:
        raise ValueError("no dtype to draw; give at least one panel")
    with style.applied():
        fig = style.new_figure(3.7 * len(panels), 3.6)
        row = fig.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, panel in zip(row, panels, strict=True):
            _panel(axes, panel)
        row[0].set_ylabel("simulated / measured time")
        # The legend explains the second mark only.
        if any(not all(panel.possible) for panel in panels):
            row[-1].legend(loc="lower right")
        style.set_title(fig, finding)
    return fig


def _panel(axes: Axes, panel: DtypePanel) -> None:
    # Impossible times last: their marks lie on top.
    for possible, colour, marker, label in ((True, style.BLUE, "o", ""), (False, style.VERMILION, "x", "above a roof")):
        chosen = [i for i, fact in enumerate(panel.possible) if fact is possible]
        axes.plot(
            [panel.flops[i] / 1e9 for i in chosen],
            [panel.simulated[i] / panel.measured[i] for i in chosen],
            color=colour,
            linestyle="none",
            marker=marker,
            markersize=3.0,
            alpha=0.6,
            label=label,
        )
    axes.axhline(1.0, color=style.BLACK, linewidth=0.8)
    axes.set_xscale("log")
    # Base 2: half and twice the measured time are equally far from agreement.
    axes.set_yscale("log", base=2)
    axes.set_yticks(_RATIOS, [f"{ratio:g}" for ratio in _RATIOS])
    axes.minorticks_off()
    axes.grid(visible=True)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel("work (GFLOP)")
