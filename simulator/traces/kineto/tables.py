"""Tables of a comparison with a trace: time by kind, measured and simulated."""

from __future__ import annotations

from simulator.basics.units import format_time
from simulator.report.tables.answer_table import AnswerColumn, AnswerTable
from simulator.traces.kineto.comparison import KindTime, TraceComparison


def time_table(found: TraceComparison) -> AnswerTable:
    """Return a row for each kind of work: number of operations, and time measured and simulated [s]."""
    columns = (
        AnswerColumn("kind", "kind", left=True),
        AnswerColumn("measured_operations", "measured", _count),
        AnswerColumn("simulated_operations", "simulated", _count),
        AnswerColumn("measured_s", "time measured", format_time),
        AnswerColumn("simulated_s", "time simulated", format_time),
        AnswerColumn("difference_s", "difference", _signed),
        AnswerColumn("difference_share", "relative", _percent),
    )
    rows = [_row(one) for one in found.times]
    ranks = f", mean over {len(found.measured)} ranks" if len(found.measured) > 1 else ""
    return AnswerTable("time_by_kind", f"Operations and time by kind{ranks}", columns, rows)


def _row(one: KindTime) -> tuple[object, ...]:
    counts = (None, None) if one.counts is None else one.counts
    difference = one.difference if one.differs else 0.0
    relative = None if not one.measured else difference / one.measured
    return one.kind, *counts, one.measured, one.simulated, difference, relative


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _signed(seconds: float) -> str:
    return "0" if not seconds else f"{'+' if seconds > 0 else '-'}{format_time(abs(seconds))}"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return "0 %" if not share else f"{100 * share:+.1f} %"
