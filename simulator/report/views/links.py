"""What does a page show of links: links that are alike in one row, with how full they are over time?"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.records.timeline import Timeline
from simulator.report.numbers.alike_links import AlikeLinks, alike_links, directed_kind
from simulator.report.numbers.link_use import link_traffic
from simulator.report.plots.both.bandwidth_utilization import on_links

# Columns of time of a row.
_BINS: Final = 160
# Beyond so many transfers or links their course over time is not worked out: it would take longer than playing.
_MOST_TRANSFERS: Final = 1_000_000
_MOST_COURSES: Final = 2_000
_MOST_ROWS: Final = 60
# Names of links that are kept, so that a drawing of the machine knows which of its cables carried how much.
_MOST_NAMES: Final = 20_000
# Names of a row in a view that has to be small; then it is not complete.
FEW_NAMES: Final = 40


def links(timeline: Timeline, notes: list[str]) -> dict[str, Any]:
    """Rows of links.

    Returns
    -------
    dict
        `rows`: a dict each of `kind` ('gpu - switch'), `count`, `names` of the links, `bandwidth` [B/s], `bytes` [B],
        `used` (share of what they could have carried), `busy` (share of the time with a flow), and where it is known
        `course` (per cent of the bandwidth in each of equal parts of the time, in the mean of the row's links); fullest
        first. `more`: by name the share used of links that have no row. `complete`: whether every link that carried
        anything is named and booked. `off_links`: how many collectives closed forms keep off the links, in words.
    """
    off_links = on_links(timeline)
    if not timeline.links or timeline.end <= 0:
        return {"rows": [], "more": {}, "complete": not off_links, "off_links": off_links}
    courses = _courses(timeline)
    alike = alike_links(timeline.links, timeline.end)
    rows = [_row(own, timeline.end, courses) for own in alike]
    if len(rows) > _MOST_ROWS:
        notes.append(f"the {_MOST_ROWS} fullest of {len(rows)} unlike kinds of links are shown")
    shown, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    # A run so large that its bottleneck alone is booked tells of no other link, and closed forms book no link at all.
    complete = (
        not off_links and len(timeline.links) <= _MOST_NAMES and not (len(timeline.links) == 1 < timeline.transfers)
    )
    if len(timeline.links) > _MOST_NAMES:
        shown, rest = [few_names(row) for row in shown], []
    more = {name: row["used"] for row in rest for name in row["names"]}
    return {"rows": shown, "more": more, "complete": complete, "off_links": off_links}


def few_names(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the first names of its links alone."""
    return row | {"names": row["names"][:FEW_NAMES]}


def _row(alike: AlikeLinks, end: float, courses: dict[str, Floats]) -> dict[str, Any]:
    first = alike.links[0]
    row = {
        "kind": directed_kind(first.name),
        "count": len(alike.links),
        "names": [use.name for use in alike.links],
        "bandwidth": first.bandwidth,
        "bytes": alike.nbytes,
        "used": alike.used(end) if math.isfinite(first.bandwidth) else None,
        "busy": min(alike.busy / end, 1.0),
    }
    own = [courses[use.name] for use in alike.links if use.name in courses]
    return row | ({"course": np.rint(np.mean(own, axis=0)).astype(int).tolist()} if own else {})


def _courses(timeline: Timeline) -> dict[str, Floats]:
    """By link's name how full it is in each bin [per cent]."""
    if not timeline.logs or timeline.transfers > _MOST_TRANSFERS or len(timeline.links) > _MOST_COURSES:
        return {}
    traffic = link_traffic(timeline, _BINS)
    full = 100 * traffic.rates / traffic.bandwidths[:, None]
    # A link whose bandwidth the timeline does not name has no share of it.
    return {name: row for name, row in zip(traffic.names, full, strict=True) if np.isfinite(row).all()}
