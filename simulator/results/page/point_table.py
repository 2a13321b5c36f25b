"""Which table does a page have for its points: settings, figures, and each point's difference from the baseline?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any, Final, NamedTuple

from simulator.basics.units import format_bandwidth, format_bytes, format_memory, format_time
from simulator.basics.work_unit import USEFUL_TOKEN, has_padding, rate_name, useful_rate
from simulator.findings.comparison import Comparison, Row
from simulator.records.measures import interval_width, recomputes, share_text
from simulator.records.setting_text import label
from simulator.results.page.html_text import html_text
from simulator.scenario.payload import PAYLOAD_LIMIT

# More rows would make the page slow; table.csv contains every row.
MOST_ROWS: Final = 1000
# Maximum letters of a setting that stays on a single line.
_SHORT: Final = 20


class ReportColumn(NamedTuple):
    """A column of the page's point table: a figure (number) of the report, and its format."""

    name: str  # heading of the column
    key: str  # name of the figure in the scripts
    unit: str  # format of the figure in the scripts
    value: Callable[[Mapping[str, Any]], Any]  # reads the figure from a report
    text: Callable[[Any], str]  # formats the figure


# HTML heading, and the function that returns an HTML cell from a row with a report.
_Column = tuple[str, Callable[[Row], str]]


