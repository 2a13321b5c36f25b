"""How full was each link, over time, and which one is the bottleneck: a heat map, and beside it how long each was busy.

Rule: a row is a directed link, colour is the share of its bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.units import format_bandwidth, format_bytes, format_time
from simulator.collectives.algorithm import OPERATIONS
from simulator.records.timeline import LinkUse, Timeline
from simulator.report.numbers.link_use import LinkTraffic, link_traffic, link_uses
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ROWS: Final = 40
_BINS: Final = 400
# Of more transfers than these the use of links over time takes minutes to add up.
_MOST_TRANSFERS: Final = 5_000_000
# Links whose shares lie this close together (relative) are called equally used.
_ALIKE: Final = 0.05


def figure(timeline: Timeline) -> Figure:
    """Draw the use of the busiest links over time, sorted by the bytes that they carried.

    Parameters
    ----------
    timeline : Timeline
        Where it kept no transfers, only the busy shares are drawn.

    Raises
    ------
    ValueError
        No link carried anything.
    """
    all_uses = link_uses(timeline)
    if not all_uses:
        raise ValueError("no link carried anything; run a collective between at least two ranks")
    uses = sorted(all_uses, key=lambda use: (-use.nbytes, -used(use, timeline.end), style.natural(use.name)))
    shown = uses[:_MOST_ROWS]
    traffic = link_traffic(timeline, _BINS, {use.name for use in shown})
    with style.applied():
        fig = style.new_figure(11.0, 1.9 + 0.23 * max(6, len(shown)))
        if len(traffic):
            heat, bars = fig.subplots(1, 2, sharey=True, width_ratios=[4, 1])
            _heat_map(fig, heat, traffic, shown, timeline.end)
        else:
            heat = bars = fig.subplots()
        _bars(bars, shown, timeline.end)
        _rows(heat, shown, len(uses))
        style.set_title(fig, f"{on_links(timeline)}{finding(uses, timeline.end)}")
    return fig


def on_links(timeline: Timeline) -> str:
    """Say how many collectives were not on links because closed forms stood for them; nothing where there are none."""
    collectives = {span.name for span in timeline.spans if span.kind in OPERATIONS}
    played = {sent.collective for sent in timeline.sent} & collectives
    if len(played) == len(collectives):
        return ""
    replaced = f"{len(collectives) - len(played)} of {len(collectives)} collectives"
    return f"closed forms stand for {replaced}, which are on no link (collectives: played); of the rest "


def finding(uses: Sequence[LinkUse], end: float) -> str:
    """Say which link is the bottleneck in a run that ended at a time [s], or that links are evenly used.

    The share of its bandwidth that a link carried decides, not how long it was busy: a link whose sender waits for
    another link is busy too.

    Examples
    --------
    >>> finding([LinkUse("a->b", 1e9, 1e9, 2.0), LinkUse("b->a", 1e9, 2e9, 2.0)], 2.0)
    'b->a is the bottleneck: 100 % of its bandwidth used over 2 s; the other link at most 50 %'
    """
    if not uses or end <= 0.0:
        return "no link carried anything"
    ranked = sorted(uses, key=lambda use: (-used(use, end), -use.busy, style.natural(use.name)))
    shares = [used(use, end) for use in ranked]
    alike = sum(share >= shares[0] * (1 - _ALIKE) for share in shares)
    low, high = _percent(shares[alike - 1]), _percent(shares[0])
    share = high if low == high else f"{low} to {high}"
    over = f"bandwidth used over {format_time(end)}"
    if len(ranked) == 1:
        return f"{ranked[0].name} is the only link used: {share} of its {over}"
    if alike == len(ranked):
        return f"all {alike} links are used evenly: {share} of their {over}"
    rest = len(ranked) - alike
    tail = f"the other {f'{rest} links' if rest > 1 else 'link'} at most {_percent(shares[alike])}"
    if alike == 1:
        return f"{ranked[0].name} is the bottleneck: {share} of its {over}; {tail}"
    who = f"{ranked[0].name} and {ranked[1].name}" if alike == 2 else f"{alike} links"
    return f"{who} are the bottleneck: {share} of their {over}; {tail}"


def used(use: LinkUse, end: float) -> float:
    """Share of a link's bandwidth that it used until a time [s], 0 to 1."""
    if end <= 0.0 or not use.bandwidth > 0.0:
        return 0.0
    return min(1.0, use.nbytes / (use.bandwidth * end))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _heat_map(fig: Figure, axes: Axes, traffic: LinkTraffic, shown: list[LinkUse], end: float) -> None:
    image = axes.imshow(
        _shares(traffic, shown), aspect="auto", interpolation="nearest", cmap="Blues", vmin=0.0, vmax=1.0,
        extent=(0.0, float(traffic.edges[-1]), len(shown) - 0.5, -0.5),
    )  # fmt: skip
    style.time_axis(axes, end)
    bar = fig.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    bar.set_label("share of the link's bandwidth (mean of each 1/400 of the time)")


def _shares(traffic: LinkTraffic, shown: list[LinkUse]) -> Floats:
    row = {name: i for i, name in enumerate(traffic.names)}
    shares = np.zeros((len(shown), traffic.rates.shape[1]))
    for i, use in enumerate(shown):
        if use.name in row:
            shares[i] = traffic.rates[row[use.name]] / use.bandwidth
    return np.clip(shares, 0.0, 1.0)


def _bars(axes: Axes, shown: list[LinkUse], end: float) -> None:
    busy = [min(1.0, use.busy / end) if end > 0.0 else 0.0 for use in shown]
    carried = [used(use, end) for use in shown]
    rows = range(len(shown))
    axes.barh(rows, busy, height=0.72, color=style.SKY, alpha=0.5, label="busy")
    axes.barh(rows, carried, height=0.72, color=style.BLUE, label="used")
    for i, share in enumerate(carried):
        axes.text(max(share, busy[i]) + 0.02, i, _percent(share), va="center", fontsize=8.0)
    axes.set_xlim(0.0, 1.28)
    axes.set_xticks([0.0, 0.5, 1.0], ["0", "50 %", "100 %"])
    axes.set_xlabel("dark: bandwidth used\npale: time with any flow")
    axes.grid(visible=True, axis="x")


def _rows(axes: Axes, shown: list[LinkUse], total: int) -> None:
    axes.set_yticks(range(len(shown)), [f"{use.name}  {format_bytes(use.nbytes)}" for use in shown], fontsize=8.0)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    caps = sorted({use.bandwidth for use in shown})
    bandwidth = format_bandwidth(caps[0]) + (f" to {format_bandwidth(caps[-1])}" if len(caps) > 1 else "")
    left_out = f"; and {total - len(shown)} more" if total > len(shown) else ""
    axes.set_title(f"links of {bandwidth}, by bytes carried{left_out}", loc="left")


def _of_point(close_up: CloseUp) -> Figure | None:
    return figure(close_up.timeline) if 0 < close_up.timeline.transfers <= _MOST_TRANSFERS else None


PLOT = CloseUpPlot("bandwidth_utilization", of=("collective", "training"), figure=_of_point, links=True)
