"""Which full table does a run print? A row for each point, and a column for each figure.

Turns reports into rows of text for the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.sections import SECTIONS
from simulator.basics.units import format_bandwidth, format_bytes, format_memory, format_time
from simulator.basics.work_unit import USEFUL_TOKEN, has_padding, rate_name, useful_rate, work_unit
from simulator.records.measures import interval_width, recomputes, share_text
from simulator.records.setting_text import label, setting_text
from simulator.report.numbers.bottleneck import Bottleneck

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a result table: its heading, and the function from a report to the cell's text."""

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def _within(report: Row) -> str:
    """Format the 80 % prediction interval of a report's step time: '±5 %'; '-' if unknown."""
    width = interval_width(report)
    return "-" if width is None else f"±{100 * width:.0f} %"


_COLLECTIVE: Final = (
    _Column("time", lambda r: format_time(r["time_s"])),
    _Column("closed form", lambda r: _or_dash(r["predicted_s"], format_time)),
    _Column("busbw", lambda r: _or_dash(r["busbw"], format_bandwidth)),
    _Column("bytes sent", lambda r: format_bytes(r["wire_bytes"])),
    _Column("wrong", lambda r: _or_dash(r["wrong"], str)),
    _Column("max error", lambda r: _or_dash(r["max_abs_error"], "{:.2g}".format)),
    _Column("busiest link", lambda r: _or_dash(r["bottleneck"], _busiest), left=True),
)
_STEP: Final = _Column("step", lambda r: format_time(r["step_time_s"]))
_MEMORY: Final = (
    _Column("peak memory", lambda r: format_memory(r["peak_memory_bytes"])),
    _Column("fits", lambda r: "yes" if r["fits"] else f"lacks {format_memory(r['shortfall_bytes'])}"),
)
_LEARNING: Final = (
    _STEP,
    _Column("steps", lambda r: str(len(r["learning"]["losses"]))),
    _Column("last loss", lambda r: _last(r["learning"]["losses"])),
    _Column("skipped steps", lambda r: str(len(r["learning"]["skipped"]))),
    _Column("mean staleness", lambda r: f"{_mean(r['learning']['staleness']):.2g}"),
    _Column("detected by", lambda r: _problems(r["learning"]["seen"]), left=True),
    *_MEMORY,
)
# Axes with words as values, aligned left.
_WORDS: Final = ("algorithm", "topology", "dtype", "strategy", "sharding", "checkpointing", "model", "faults")
# Characters that rich adds to a cell: a space on each side and a line.
_FRAME: Final = 3


def points_tables(points: Sequence[Row], width: int) -> list[Table]:
    """Return simulated points as rich tables (collectives or training steps), to be printed below each other.

    Parameters
    ----------
    points : sequence of mapping
        Dicts with settings, engine, report and perhaps error, as in report.json.
    width : int
        Characters of a line; columns that do not fit side by side go to a further table, behind the settings.
    """
    axes = list(dict.fromkeys(key for point in points for key in point["settings"]))
    leading = [[_setting(axis, point["settings"].get(axis)) for axis in axes] for point in points]
    columns = _columns(
        [point["report"] for point in points if point["report"] is not None],
        training=any(axis.partition(".")[0] == "training" for axis in axes),
    )
    cells = [_cells(point, columns) for point in points]
    names = [axis.rpartition(".")[2].replace("_", " ") for axis in axes]
    # Settings are repeated in every table, so each has this much less room.
    axes_width = sum(max(len(name), *(len(row[i]) for row in leading)) + _FRAME for i, name in enumerate(names))
    groups = _fitting(columns, cells, width - axes_width - 1)
    return [_table(axes, names, leading, group, cells) for group in groups]


def _setting(axis: str, value: Any) -> str:
    """Return the text for a sweep axis's value in a table; a whole section of the scenario also names its keys."""
    return label(axis, value) if axis in SECTIONS else setting_text(value)


