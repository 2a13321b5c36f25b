"""Tables for people: one row a point.

Rule: turns outcomes into rows of text; printing is the command line's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]

# Columns of a report, and how soon each is left out where a line is too short: the highest number first.
_COLUMNS: Final = {
    "time": 0,
    "closed form": 3,
    "busbw": 1,
    "on the wire": 4,
    "wrong": 2,
    "max error": 6,
    "busiest link": 5,
}
# What rich puts round a cell: a space on each side and a line.
_FRAME: Final = 3


def collective_table(title: str, points: Sequence[Row], width: int) -> Table:
    """A rich table of collective reports.

    Parameters
    ----------
    title : str
    points : sequence of mapping
        With settings, engine, report and perhaps error, as in report.json.
    width : int
        Characters a line has; columns that do not fit are left out whole, so that nothing is cut in the middle.
    """
    from rich.table import Table

    axes = list(dict.fromkeys(key for point in points for key in point["settings"]))
    leading = [[_plain(point["settings"].get(axis)) for axis in axes] for point in points]
    cells = [dict(zip(_COLUMNS, _cells(point), strict=True)) for point in points]
    names = [axis.rpartition(".")[2].replace("_", " ") for axis in axes]
    taken = sum(max(len(name), *(len(row[i]) for row in leading)) + _FRAME for i, name in enumerate(names))
    shown = _fitting(cells, width - taken - 1)
    table = Table(title=title, title_justify="left", header_style="bold")
    for axis, name in zip(axes, names, strict=True):
        left = axis.endswith(("algorithm", "topology", "dtype"))
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for heading in shown:
        table.add_column(heading, justify="left" if heading == "busiest link" else "right", no_wrap=True)
    before: list[str] = []
    for row, cell in zip(leading, cells, strict=True):
        if before and row[0] != before[0] and len(axes) > 1:
            table.add_section()
        before = row
        table.add_row(*row, *(cell[heading] for heading in shown))
    return table


def _fitting(cells: Sequence[Mapping[str, str]], room: int) -> list[str]:
    """Headings of the columns that fit into so many characters; the time always stays."""
    shown = list(_COLUMNS)
    widths = {heading: max(len(heading), *(len(cell[heading]) for cell in cells)) + _FRAME for heading in shown}
    while len(shown) > 1 and sum(widths[heading] for heading in shown) > room:
        shown.remove(max(shown, key=_COLUMNS.__getitem__))
    return shown


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
