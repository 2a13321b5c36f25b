"""What does a page show of links: links that are alike in one row, with how full they are over time?"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from simulator.records.timeline import Timeline
from simulator.report.numbers.alike_links import alike_links, directed_kind
from simulator.report.numbers.link_use import link_traffic

# Columns of time of a row.
_BINS: Final = 160
# Beyond so many transfers or links their course over time is not worked out: it would take longer than playing.
_MOST_TRANSFERS: Final = 1_000_000
_MOST_COURSES: Final = 2_000
_MOST_ROWS: Final = 60
# Names of links that a row tells.
_MOST_NAMES: Final = 40


def links(timeline: Timeline, notes: list[str]) -> dict[str, Any]:
    """Rows of links.

    Returns
    -------
    dict
        `rows`: a dict each of `kind` ('gpu - switch'), `count`, `names` (the first of them), `bandwidth` [B/s], `bytes`
        [B], `used` (share of what they could have carried), `busy` (share of the time with a flow), and where it is
        known `course` (per cent of the bandwidth in each of equal parts of the time); fullest first.
    """
    if not timeline.links or timeline.end <= 0:
        return {"rows": []}
    courses = _courses(timeline)
    rows = []
    for alike in alike_links(timeline.links, timeline.end):
        first = alike.links[0]
        row = {
            "kind": directed_kind(first.name),
            "count": len(alike.links),
            "names": [use.name for use in alike.links[:_MOST_NAMES]],
            "bandwidth": first.bandwidth,
            "bytes": alike.nbytes,
            "used": alike.used(timeline.end) if math.isfinite(first.bandwidth) else None,
            "busy": min(alike.busy / timeline.end, 1.0),
        }
        course = courses.get(first.name)
        rows.append(row | ({"course": course} if course else {}))
    if len(rows) > _MOST_ROWS:
        notes.append(f"the {_MOST_ROWS} fullest of {len(rows)} unlike kinds of links are shown")
    return {"rows": rows[:_MOST_ROWS]}


def _courses(timeline: Timeline) -> dict[str, list[int]]:
    """By link's name how full it is in each bin [per cent]."""
    if not timeline.logs or timeline.transfers > _MOST_TRANSFERS or len(timeline.links) > _MOST_COURSES:
        return {}
    traffic = link_traffic(timeline, _BINS)
    full = 100 * traffic.rates / traffic.bandwidths[:, None]
    rows = zip(traffic.names, full, strict=True)
    # A link whose bandwidth the timeline does not name has no share of it.
    return {name: [round(float(v)) for v in row] for name, row in rows if np.isfinite(row).all()}
