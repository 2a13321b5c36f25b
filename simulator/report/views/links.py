"""How does a page show links? Equivalent links in a single row, with their utilisation over time."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.records.timeline import Timeline
from simulator.report.numbers.equivalent_links import EquivalentLinks, directed_kind, equivalent_links
from simulator.report.numbers.link_use import link_traffic
from simulator.report.plots.both.bandwidth_utilization import on_links

# Time bins of a row.
_BINS: Final = 160
# Beyond this many transfers or links, utilisation over time is omitted: it would take longer than the simulation.
_MOST_TRANSFERS: Final = 1_000_000
_MOST_COURSES: Final = 2_000
_MOST_ROWS: Final = 60
# Number of link names stored for the machine's drawing, which shows every cable's use.
_MOST_NAMES: Final = 20_000
# Names per row in a view that must be small; such a view is incomplete.
FEW_NAMES: Final = 40


def links(timeline: Timeline, notes: list[str]) -> dict[str, Any]:
    """Return the page's rows of links (equivalent links share a row) as plain data.

    Returns
    -------
    dict
        `rows`: dicts with `kind` ('gpu - switch'), `count`, `names` of the links, `bandwidth` [B/s], `bytes` [B],
        `used` (share of the possible bytes), `busy` (share of the time with a flow), and if known `course` (per cent of
        the bandwidth in each time bin, mean over the row's links); most used first. `more`: used share by name, of
        links without a row. `complete`: True if every link that carried anything is named and recorded. `off_links`:
        text about collectives that closed forms keep off the links.
    """
    off_links = on_links(timeline)
    if not timeline.links or timeline.end <= 0:
        return {"rows": [], "more": {}, "complete": not off_links, "off_links": off_links}
    courses = _courses(timeline)
    groups = equivalent_links(timeline.links, timeline.end)
    rows = [_row(group, timeline.end, courses) for group in groups]
    if len(rows) > _MOST_ROWS:
        notes.append(f"the {_MOST_ROWS} most used of {len(rows)} groups of links are shown")
    visible, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    # Very large runs record only the bottleneck, and closed forms record no link.
    complete = (
        not off_links and len(timeline.links) <= _MOST_NAMES and not (len(timeline.links) == 1 < timeline.transfers)
    )
    if len(timeline.links) > _MOST_NAMES:
        visible, rest = [few_names(row) for row in visible], []
    more = {name: row["used"] for row in rest for name in row["names"]}
    return {"rows": visible, "more": more, "complete": complete, "off_links": off_links}


def few_names(row: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a row of links with only the first few link names.

    >>> len(few_names({"names": [f"gpu{i}->switch" for i in range(100)]})["names"])
    40
    """
    return row | {"names": row["names"][:FEW_NAMES]}


def _row(group: EquivalentLinks, end: float, courses: dict[str, Floats]) -> dict[str, Any]:
    """Return a group of equivalent links as a row of plain data: kind, number, names, bandwidth, bytes, utilisation."""
    first = group.links[0]
    row = {
        "kind": directed_kind(first.name),
        "count": len(group.links),
        "names": [use.name for use in group.links],
        "bandwidth": first.bandwidth,
        "bytes": group.nbytes,
        "used": group.used(end) if math.isfinite(first.bandwidth) else None,
        "busy": min(group.busy / end, 1.0),
    }
    shares = [courses[use.name] for use in group.links if use.name in courses]
    return row | ({"course": np.rint(np.mean(shares, axis=0)).astype(int).tolist()} if shares else {})


def _courses(timeline: Timeline) -> dict[str, Floats]:
    """Return {link name: utilisation [per cent] in each time bin}; empty without transfer logs or for large runs."""
    # Without logs only each link's total use is known.
    if not timeline.logs or timeline.transfers > _MOST_TRANSFERS or len(timeline.links) > _MOST_COURSES:
        return {}
    traffic = link_traffic(timeline, _BINS)
    full = 100 * traffic.rates / traffic.bandwidths[:, None]
    # A link without a known bandwidth has no utilisation.
    return {name: row for name, row in zip(traffic.names, full, strict=True) if np.isfinite(row).all()}
