"""Where does the time of a training of days go? The whole time as one bar, and below the losses, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_duration
from simulator.report.plots import style
from simulator.report.plots.stacked_bars import stacked_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

USEFUL: Final = "useful"
_DAY: Final = 86400.0


def figure(shares: Mapping[str, float], days: float) -> Figure:
    """Return a figure of the whole time as a bar, and of each loss as a bar that begins where the one above ends.

    Parameters
    ----------
    shares : mapping of str to float
        Share of the time of each category, 0 to 1, "useful" first; the sum is 1.
    days : float
        The whole time [days].
    """
    lost = {name: share for name, share in shares.items() if name != USEFUL and share > 0.0}
    with style.applied():
        fig = style.new_figure(9.0, 2.2 + (0.8 + 0.34 * len(lost) if lost else 0.0))
        if lost:
            total, losses = fig.subplots(2, 1, height_ratios=[1.0, 0.6 + 0.5 * len(lost)])
            _losses(losses, lost, days)
        else:
            total = fig.subplots()
        stacked_bars(total, [shares], list(shares), style.TIME_SHARES, longest=1.0, number=small_percent)
        total.set_yticks([0], ["whole time"])
        total.set_xlim(0.0, 1.0)
        percent_axis(total, "share of the time [%]")
        style.set_title(fig, finding(shares))
    return fig


def _losses(axes: Axes, lost: Mapping[str, float], days: float) -> None:
    """Draw losses as bars, each beginning where the bar above ends, with their shares and times beside them."""
    total, start = sum(lost.values()), 0.0
    for row, (name, share) in enumerate(lost.items()):
        axes.barh(row, share, left=start, height=0.7, color=style.TIME_SHARES[name], edgecolor="white", linewidth=0.5)
        start += share
        text = f"{small_percent(share)}, {format_duration(share * days * _DAY)}"
        axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.set_yticks(range(len(lost)), list(lost))
    axes.set_ylim(len(lost) - 0.5, -0.5)
    axes.set_xlim(0.0, total)
    percent_axis(axes, f"lost share of the time [%]: {small_percent(total)} in all")


def percent_axis(axes: Axes, label: str) -> None:
    """Label the horizontal axis, whose values are shares from 0 to 1, in per cent."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}"))
    axes.set_xlabel(label)
    axes.grid(visible=True, axis="x")


def small_percent(share: float) -> str:
    """Return a share (0 to 1) as text in per cent with two digits, at least to a tenth.

    >>> small_percent(0.00032), small_percent(0.034), small_percent(0.949)
    ('0.032 %', '3.4 %', '94.9 %')
    """
    return f"{100 * share:.1f} %" if share >= 0.01 else f"{100 * share:.2g} %"


def finding(shares: Mapping[str, float]) -> str:
    """Return a sentence on the useful share, and on the largest loss.

    Examples
    --------
    >>> finding({"useful": 0.949, "checkpoint": 0.017, "waiting for spares": 0.034})
    '94.9 % of the time is useful; the largest loss is waiting for spares, 3.4 %'
    """
    useful = f"{100 * shares[USEFUL]:.1f} % of the time is useful"
    name = max((name for name in shares if name != USEFUL), key=lambda name: shares[name], default=USEFUL)
    if name == USEFUL or shares[name] <= 0.0:
        return useful
    return f"{useful}; the largest loss is {name}, {small_percent(shares[name])}"
