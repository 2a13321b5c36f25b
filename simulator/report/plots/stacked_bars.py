"""How are bars with parts drawn? A row per bar, the parts from left to right, equal names in equal colours.

Parts that are 0 in every bar are neither drawn nor named.
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
    """Draw stacked horizontal bars in rows 0, 1, ... from the top; return the length of each bar.

    Parameters
    ----------
    bars : sequence of mapping of name to length
    names : sequence of str
        Names in the order of the parts.
    colours : mapping of name to colour
    longest : float, optional
        Length of the whole axis, for judging which parts have room for a number; by default the longest bar.
    number : function (length) -> str, optional
        Text for parts with enough room.

    Returns
    -------
    list of float
        Length of each bar.
    """
    starts = [0.0] * len(bars)
    axis_length = longest or max((sum(bar.values()) for bar in bars), default=0.0)
    for name in names:
        lengths = [bar.get(name, 0.0) for bar in bars]
        if not any(lengths):
            continue
        axes.barh(range(len(bars)), lengths, left=starts, height=0.7, color=colours[name], edgecolor="white",
                  linewidth=0.5, label=name)  # fmt: skip
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if number is not None and length >= _WIDE_ENOUGH * axis_length:
                axes.text(start + length / 2, row, number(length), ha="center", va="center", fontsize=8.5,
                          color=style.text_on(colours[name]))  # fmt: skip
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    # Inverted: row 0 is the top.
    axes.set_ylim(len(bars) - 0.5, -0.5)
    return starts
