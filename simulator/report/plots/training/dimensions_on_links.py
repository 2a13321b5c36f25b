"""Which parallelism dimension uses which links, and how much? A bar per kind of link, split by dimension.

Bytes come from simulated transfers, counted on every link along their routes. Each bar is the mean over a kind's active
links, which makes a node's many links and a spine's few comparable.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.basics.units import format_bytes
from simulator.records.timeline import Timeline, TransferLog
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot
from simulator.report.plots.stacked_bars import stacked_bars
from simulator.report.plots.training.memory import bytes_axis
from simulator.step.streams import dimension_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH: Final = 9.0
# More transfers take minutes to count.
_MOST_TRANSFERS: Final = 5_000_000

# Mean bytes per link, by kind of link and dimension [B].
Carried = dict[str, dict[str, float]]


def kind_of_link(name: str) -> str:
    """Return a link name "src->dst" as the kinds of its ends, without numbers and direction.

    >>> kind_of_link("gpu3->nvswitch0"), kind_of_link("leaf1->node2.nic7")
    ('gpu - nvswitch', 'leaf - node.nic')
    """
    ends = sorted(re.sub(r"\d+", "", end).strip("._- ") for end in name.split("->"))
    return " - ".join(ends)


def carried(timeline: Timeline) -> Carried:
    """Return {kind of link: {dimension of parallelism: mean bytes per link}}; kinds with most bytes first."""
    streams = {span.name: span.stream for span in timeline.spans}
    totals: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for log in timeline.logs:
        # The stream of a collective determines its dimension.
        if log.collective in streams:
            of_dimension = totals[dimension_of(streams[log.collective])]
            for link, nbytes in _by_link(log).items():
                of_dimension[link] += nbytes
    links: dict[str, set[int]] = defaultdict(set)
    for by_link in totals.values():
        for link in by_link:
            links[kind_of_link(timeline.link_names[link])].add(link)
    means = {
        kind: {name: sum(by_link.get(link, 0.0) for link in members) / len(members) for name, by_link in totals.items()}
        for kind, members in links.items()
    }
    return dict(sorted(means.items(), key=lambda pair: (-sum(pair[1].values()), pair[0])))


def _by_link(log: TransferLog) -> dict[int, float]:
    """Return {link number: bytes} of a collective's transfer log."""
    # Sum over transfers on the same route first, then over routes on each link.
    by_route = np.bincount(log.route_of, log.nbytes, len(log.routes))
    route = np.repeat(np.arange(len(log.routes)), np.diff(log.routes.begin))
    link, place = np.unique(log.routes.link, return_inverse=True)
    return dict(zip(link.tolist(), np.bincount(place, by_route[route], len(link)).tolist(), strict=True))


def finding(means: Carried) -> str:
    """Return a sentence on the kind of link with most bytes, and the parallelism dimension with the largest share.

    Examples
    --------
    >>> finding({"gpu - nvswitch": {"tp": 3 * 2**30, "dp": 2**30}, "leaf - nic": {"tp": 0, "dp": 2**20}})
    'gpu - nvswitch links carry most: 4 GiB per link, 75 % for tp; leaf - nic links carry 1 MiB per link, all for dp'
    """
    parts = []
    for number, (kind, bar) in enumerate(list(means.items())[:2]):
        total, (most, nbytes) = sum(bar.values()), max(bar.items(), key=lambda pair: pair[1])
        share = "all" if nbytes == total else style.percent(nbytes / total)
        carry = "carry most:" if number == 0 else "carry"
        parts.append(f"{kind} links {carry} {format_bytes(total)} per link, {share} for {most}")
    return "; ".join(parts)


def figure(close_up: CloseUp) -> Figure | None:
    """Return a figure with a bar of bytes per kind of link, split by dimension of parallelism.

    None if only a single dimension communicates, with too many transfers, or in a large job that keeps only a few
    ranks' operations: other ranks' collectives then have no known dimension.
    """
    timeline = close_up.timeline
    if len({dimension_of(span.stream) for span in timeline.spans if span.stream not in ("compute", "host")}) < 2:
        return None
    if not 0 < timeline.transfers <= _MOST_TRANSFERS:
        return None
    if {log.collective for log in timeline.sent} - {span.name for span in timeline.spans}:
        return None
    means = carried(timeline)
    if not means:
        return None
    names = [name for name in style.DIMENSIONS if any(bar.get(name, 0.0) > 0 for bar in means.values())]
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.4 * len(means))
        axes = fig.subplots()
        left = stacked_bars(axes, list(means.values()), names, style.DIMENSIONS)
        axes.set_yticks(range(len(means)), list(means))
        axes.set_xlim(0, 1.05 * max(left))
        bytes_axis(axes.xaxis, max(left), "mean bytes per link")
        fig.legend(loc="outside lower left", ncols=6, frameon=False)
        style.set_title(fig, finding(means))
    return fig


PLOT = CloseUpPlot(figure=figure, links=True)
