"""How are bars that are cut into parts drawn: one row a bar, the parts of one name in one colour, from left to right?

Rule: parts that are nowhere above 0 are not drawn and not named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A part narrower than this share of the longest bar has no room for its number.
_WIDE_ENOUGH: Final = 0.08


def stacked_bars(
    axes: Axes,
    bars: Sequence[Mapping[str, float]],
    names: Sequence[str],
    colours: Mapping[str, str],
    *,
    longest: float | None = None,
    number: Callable[[float], str] | None = None,
) -> list[float]:
    """Draw bars in rows 0, 1, ... from the top.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    bars : sequence of mapping of name to length
    names : sequence of str
        In the order in which parts follow each other.
    colours : mapping of name to colour
    longest : float, optional
        Length of the whole axis, by which it is judged which parts have room for a number; the longest bar's otherwise.
    number : function (length) -> str, optional
        What is written into parts that have room for it.

    Returns
    -------
    list of float
        The length of each bar.
    """
    starts = [0.0] * len(bars)
    whole = longest or max((sum(bar.values()) for bar in bars), default=0.0)
    for name in names:
        lengths = [bar.get(name, 0.0) for bar in bars]
        if not any(lengths):
            continue
        axes.barh(range(len(bars)), lengths, left=starts, height=0.7, color=colours[name], edgecolor="white",
                  linewidth=0.5, label=name)  # fmt: skip
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if number is not None and length >= _WIDE_ENOUGH * whole:
                axes.text(start + length / 2, row, number(length), ha="center", va="center", fontsize=8.5,
                          color=style.text_on(colours[name]))  # fmt: skip
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    axes.set_ylim(len(bars) - 0.5, -0.5)
    return starts
