"""Tables for people: one row a point.

Rule: turns outcomes into rows of text; printing is the command line's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]


_NARROW = 110


def collective_table(title: str, points: Sequence[Row], width: int) -> Table:
    """A rich table of collective reports.

    Parameters
    ----------
    title : str
    points : sequence of mapping
        With settings, engine, report and perhaps error, as in report.json.
    width : int
        Characters a line has; below 110 the last two columns are left out, so that nothing is broken in the middle.
    """
    from rich.table import Table

    axes = list(dict.fromkeys(key for point in points for key in point["settings"]))
    table = Table(title=title, title_justify="left", header_style="bold")
    for axis in axes:
        left = axis.endswith(("algorithm", "topology", "dtype"))
        table.add_column(axis.rpartition(".")[2].replace("_", " "), justify="left" if left else "right", no_wrap=True)
    headings = ["time", "closed form", "busbw", "on the wire", "wrong", "max error", "busiest link"]
    shown = headings if width >= _NARROW else headings[:-2]
    for heading in shown:
        table.add_column(heading, justify="left" if heading == "busiest link" else "right", no_wrap=True)
    before: tuple[Any, ...] = ()
    for point in points:
        leading = tuple(_plain(point["settings"].get(axis)) for axis in axes)
        if before and leading[0] != before[0] and len(axes) > 1:
            table.add_section()
        before = leading
        table.add_row(*leading, *_cells(point)[: len(shown)])
    return table


def _cells(point: Row) -> list[str]:
    report = point["report"]
    if report is None:
        return ["failed", "-", "-", "-", "-", "-", str(point.get("error", ""))]
    held = report["bottleneck"]
    return [
        format_time(report["time_s"]),
        "-" if report["predicted_s"] is None else format_time(report["predicted_s"]),
        "-" if report["busbw"] is None else format_bandwidth(report["busbw"]),
        format_bytes(report["wire_bytes"]),
        "-" if report["wrong"] is None else str(report["wrong"]),
        "-" if report["max_abs_error"] is None else f"{report['max_abs_error']:.2g}",
        "-" if held is None else f"{held['link']} {held['busy_fraction']:.0%}",
    ]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return "none" if value is None else str(value)
