"""How near is a machine's simulated bus bandwidth to the measured one? A plot over array size, a panel per machine.

Measurements are points, the simulation is a line; the panel's title states the error at the largest size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_bytes
from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS: Final = 3
_TICKS: Final = (2**10, 2**20, 2**30)


@dataclass(frozen=True, slots=True)
class MachinePanel:
    """A panel for a machine.

    Attributes
    ----------
    title : str
        Title of the panel.
    sizes : tuple of float
        Array sizes [B].
    measured, simulated : tuple of float
        Bus bandwidths [B/s].
    """

    title: str
    sizes: tuple[float, ...]
    measured: tuple[float, ...]
    simulated: tuple[float, ...]


def figure(panels: Sequence[MachinePanel], finding: str) -> Figure:
    """Draw the panels, three per row.

    Parameters
    ----------
    panels : sequence of MachinePanel
        Panels to draw.
    finding : str
        Sentence above the figure.

    Raises
    ------
    ValueError
        There is no panel.
    """
    if not panels:
        raise ValueError("no machine to draw; give at least one panel")
    rows = -(-len(panels) // _COLUMNS)
    columns = min(_COLUMNS, len(panels))
    with style.applied():
        fig = style.new_figure(3.7 * columns, 0.8 + 2.6 * rows)
        grid = fig.subplots(rows, columns, squeeze=False)
        # Panels fill the grid row by row.
        places = [axes for row in grid for axes in row]
        for axes, panel in zip(places, panels, strict=False):
            _panel(axes, panel)
        # Places without a panel stay empty.
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for row in grid:
            row[0].set_ylabel("bus bandwidth (GB/s)")
        places[0].legend(loc="upper left")
        style.set_title(fig, finding)
    return fig


def _panel(axes: Axes, panel: MachinePanel) -> None:
    axes.plot(panel.sizes, [rate / 1e9 for rate in panel.simulated], color=style.BLUE, label="simulated")
    axes.plot(
        panel.sizes,
        [rate / 1e9 for rate in panel.measured],
        color=style.VERMILION,
        linestyle="none",
        marker="o",
        markersize=3.5,
        label="measured",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(_TICKS, [format_bytes(tick) for tick in _TICKS])
    # Points at both ends keep some distance from the axes.
    axes.set_xlim(min(panel.sizes) / 2, max(panel.sizes) * 2)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel("array")
