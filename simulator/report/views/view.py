"""Which data does a page need about a simulated point? Spans, memory over time, links, largest allocations.

Plain data in few columns, so small that a page holds hundreds of views; omissions are listed in `notes`. Times are
whole multiples of `unit_s`, exact to half a unit.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import MOST_DATA, read_bytes
from simulator.records.program import Program
from simulator.records.timeline import Span, Timeline
from simulator.report.views.lanes import lanes, lanes_of_streams, pipeline
from simulator.report.views.links import few_names, links
from simulator.report.views.memory_view import memory, only_at_peak

# Whole numbers up to this are exact in JavaScript, and short enough in JSON.
_TICKS: Final = 10**9
NAME: Final = "view.json.gz"
# Number of the format; it increases with each change of a view's keys or of their meaning.
_FORMAT: Final = 2


def view_of(
    timeline: Timeline,
    capacity: float,
    groups: Mapping[str, Sequence[int]] | None = None,
    slow: Sequence[int] = (),
    program: Program | None = None,
) -> dict[str, Any]:
    """Return a simulated point's timeline as plain data for a page: lanes of spans, memory, links.

    Parameters
    ----------
    timeline : Timeline
        Timeline with link use.
    capacity : float
        HBM of a GPU [B].
    groups : mapping of a collective's name to ranks, optional
        Given: lanes also show each rank's sends.
    slow : sequence of int
        Ranks that are always shown.
    program : Program, optional
        Given: each span of an operation names the dependency that ended last, for which the operation waited, and spans
        of passes refer to their kinds of kernels.

    Returns
    -------
    dict
        `format`, `unit_s`, `end` [units], `lanes`, `pipeline`, `memory`, `links`, `notes`; see the functions of these
        names.
    """
    unit = _unit(timeline.end)
    notes: list[str] = []
    return {
        "format": _FORMAT,
        "unit_s": unit,
        "end": round(timeline.end / unit),
        "lanes": lanes(timeline, unit, groups, slow, notes, program),
        "pipeline": pipeline(timeline, unit),
        "memory": memory(timeline, unit, capacity),
        "links": links(timeline, notes),
        "notes": notes,
    }


def view_of_spans(spans: Iterable[Span], end: float) -> dict[str, Any]:
    """Return spans up to the time `end` [s] as a view with lanes alone, without memory and links."""
    unit = _unit(end)
    lanes = lanes_of_streams(spans, unit)
    return {
        "format": _FORMAT, "unit_s": unit, "end": round(end / unit), "lanes": lanes, "pipeline": None, "memory": None,
        "links": {"rows": []}, "notes": [],
    }  # fmt: skip


def _unit(end: float) -> float:
    """Return the time unit, a power of ten [s], in which `end` has at most nine digits."""
    unit = 1e-12
    while end / unit > _TICKS:
        unit *= 10
    # Repeated multiplication leaves rounding errors; the text form does not.
    return float(f"{unit:.0e}")


def compressed(view: Mapping[str, Any]) -> bytes:
    """Return a page's view (plain data of a point) as gzipped JSON; equal views give equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=6) as file:
        file.write(json.dumps(view, separators=(",", ":"), allow_nan=False).encode())
    return buffer.getvalue()


def decompressed(data: bytes) -> dict[str, Any]:
    """Return a page's view from its gzipped JSON."""
    view: dict[str, Any] = json.loads(gzip.decompress(data))
    return view


def stored(path: Path) -> dict[str, Any]:
    """Return a page's view from a file of a run.

    Raises
    ------
    ScenarioError
        The file cannot be read, is not a view, or was written by a version of the simulator with another format.
    """
    data = read_bytes(path, most=MOST_DATA)
    try:
        view = decompressed(data)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ScenarioError(f"{path}: not a view of a point: {error}; simulate the run again") from error
    if not isinstance(view, dict) or view.get("format") != _FORMAT:
        raise ScenarioError(
            f"{path}: another version of the simulator wrote this view, in another format; simulate the run again"
        )
    return view


