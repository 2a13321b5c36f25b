"""What does a page show of links: links of one kind that carry alike in one row, with how full they are over time?"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np

from simulator.records.timeline import Timeline
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
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for use in timeline.links:
        course = courses.get(use.name)
        key = (_kind(use.name), use.bandwidth, float(f"{use.nbytes:.6g}"), tuple(course or ()))
        groups.setdefault(key, []).append(use)
    rows = []
    for (kind, bandwidth, _, course), uses in groups.items():
        first = uses[0]
        row = {
            "kind": kind,
            "count": len(uses),
            "names": [use.name for use in uses[:_MOST_NAMES]],
            "bandwidth": bandwidth,
            "bytes": first.nbytes,
            "used": first.nbytes / bandwidth / timeline.end if math.isfinite(bandwidth) else None,
            "busy": min(first.busy / timeline.end, 1.0),
        }
        rows.append(row | ({"course": list(course)} if course else {}))
    rows.sort(key=lambda row: (-(row["used"] or 0.0), row["kind"], row["names"][0]))
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


def _kind(name: str) -> str:
    """What a link joins, without numbers, in the direction of travel.

    Examples
    --------
    >>> _kind("gpu3->nvswitch0")
    'gpu -> nvswitch'
    """
    ends = [re.sub(r"\d+", "", end).strip("._- ") for end in name.split("->")]
    return " -> ".join(ends)
