"""How often should a training save? The useful share of the time against the interval of work between saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_duration
from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Ticks of the axis: name, and duration [s].
_TICKS: Final = {
    f"{number} {unit}": number * seconds
    for unit, seconds, numbers in (
        ("s", 1.0, (1, 2, 5, 10, 30)), ("min", 60.0, (1, 2, 5, 10, 30)), ("h", 3600.0, (1, 2, 4, 8)),
        ("d", 86400.0, (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)),
    )
    for number in numbers
}  # fmt: skip


def figure(tried: Sequence[tuple[float, float]], marked: Mapping[str, float]) -> Figure:
    """Return a figure of the useful share of the time against the interval between saves, on a logarithmic axis.

    Parameters
    ----------
    tried : sequence of (float, float)
        Pairs (interval [s], useful share from 0 to 1).
    marked : mapping of str to float
        Intervals with a line, by name [s]; the first is the best.
    """
    with style.applied():
        fig = style.new_figure(8.0, 4.2)
        axes = fig.subplots()
        axes.set_xscale("log")
        axes.plot(*zip(*tried, strict=True), color=style.BLUE, marker="o", linewidth=1.4, label="simulated")
        palette = (style.GREEN, style.ORANGE, style.PURPLE, style.BLACK)
        for (name, interval), colour, line in zip(marked.items(), palette, ("-", "--", ":", "-."), strict=False):
            axes.axvline(interval, color=colour, linestyle=line, linewidth=1.6,
                         label=f"{name}: {format_duration(interval)}")  # fmt: skip
        every = [interval for interval, _ in tried] + list(marked.values())
        axes.set_xlim(min(every) / 1.2, max(every) * 1.2)
        _axes(axes)
        fig.legend(loc="outside lower left", ncols=3)
        style.set_title(fig, finding(tried, marked))
    return fig


def _axes(axes: Axes) -> None:
    """Label the interval in durations and the useful share in per cent."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = axes.get_xlim()
    ticks = {name: seconds for name, seconds in _TICKS.items() if low <= seconds <= high}
    axes.set_xticks(list(ticks.values()), list(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}"))
    axes.set_xlabel("work between saves")
    axes.set_ylabel("useful time [%]")
    axes.grid(visible=True)


def finding(tried: Sequence[tuple[float, float]], marked: Mapping[str, float]) -> str:
    """Return a sentence on the best interval, and on the least useful interval of those that were tried.

    Examples
    --------
    >>> finding([(600.0, 0.91), (3600.0, 0.97), (14400.0, 0.93)], {"best": 3000.0})
    'A save every 50 minutes of work is best, 97.0 % useful; every 10 minutes leaves 91.0 %'
    """
    most = max(share for _, share in tried)
    worst, least = min(tried, key=lambda pair: pair[1])
    best = next(iter(marked.values()))
    digits = 1 if most - least > 0.002 else 2
    return (
        f"A save every {format_duration(best)} of work is best, {100 * most:.{digits}f} % useful; every "
        f"{format_duration(worst)} leaves {100 * least:.{digits}f} %"
    )