def within(view: dict[str, Any], most: int) -> bytes | None:
    """Return a page's view as gzipped JSON of at most `most` bytes, reduced if necessary; None if impossible.

    Reductions in order: allocations only at the peak; lanes except the first, the last to end and slow ranks; merged
    spans; links without utilisation over time; few link names.
    """
    # Each step reduces the view further, until it is small enough.
    for smaller in (lambda v: v, _without_allocations, _few_lanes, _merged, _without_course, _few_names):
        view = smaller(view)
        data = compressed(view)
        if len(data) <= most:
            return data
    return None


def _without_allocations(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view whose allocations are those at the memory peak alone."""
    if not view["memory"] or not view["memory"]["allocations"]:
        return view
    return view | {"memory": view["memory"] | {"allocations": only_at_peak(view["memory"]["allocations"])}}


def _few_lanes(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view with only the lanes of the first rank, the last to end, slow ranks and servers."""
    everybody = dict.fromkeys(lane["rank"] for lane in view["lanes"]["lanes"])
    ranks = [who for who in everybody if isinstance(who, int)]
    visible = {*ranks[:1], view["lanes"]["last_rank"], *view["lanes"]["slow"]}
    rows = [lane for lane in view["lanes"]["lanes"] if lane["rank"] in visible or isinstance(lane["rank"], str)]
    if len(rows) == len(view["lanes"]["lanes"]):
        return view
    note = f"{len(visible & set(ranks))} of {len(ranks)} different ranks are shown to keep this page small"
    return view | {"lanes": view["lanes"] | {"lanes": rows}, "notes": [*view["notes"], note]}


# Time bins per merged lane: about a screen's width.
_BINS: Final = 1500


def _merged(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view in which neighbouring spans of the same kind within a time bin are merged to a span."""
    width = max(1, view["end"] // _BINS)
    names = list(view["lanes"]["names"])
    merged = [_merge(lane, width, names) for lane in view["lanes"]["lanes"]]
    note = f"spans of the same kind within {width * view['unit_s']:.3g} s are merged to keep this page small"
    return view | {"lanes": view["lanes"] | {"lanes": merged, "names": names}, "notes": [*view["notes"], note]}


def _merge(lane: dict[str, Any], width: int, names: list[str]) -> dict[str, Any]:
    """Return a lane whose short neighbouring spans of the same kind, less than `width` units apart, are merged."""
    many = len(names)
    names.append("several")
    # Columns: begin, end, kind, name.
    spans: list[list[int]] = []
    at = 0
    for gap, duration, kind, name in zip(lane["start"], lane["duration"], lane["kind"], lane["name"], strict=True):
        # Starts are stored as differences.
        at += gap
        if spans and spans[-1][2] == kind and at - spans[-1][1] < width and duration < width:
            spans[-1][1], spans[-1][3] = at + duration, many
        else:
            spans.append([at, at + duration, kind, name])
    begins = [span[0] for span in spans]
    return lane | {
        "start": [after - before for before, after in zip([0, *begins], begins, strict=False)],
        "duration": [span[1] - span[0] for span in spans],
        "kind": [span[2] for span in spans],
        "name": [span[3] for span in spans],
        # Merged spans have no single dependency, and no single list of kernels.
        "waits": [],
        "kernels": [],
    }


def _few_names(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view with only a few link names per row of links."""
    links = view["links"]
    rows = [few_names(row) for row in links["rows"]]
    lists_all = links.get("complete", False) and not links.get("more")
    complete = lists_all and all(len(row["names"]) == row["count"] for row in rows)
    return view | {"links": links | {"rows": rows, "more": {}, "complete": complete}}


def _without_course(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view whose rows of links have no utilisation over time."""
    rows = [{key: value for key, value in row.items() if key != "course"} for row in view["links"]["rows"]]
    return view | {"links": view["links"] | {"rows": rows}}