def _table(
    axes: Sequence[str],
    names: Sequence[str],
    leading: Sequence[Sequence[str]],
    columns: Sequence[_Column],
    cells: Sequence[Mapping[str, str]],
) -> Table:
    """Return a rich table: the sweep's axes as leading columns, then the given group of report columns."""
    from rich.table import Table

    table = Table(header_style="bold")
    for axis, name in zip(axes, names, strict=True):
        table.add_column(name, justify="left" if axis.endswith(_WORDS) else "right", overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="left" if column.left else "right", overflow="fold")
    before: Sequence[str] = []
    for row, cell in zip(leading, cells, strict=True):
        # A line separates groups with the same value of the first axis.
        if before and row[0] != before[0] and len(axes) > 1:
            table.add_section()
        before = row
        table.add_row(*row, *(cell[column.heading] for column in columns))
    return table


def _columns(reports: Sequence[Row], *, training: bool) -> tuple[_Column, ...]:
    """Return the columns for collectives, training steps or real training; `training` decides without reports."""
    steps = _training(rate_name(work_unit(reports)), padded=has_padding(reports))
    if not any("step_time_s" in report for report in reports):
        return steps if not reports and training else _COLLECTIVE
    if reports and all(report["learning"] for report in reports):
        return _LEARNING
    # Without recompute, HFU repeats MFU.
    return steps if recomputes(reports) else tuple(column for column in steps if column.heading != "HFU")


def _training(rate: str, *, padded: bool) -> tuple[_Column, ...]:
    """Return the columns for training steps; `rate` is tokens/s or samples/s, `padded`: some tokens are padding."""
    useful = _Column(rate_name(USEFUL_TOKEN), lambda r: f"{useful_rate(r):,.0f}")
    return (
        _STEP,
        _Column("uncertainty (80 %)", _within),
        _Column(rate, lambda r: f"{r['tokens_per_s']:,.0f}"),
        *([useful] if padded else []),
        _Column("MFU", lambda r: share_text(r["mfu"])),
        _Column("HFU", lambda r: share_text(r["hfu"])),
        _Column("exposed comm", lambda r: share_text(r["exposed_comm_time_s"] / r["step_time_s"])),
        _Column("idle", lambda r: share_text(r["bubble_time_s"] / r["step_time_s"])),
        _Column("recompute", lambda r: share_text(r["recompute_time_s"] / r["step_time_s"])),
        *_MEMORY,
    )


def _last(losses: Sequence[float | None]) -> str:
    """Format the last loss: "-" without losses, "NaN" for a missing value."""
    return "-" if not losses else "NaN" if losses[-1] is None else f"{losses[-1]:.5g}"


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values, 0 without values."""
    return sum(values) / len(values) if values else 0.0


def _problems(problems: Mapping[str, int]) -> str:
    """Format the checks with a detected problem, each with a training step: "nan (12)"; "-" without problems."""
    return ", ".join(f"{check} ({step})" for check, step in problems.items()) or "-"


def _fitting(columns: Sequence[_Column], cells: Sequence[Mapping[str, str]], room: int) -> list[list[_Column]]:
    """Return groups of columns, each group fitting in `room` characters side by side."""
    widths = {c.heading: max(len(c.heading), *(len(cell[c.heading]) for cell in cells)) + _FRAME for c in columns}
    groups: list[list[_Column]] = [[]]
    for column in columns:
        # A column wider than the room gets a separate group.
        if groups[-1] and sum(widths[member.heading] for member in [*groups[-1], column]) > room:
            groups.append([])
        groups[-1].append(column)
    return groups


def _cells(point: Row, columns: Sequence[_Column]) -> dict[str, str]:
    """Return a simulated point's cells by column heading; a failed point shows its error in the last column."""
    report = point["report"]
    if report is not None:
        return {column.heading: column.cell(report) for column in columns}
    cells = dict.fromkeys((column.heading for column in columns), "-")
    cells[columns[0].heading] = "failed"
    cells[columns[-1].heading] = str(point.get("error", ""))
    return cells


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    """Return `text(value)`, or "-" if the value is None."""
    return "-" if value is None else text(value)


def _busiest(link: Row) -> str:
    """Format a report's bottleneck link and busy share; both directions if these send in turns."""
    busiest = Bottleneck.of(link)
    if not busiest.takes_turns:
        return f"{busiest.link} {busiest.busy_fraction:.0%}"
    # The report has the other direction's time but not its busy share: scale by the times.
    back = busiest.busy_fraction * busiest.reverse_time_s / busiest.bandwidth_time_s
    return f"{busiest.link} {busiest.busy_fraction:.0%}, back {back:.0%}"
