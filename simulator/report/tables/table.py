"""Which full table does a run print: a row for each point, and a column for each figure?

Rule: turns reports into rows of text; printing is the command line's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.sections import SECTIONS
from simulator.basics.units import format_bandwidth, format_bytes, format_memory, format_time
from simulator.records.measures import interval_width, share_text
from simulator.records.setting_text import label, setting_text
from simulator.report.numbers.bottleneck import Bottleneck

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """A heading, and what stands below it."""

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def _within(report: Row) -> str:
    """How far measured runs like this one lie from their predictions, four in five of them."""
    width = interval_width(report)
    return "-" if width is None else f"±{100 * width:.0f} %"


_COLLECTIVE: Final = (
    _Column("time", lambda r: format_time(r["time_s"])),
    _Column("closed form", lambda r: _or_dash(r["predicted_s"], format_time)),
    _Column("busbw", lambda r: _or_dash(r["busbw"], format_bandwidth)),
    _Column("on the wire", lambda r: format_bytes(r["wire_bytes"])),
    _Column("wrong", lambda r: _or_dash(r["wrong"], str)),
    _Column("max error", lambda r: _or_dash(r["max_abs_error"], "{:.2g}".format)),
    _Column("busiest link", lambda r: _or_dash(r["bottleneck"], _busiest), left=True),
)
_TRAINING: Final = (
    _Column("step", lambda r: format_time(r["step_time_s"])),
    _Column("80 % within", _within),
    _Column("tokens/s", lambda r: f"{r['tokens_per_s']:,.0f}"),
    _Column("MFU", lambda r: share_text(r["mfu"])),
    _Column("exposed comm", lambda r: share_text(r["exposed_comm_time_s"] / r["step_time_s"])),
    _Column("idle", lambda r: share_text(r["bubble_time_s"] / r["step_time_s"])),
    _Column("recompute", lambda r: share_text(r["recompute_time_s"] / r["step_time_s"])),
    _Column("peak memory", lambda r: format_memory(r["peak_memory_bytes"])),
    _Column("fits", lambda r: "yes" if r["fits"] else f"lacks {format_memory(r['shortfall_bytes'])}"),
)
_LEARNING: Final = (
    _TRAINING[0],
    _Column("steps", lambda r: str(len(r["learning"]["losses"]))),
    _Column("last loss", lambda r: _last(r["learning"]["losses"])),
    _Column("skipped", lambda r: str(len(r["learning"]["skipped"]))),
    _Column("others between", lambda r: f"{_mean(r['learning']['staleness']):.2g}"),
    _Column("seen by", lambda r: _seen(r["learning"]["seen"]), left=True),
    *_TRAINING[-2:],
)
# Axes whose values are words rather than numbers, so that they are aligned to the left.
_WORDS: Final = ("algorithm", "topology", "dtype", "strategy", "sharding", "checkpointing", "model", "faults")
# Characters that rich puts round a cell: a space on each side and a line.
_FRAME: Final = 3


def points_tables(points: Sequence[Row], width: int) -> list[Table]:
    """Reports of collectives or of training steps as rich tables, one below the other.

    Parameters
    ----------
    points : sequence of mapping
        With settings, engine, report and perhaps error, as in report.json.
    width : int
        Characters a line has; columns that do not fit beside the others stand in a further table, behind the settings.
    """
    axes = list(dict.fromkeys(key for point in points for key in point["settings"]))
    leading = [[_setting(axis, point["settings"].get(axis)) for axis in axes] for point in points]
    columns = _columns(
        [point["report"] for point in points if point["report"] is not None],
        training=any(axis.partition(".")[0] == "training" for axis in axes),
    )
    cells = [_cells(point, columns) for point in points]
    names = [axis.rpartition(".")[2].replace("_", " ") for axis in axes]
    axes_width = sum(max(len(name), *(len(row[i]) for row in leading)) + _FRAME for i, name in enumerate(names))
    groups = _fitting(columns, cells, width - axes_width - 1)
    return [_table(axes, names, leading, group, cells) for group in groups]


def _setting(axis: str, value: Any) -> str:
    """A setting below the name of its axis; of a whole section with the names of its keys."""
    return label(axis, value) if axis in SECTIONS else setting_text(value)


def _table(
    axes: Sequence[str],
    names: Sequence[str],
    leading: Sequence[Sequence[str]],
    shown: Sequence[_Column],
    cells: Sequence[Mapping[str, str]],
) -> Table:
    from rich.table import Table

    table = Table(header_style="bold")
    for axis, name in zip(axes, names, strict=True):
        table.add_column(name, justify="left" if axis.endswith(_WORDS) else "right", overflow="fold")
    for column in shown:
        table.add_column(column.heading, justify="left" if column.left else "right", overflow="fold")
    before: Sequence[str] = []
    for row, cell in zip(leading, cells, strict=True):
        if before and row[0] != before[0] and len(axes) > 1:
            table.add_section()
        before = row
        table.add_row(*row, *(cell[column.heading] for column in shown))
    return table


def _columns(reports: Sequence[Row], *, training: bool) -> tuple[_Column, ...]:
    """Columns for what was played: a collective, a step, or real training; the axes decide where every point failed."""
    if not any("step_time_s" in report for report in reports):
        return _TRAINING if not reports and training else _COLLECTIVE
    learned = reports and all(report["learning"] for report in reports)
    return _LEARNING if learned else _TRAINING


def _last(losses: Sequence[float | None]) -> str:
    return "-" if not losses else "NaN" if losses[-1] is None else f"{losses[-1]:.5g}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _seen(seen: Mapping[str, int]) -> str:
    """Checks that found something wrong, with the step in which they did."""
    return ", ".join(f"{check} ({step})" for check, step in seen.items()) or "-"


def _fitting(columns: Sequence[_Column], cells: Sequence[Mapping[str, str]], room: int) -> list[list[_Column]]:
    """The columns in groups that fit into so many characters each."""
    widths = {c.heading: max(len(c.heading), *(len(cell[c.heading]) for cell in cells)) + _FRAME for c in columns}
    groups: list[list[_Column]] = [[]]
    for column in columns:
        if groups[-1] and sum(widths[one.heading] for one in [*groups[-1], column]) > room:
            groups.append([])
        groups[-1].append(column)
    return groups


def _cells(point: Row, columns: Sequence[_Column]) -> dict[str, str]:
    report = point["report"]
    if report is not None:
        return {column.heading: column.cell(report) for column in columns}
    cells = dict.fromkeys((column.heading for column in columns), "-")
    cells[columns[0].heading] = "failed"
    cells[columns[-1].heading] = str(point.get("error", ""))
    return cells


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)


def _busiest(link: Row) -> str:
    """The busiest link and its busy share; of a cable whose directions take turns both directions."""
    busiest = Bottleneck.of(link)
    if not busiest.takes_turns:
        return f"{busiest.link} {busiest.busy_fraction:.0%}"
    back = busiest.busy_fraction * busiest.reverse_time_s / busiest.bandwidth_time_s
    return f"{busiest.link} {busiest.busy_fraction:.0%}, back {back:.0%}"