def _share(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda report: report[key] / report["step_time_s"] if report["step_time_s"] else None


COLLECTIVE: Final = (
    ReportColumn("time", "time_s", "s", lambda r: r["time_s"], format_time),
    ReportColumn("closed form", "predicted_s", "s", lambda r: r["predicted_s"], format_time),
    ReportColumn("bus bandwidth", "busbw", "B/s", lambda r: r["busbw"], format_bandwidth),
    ReportColumn("bytes sent", "wire_bytes", "size", lambda r: r["wire_bytes"], format_bytes),
    ReportColumn("wrong elements", "wrong", "number", lambda r: r["wrong"], str),
    ReportColumn("largest error", "max_abs_error", "number", lambda r: r["max_abs_error"], "{:.2g}".format),
)


def _training(rate: str, *, padded: bool) -> tuple[ReportColumn, ...]:
    """Return the columns for training steps; `rate` is tokens/s or samples/s, `padded`: some tokens are padding."""
    useful = ReportColumn(rate_name(USEFUL_TOKEN), "useful_tokens_per_s", "number", useful_rate, "{:,.0f}".format)
    # The most important figures first: a screen may show only the first columns.
    return (
        ReportColumn("step", "step_time_s", "s", lambda r: r["step_time_s"], format_time),
        ReportColumn("uncertainty (80 %)", "interval", "share", interval_width, lambda v: f"±{100 * v:.0f} %"),
        ReportColumn(rate, "tokens_per_s", "number", lambda r: r["tokens_per_s"], "{:,.0f}".format),
        *([useful] if padded else []),
        ReportColumn("MFU", "mfu", "share", lambda r: r["mfu"], share_text),
        ReportColumn("peak memory", "peak_memory_bytes", "B", lambda r: r["peak_memory_bytes"], format_memory),
        ReportColumn("exposed communication", "exposed", "share", _share("exposed_comm_time_s"), share_text),
        ReportColumn("idle time", "bubble", "share", _share("bubble_time_s"), share_text),
        ReportColumn("recompute", "recompute", "share", _share("recompute_time_s"), share_text),
        ReportColumn("HFU", "hfu", "share", lambda r: r["hfu"], share_text),
        ReportColumn("reserved memory", "peak_reserved_bytes", "B", lambda r: r["peak_reserved_bytes"], format_memory),
    )


def figures(compared: Comparison) -> tuple[ReportColumn, ...]:
    """Return the report columns for the comparison's kind of scenario, training or collective."""
    if compared.kind != "training":
        return COLLECTIVE
    # Without recompute, HFU repeats MFU.
    reports = [row.report for row in compared.rows if row.report is not None]
    again = recomputes(reports)
    columns = _training(rate_name(compared.work_unit), padded=has_padding(reports))
    return columns if again else tuple(column for column in columns if column.key != "hfu")


def point_table(compared: Comparison) -> str:
    """Return the page's table of points in HTML; readable without scripts, sorted and filtered by scripts."""
    axes = [*compared.scenario.compare, *compared.scenario.sweep]
    columns = _columns(compared)
    heads = [f'<th class="text">{escape(_heading(axis))}</th>' for axis in axes] + [head for head, _ in columns]
    body = "".join(_row(compared, row, axes, columns) for row in compared.rows[:MOST_ROWS])
    left = len(compared.rows) - MOST_ROWS
    notes = [f"{left:,} more points are in table.csv"] if left > 0 else []
    caption = ". ".join([*notes, *_why_dashes(compared)])
    return (
        f'<table id="all" class="sortable">{f"<caption>{caption}</caption>" if caption else ""}'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{body}</tbody></table>"
    )


def _columns(compared: Comparison) -> list[_Column]:
    """Return the columns of the table after the settings."""
    columns: list[_Column] = []
    for number, column in enumerate(figures(compared)):
        columns.append((f"<th>{escape(column.name)}</th>", partial(_cell, column)))
        # The change stands beside its figure, and the verdict beside the memory.
        if number == 0 and len(compared.settings) > 1:
            name = f"vs {compared.name(compared.settings[0])}"
            columns.append((f"<th>{escape(name)}</th>", partial(_against, compared, column)))
        if column.key == "peak_memory_bytes":
            columns.append(('<th class="text">fits</th>', _fits))
    return columns


def example_filter(compared: Comparison) -> str:
    """Return a filter of the table as an example: 'size=64 KiB, time>=25.24 us'."""
    row = next((row for row in compared.rows if row.report is not None), compared.rows[0])
    settings, first = {**row.setting, **row.condition}, figures(compared)[0]
    parts = [f"{_heading(axis)}={label(axis, settings[axis])}" for axis in [*settings][-1:]]
    if row.report is not None:
        parts.append(f"{first.name}>={first.text(first.value(row.report))}")
    return ", ".join(parts)


def _heading(axis: str) -> str:
    return axis.rpartition(".")[2].replace("_", " ")


def _why_dashes(compared: Comparison) -> list[str]:
    """Return a note for points without a count of wrong elements, because no real arrays were summed; empty if none."""
    without = sum(row.report is not None and row.report.get("wrong", 0) is None for row in compared.rows)
    if not without:
        return []
    which = "no point" if without == len(compared.rows) else f"{len(compared.rows) - without} points"
    limit = format_bytes(PAYLOAD_LIMIT)
    return [f"Real arrays were summed in {which}; payload: auto sums arrays of at most {limit} over all ranks"]


def _row(compared: Comparison, row: Row, axes: list[str], columns: list[_Column]) -> str:
    settings = {**row.setting, **row.condition}
    cells = [text_cell(label(axis, settings[axis])) for axis in axes]
    if row.report is None:
        # A failed point has no figures; its error fills the row.
        error = next((outcome.error for outcome in compared.outcomes if outcome.index == row.index), "") or ""
        cells.append(f'<td class="text bad" colspan="{len(columns)}">failed: {html_text(error)}</td>')
        return f'<tr data-index="{row.index}">{"".join(cells)}</tr>'
    cells += [cell(row) for _, cell in columns]
    return f'<tr data-index="{row.index}">{"".join(cells)}</tr>'


def _fits(row: Row) -> str:
    """Return an HTML cell with "yes", or with the memory that is missing on a GPU."""
    if row.fits:
        return '<td class="text short">yes</td>'
    return f'<td class="text short bad">lacks {format_memory((row.report or {})["shortfall_bytes"])}</td>'


def text_cell(text: str) -> str:
    """Return an HTML cell with a text on the left; a short text stays on a line, a long one breaks after `_` or `.`.

    >>> text_cell("reduce_scatter"), text_cell("0.05")
    ('<td class="text short">reduce_<wbr>scatter</td>', '<td class="text short">0.05</td>')
    """
    # Not inside a number: 0.05.
    broken = re.sub(r"_|\.(?=[a-z])", r"\g<0><wbr>", html_text(text))
    return f'<td class="text{" short" if len(text) <= _SHORT else ""}">{broken}</td>'


def _cell(column: ReportColumn, row: Row) -> str:
    value = column.value(row.report or {})
    if value is None:
        return '<td data-v="">-</td>'
    return f'<td data-v="{value!r}">{escape(column.text(value))}</td>'


def _against(compared: Comparison, column: ReportColumn, row: Row) -> str:
    """Return a cell (HTML) with a figure's relative difference from the baseline's at the same swept values."""
    if row.setting == compared.settings[0]:
        return '<td data-v="0">baseline</td>'
    baseline = compared.row(compared.settings[0], row.condition).report
    value = column.value(row.report or {})
    before = column.value(baseline) if baseline is not None else None
    # The baseline failed, or has no value to divide by.
    if not before or value is None:
        return '<td data-v="">-</td>'
    change = value / before - 1
    return f'<td data-v="{change!r}">{change:+.1%}</td>'.replace("%<", " %<")
