"""How far are simulated training runs from measured ones? A plot of tokens/s, a point per run, a colour per source.

Every run is drawn, including the worst. The upper panel shows simulated over measured speed, the lower panel their
ratio; runs beyond the ratio's axis are hollow marks at its edge. Lines mean agreement, the band means ten per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Half width of the band around agreement.
_BAND: Final = 0.1
# Limits of the ratio's axis; few runs lie beyond.
_LEAST: Final = 0.5
_MOST: Final = 2.0


@dataclass(frozen=True, slots=True)
class Group:
    """Runs drawn with the same mark.

    Attributes
    ----------
    name : str
        Label in the legend.
    measured, simulated : tuple of float
        Tokens/s per GPU.
    """

    name: str
    measured: tuple[float, ...]
    simulated: tuple[float, ...]


def figure(groups: Sequence[Group], finding: str) -> Figure:
    """Draw the groups into both panels.

    Parameters
    ----------
    groups : sequence of Group
        Groups to draw.
    finding : str
        Sentence above the figure.

    Raises
    ------
    ValueError
        There is no run.
    """
    if not any(group.measured for group in groups):
        raise ValueError("no run to draw; give at least one group with a run")
    with style.applied():
        fig = style.new_figure(8.4, 7.6)
        above, below = fig.subplots(2, 1, sharex=True, height_ratios=(1.3, 1))
        below.axhspan(1.0 - _BAND, 1.0 + _BAND, color=style.PALE, zorder=0)
        below.axhline(1.0, color=style.BLACK, linewidth=0.8)
        ends = [f(value for group in groups for value in group.measured) for f in (min, max)]
        above.fill_between(ends, [e * (1 - _BAND) for e in ends], [e * (1 + _BAND) for e in ends], color=style.PALE)
        above.plot(ends, ends, color=style.BLACK, linewidth=0.8)
        for i, group in enumerate(groups):
            _draw(above, below, group, i)
        for axes in (above, below):
            axes.set_xscale("log")
        above.set_yscale("log")
        # Base 2: half and twice the measured speed are equally far from agreement.
        below.set_yscale("log", base=2)
        below.set_ylim(_LEAST, _MOST)
        below.set_yticks([_LEAST, 1 / 1.25, 1.0, 1.25, _MOST], labels=["1/2", "0.8", "1", "1.25", "2"])
        below.set_xlabel("measured tokens/s of one GPU")
        above.set_ylabel("simulated tokens/s of one GPU")
        below.set_ylabel("simulated / measured")
        above.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
        style.set_title(fig, finding)
    return fig


def _draw(above: Axes, below: Axes, group: Group, number: int) -> None:
    """Draw a group's runs into both panels."""
    # If colours repeat, marks still differ.
    marker = style.MARKERS[(number + number // len(style.PALETTE)) % len(style.MARKERS)]
    color = style.PALETTE[number % len(style.PALETTE)]
    # Half transparent, because hundreds of points overlap.
    looks: dict[str, Any] = {"color": color, "marker": marker, "linestyle": "none", "markersize": 4.5, "alpha": 0.75}
    above.plot(group.measured, group.simulated, label=group.name, **looks)
    pairs = [(m, s / m) for m, s in zip(group.measured, group.simulated, strict=True)]
    near = [pair for pair in pairs if _LEAST <= pair[1] <= _MOST]
    # Runs beyond the axis are drawn at the edge; every run is visible.
    beyond = [(m, min(max(ratio, _LEAST), _MOST)) for m, ratio in pairs if not _LEAST <= ratio <= _MOST]
    below.plot([m for m, _ in near], [ratio for _, ratio in near], **looks)
    if beyond:
        below.plot(*zip(*beyond, strict=True), markerfacecolor="none", clip_on=False, **looks)
