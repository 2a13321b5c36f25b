"""How full is each link over time, and which link is the bottleneck? A heat map, with busy and used shares beside it.

A row is a directed link, or several equivalent links; colour is the share of bandwidth. Busy is the share of the time
with any flow on a link, used the share of its bandwidth; the bottleneck is the most used link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.natural_order import natural
from simulator.basics.units import format_bandwidth, format_bytes, format_time
from simulator.collectives.algorithm import OPERATIONS
from simulator.records.measures import percent_text
from simulator.records.timeline import LinkUse, Timeline
from simulator.report.numbers.bottleneck import Bottleneck, bottleneck, turns_text
from simulator.report.numbers.equivalent_links import EquivalentLinks, equivalent_links
from simulator.report.numbers.link_use import HOLDS_UP, LinkTraffic, link_traffic, link_uses, reverse_of, used
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ROWS: Final = 40
_BINS: Final = 400
# With more transfers, summing the use of links over time takes minutes.
_MOST_TRANSFERS: Final = 5_000_000
# Smaller shares of bandwidth are invisible.
_VISIBLE: Final = 0.01
_USED: Final = style.VERMILION
# Links with a smaller relative difference count as equally used.
_ALIKE: Final = 0.05


def figure(timeline: Timeline) -> Figure:
    """Return a figure of the most used links' bandwidth utilisation over time, with busy and used shares beside it.

    Parameters
    ----------
    timeline : Timeline
        Without transfers, only the busy and used shares are drawn.

    Raises
    ------
    ValueError
        No link carried anything.
    """
    followed = 0 < timeline.transfers <= _MOST_TRANSFERS and len(timeline.logs) > 0
    # In a large run the engine has recorded only the bottleneck; its transfers give the use of every link.
    all_uses = link_uses(replace(timeline, links=()) if followed else timeline)
    if not all_uses:
        raise ValueError("no link carried anything; run a collective between at least two ranks")
    rows = equivalent_links(all_uses, timeline.end)
    visible = rows[:_MOST_ROWS]
    names = {link.name for row in visible for link in row.links}
    with style.applied():
        fig = style.new_figure(11.0, 2.2 + 0.26 * max(5, len(visible)))
        # Only the shown links are followed over time.
        traffic = link_traffic(timeline, _BINS, names) if timeline.transfers <= _MOST_TRANSFERS else None
        if traffic is not None and len(traffic):
            heat, bars = fig.subplots(1, 2, sharey=True, width_ratios=[4, 1])
            _heat_map(fig, heat, traffic, visible, timeline.end)
        else:
            heat = bars = fig.subplots()
        _bars(bars, visible, timeline.end)
        _rows(heat, visible, len(all_uses))
        style.set_title(fig, _title(timeline, all_uses))
    return fig


def _title(timeline: Timeline, uses: Sequence[LinkUse]) -> str:
    """Return the title: the bottleneck link, unless closed forms keep some collectives' bytes off the links and the
    other collectives make no link the bottleneck.
    """
    unplayed = on_links(timeline)
    busiest = bottleneck(replace(timeline, links=tuple(uses)))
    if unplayed:
        # Bytes of closed forms could only add to a link's use: a bottleneck remains one, as in the answer's reason.
        if busiest is not None and busiest.limiting_time_s >= HOLDS_UP * timeline.end:
            return f"{finding(uses, timeline.end, busiest, all_known=False)}; {unplayed}"
        most_used = percent_text(max(used(use, timeline.end) for use in uses))
        return f"No bottleneck named: {unplayed}; the other collectives use at most {most_used} of a link's bandwidth"
    if timeline.transfers > _MOST_TRANSFERS:
        most = max(uses, key=lambda use: used(use, timeline.end))
        text = finding([most], timeline.end, all_known=False)
        return f"{text}; drawn: transfers over this link, of {timeline.transfers:,} transfers"
    return finding(uses, timeline.end, busiest)


def on_links(timeline: Timeline) -> str:
    """Return a text on how many of a timeline's collectives used no link because closed forms replaced them.

    "" if none.
    """
    # Of the ranks whose operations are kept: a large program has millions of collectives.
    collectives = {span.name: span.closed_form for span in timeline.spans if span.kind in OPERATIONS}
    count = sum(collectives.values())
    return f"closed forms replace {count} of {len(collectives)} collectives" if count else ""


def finding(uses: Sequence[LinkUse], end: float, busiest: Bottleneck | None = None, *, all_known: bool = True) -> str:
    """Return a sentence naming a run's bottleneck link, or denying a bottleneck.

    The used share of a link's bandwidth decides, not its busy time: a link whose sender waits for another link is busy
    too.

    Parameters
    ----------
    end : float
        End of the run [s].
    busiest : Bottleneck, optional
        Given if it is known whether the directions of the busiest cable take turns.
    all_known : bool
        True if `uses` has every link that carried anything.

    Examples
    --------
    >>> finding([LinkUse("a->b", 1e9, 1e9, 2.0), LinkUse("b->a", 1e9, 2e9, 2.0)], 2.0)
    'Bottleneck: b->a uses 100 % of its bandwidth over 2 s; the other link uses at most 50 %'
    >>> finding([LinkUse("a->b", 1e9, 1e8, 2.0)], 2.0)
    'No link is the bottleneck: the only link used, a->b, uses 5 % of its bandwidth over 2 s'
    """
    if not uses or end <= 0.0:
        return "no link carried any bytes"
    ranked = sorted(uses, key=lambda use: (-used(use, end), -use.busy, natural(use.name)))
    # Directions that take turns use the cable fully together, although neither direction does alone.
    if busiest is not None and busiest.takes_turns and busiest.cable_time_s >= HOLDS_UP * end:
        return _in_turn(ranked, end, busiest)
    shares = [used(use, end) for use in ranked]
    # Links ranked behind the first with almost the same share belong to the bottleneck too.
    leaders = sum(share >= shares[0] * (1 - _ALIKE) for share in shares)
    low, high = percent_text(shares[leaders - 1]), percent_text(shares[0])
    share = high if low == high else f"{low} to {high}"
    rest = len(ranked) - leaders
    rest_text = f"{rest} links use" if rest > 1 else "link uses"
    other = f"the other {rest_text} at most {percent_text(shares[leaders])}" if rest else ""
    if shares[0] < HOLDS_UP:
        return _none(ranked, leaders, share, end, other, all_known=all_known)
    over = f"bandwidth over {format_time(end)}"
    if len(ranked) == 1:
        role = ", the only link used," if all_known else ""
        return f"Bottleneck: {ranked[0].name}{role} uses {share} of its {over}"
    if not rest:
        return f"All {leaders} links use {share} of their {over}"
    if leaders == 1:
        return f"Bottleneck: {ranked[0].name} uses {share} of its {over}; {other}"
    return f"Bottleneck: {_together(ranked[:leaders], end)} use {share} of their {over}; {other}"


def _none(ranked: Sequence[LinkUse], leaders: int, share: str, end: float, other: str, *, all_known: bool) -> str:
    """Return a sentence that no link is the bottleneck, and how much of their bandwidth the busiest links use."""
    if len(ranked) == 1:
        who = f"the {'only link used' if all_known else 'busiest link'}, {ranked[0].name}, uses {share} of its"
    elif leaders == 1:
        who = f"the busiest link, {ranked[0].name}, uses {share} of its"
    else:
        who = f"the busiest links, {_together(ranked[:leaders], end)}, use {share} of their"
    return f"No link is the bottleneck: {who} bandwidth over {format_time(end)}{f'; {other}' if other else ''}"


def _in_turn(ranked: Sequence[LinkUse], end: float, busiest: Bottleneck) -> str:
    """Return a sentence on a bottleneck cable whose two directions send at different times."""
    cable = {busiest.link, reverse_of(busiest.link)}
    others = [used(use, end) for use in ranked if use.name not in cable]
    tail = f"; the other {len(others)} links use at most {percent_text(max(others))}" if others else ""
    return f"Bottleneck: {busiest.end} {turns_text(busiest, end, format_time(end))}{tail}"


def _together(links: Sequence[LinkUse], end: float) -> str:
    """Format links: a few names, or names for groups of equal links, or only the number of links."""
    if len(links) <= 2:
        return " and ".join(link.name for link in links)
    rows = equivalent_links(links, end)
    return " and ".join(row.name for row in rows) if len(rows) <= 2 else f"{len(links)} links"


def _heat_map(fig: Figure, axes: Axes, traffic: LinkTraffic, rows: Sequence[EquivalentLinks], end: float) -> None:
    """Draw a heat map of the used share of bandwidth into the axes: time to the right, a row per group of links."""
    from matplotlib.colors import LinearSegmentedColormap

    # The smallest use differs visibly from none, which is white; the page uses the same colour for links.
    faint_to_full = LinearSegmentedColormap.from_list("used", [style.paler(_USED, 0.88), _USED])
    used_colours = faint_to_full.with_extremes(bad=style.WHITE)
    image = axes.imshow(
        np.ma.masked_less_equal(_shares(traffic, rows), 0.0),
        aspect="auto", interpolation="nearest", cmap=used_colours, vmin=0.0, vmax=1.0,
        extent=(0.0, float(traffic.edges[-1]), len(rows) - 0.5, -0.5),
    )  # fmt: skip
    style.time_axis(axes, end)
    bar = fig.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    bar.set_label("bandwidth used (mean per 1/400 of the time)")


def _shares(traffic: LinkTraffic, rows: Sequence[EquivalentLinks]) -> Floats:
    """Return the mean used share of bandwidth of each row's links in each time bin, shape (rows, bins)."""
    number = {name: i for i, name in enumerate(traffic.names)}
    shares = np.zeros((len(rows), traffic.rates.shape[1]))
    for i, row in enumerate(rows):
        places = [number[link.name] for link in row.links if link.name in number]
        if places:
            shares[i] = traffic.rates[places].mean(axis=0) / row.links[0].bandwidth
    # Rounding may bring a full link slightly above 1.
    return np.clip(shares, 0.0, 1.0)


