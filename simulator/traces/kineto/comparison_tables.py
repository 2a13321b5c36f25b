"""Tables of a comparison with a trace: time by kind, and every operation, measured and simulated."""

from __future__ import annotations

from itertools import zip_longest

from simulator.basics.units import format_time
from simulator.report.tables.answer_table import AnswerColumn, AnswerTable
from simulator.traces.gpu_work import GpuWork
from simulator.traces.kineto.comparison import KindTime, TraceComparison


def time_table(comparison: TraceComparison) -> AnswerTable:
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
    rows = [_row(time) for time in comparison.times]
    ranks = f", mean over {len(comparison.measured)} ranks" if len(comparison.measured) > 1 else ""
    return AnswerTable("time_by_kind", f"Operations and time by kind{ranks}", columns, rows)


def difference_table(comparison: TraceComparison) -> AnswerTable:
    """Return a row for the first difference in order and the first in time: its place, and both operations."""
    columns = (
        AnswerColumn("about", "first difference in", left=True),
        AnswerColumn("rank", "rank"),
        AnswerColumn("among", "among", left=True),
        AnswerColumn("number", "number"),
        AnswerColumn("start_s", "begins at", format_time),
        AnswerColumn("measured", "measured", left=True),
        AnswerColumn("simulated", "simulated", left=True),
    )
    rows = [
        (row.about, row.rank, row.among, row.place + 1, row.start / 1e9, *map(_name, (row.measured, row.simulated)))
        for row in (comparison.order, comparison.time)
        if row is not None
    ]
    return AnswerTable("first_differences", "First differences", columns, rows)


def _name(work: GpuWork | None) -> str:
    return "none" if work is None else f"{work.kind}, {format_time((work.end - work.start) / 1e9)}"


def operation_table(comparison: TraceComparison) -> AnswerTable:
    """Return a row for each run of kernels and each collective of each rank, measured beside simulated."""
    keys = ("name", "kind", "bytes", "start_s", "time_s")
    columns = [AnswerColumn(key) for key in ("rank", "among", "place")]
    columns += [AnswerColumn(f"{side}_{key}") for side in ("measured", "simulated") for key in keys]
    rows = [
        (first.rank, among, place, *_operation(measured), *_operation(simulated))
        for first, second in zip(comparison.measured, comparison.simulated, strict=True)
        for among, pairs in (
            ("kernels", zip_longest(first.runs(), second.runs())),
            ("collectives", zip_longest(first.collectives, second.collectives)),
        )
        for place, (measured, simulated) in enumerate(pairs)
    ]
    return AnswerTable("operations", "Runs of kernels, and collectives, in order", columns, rows, most=0)


def _operation(work: GpuWork | None) -> tuple[object, ...]:
    """Return an operation's name, kind, bytes, start and time [s]; empty cells for no operation."""
    if work is None:
        return (None,) * 5
    return work.name, work.kind, work.nbytes, work.start / 1e9, (work.end - work.start) / 1e9


def _row(time: KindTime) -> tuple[object, ...]:
    counts = (None, None) if time.counts is None else time.counts
    difference = time.difference if time.differs else 0.0
    relative = None if not time.measured else difference / time.measured
    return time.kind, *counts, time.measured, time.simulated, difference, relative


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _signed(seconds: float) -> str:
    return "0" if not seconds else f"{'+' if seconds > 0 else '-'}{format_time(abs(seconds))}"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return "0 %" if not share else f"{100 * share:+.1f} %"