def _bars(axes: Axes, rows: Sequence[EquivalentLinks], end: float) -> None:
    """Draw two horizontal bars per group of links: the share of time with a flow, and the used share of bandwidth."""
    busy = [min(1.0, row.busy / end) if end > 0.0 else 0.0 for row in rows]
    carried = [row.used(end) for row in rows]
    places = range(len(rows))
    axes.barh(places, busy, height=0.72, color=style.paler(_USED, 0.7), label="busy")
    axes.barh(places, carried, height=0.72, color=_USED, label="used")
    for i, share in enumerate(carried):
        # The dark bar's share, and the pale bar's if different.
        text = percent_text(share)
        busy_too = "" if abs(busy[i] - share) < 0.005 else f", {percent_text(busy[i])}"
        axes.text(max(share, busy[i]) + 0.03, i, f"{text}{busy_too}", va="center", fontsize=8.0)
    axes.set_xlim(0.0, 1.9)
    axes.set_xticks([0.0, 0.5, 1.0], ["0", "50 %", "100 %"])
    axes.set_xlabel("dark: bandwidth used\npale: time busy")
    axes.grid(visible=True, axis="x")


def _rows(axes: Axes, rows: Sequence[EquivalentLinks], total: int) -> None:
    """Label each row of the heat map with its links' names and bytes, and set the title on the links shown."""
    names = [f"{row.name}  {format_bytes(row.nbytes)}{' each' if len(row.links) > 1 else ''}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8.0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    caps = sorted({row.links[0].bandwidth for row in rows})
    bandwidth = format_bandwidth(caps[0]) + (f" to {format_bandwidth(caps[-1])}" if len(caps) > 1 else "")
    count = sum(len(row.links) for row in rows)
    left_out = f" ({total - count} more not shown)" if total > count else ""
    axes.set_title(f"{count} {'link' if count == 1 else 'links'} of {bandwidth}, most used first{left_out}", loc="left")


def _of_point(close_up: CloseUp) -> Figure | None:
    """Return the bandwidth figure of a simulated point; None without communication."""
    timeline = close_up.timeline
    unplayed = on_links(timeline)
    if unplayed and _most_used(timeline) < _VISIBLE:
        return _sentence(f"No bottleneck named: {unplayed}, and links carry almost no bytes")
    return figure(timeline) if timeline.transfers else None


def _most_used(timeline: Timeline) -> float:
    """Return the largest used share (0 to 1) of bandwidth over the timeline's links."""
    return max((used(use, timeline.end) for use in link_uses(timeline)), default=0.0)


def _sentence(text: str) -> Figure:
    """Return a figure that holds only the given sentence, the reason for drawing nothing else."""
    with style.applied():
        fig = style.new_figure(9.0, 0.9)
        style.set_title(fig, text)
    return fig


PLOT = CloseUpPlot(figure=_of_point, links=True)
