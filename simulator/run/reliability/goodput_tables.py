"""Tables of an answer on days: where the time goes, failures, intervals between saves, and values side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.basics.units import format_duration
from simulator.report.tables.answer_table import AnswerColumn, AnswerTable
from simulator.run.reliability.failures import DAY, FailureKind
from simulator.run.reliability.outlook import IntervalChoice, Outlook
from simulator.run.reliability.renewal import CATEGORIES, Category, LongRun

# Categories beside each other in a comparison for readers; the others are rare.
_SHOWN: Final[tuple[Category, ...]] = ("useful", "checkpoint", "lost work", "waiting for spares", "restart")
# Failures for readers.
_INCIDENTS: Final = 20
_PARTS: Final = (0.05, 0.5, 0.95)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _days(days: float) -> str:
    return f"{days:.2f}"


def waterfall_table(mean_of: Outlook) -> AnswerTable:
    """Return where the time goes: a row for each category with its share and its days, useful time first."""
    days = sum(run.time for run in mean_of.runs) / len(mean_of.runs) / DAY
    columns = (
        AnswerColumn("part", "part", left=True),
        AnswerColumn("share", "share", _percent),
        AnswerColumn("days", "days", _days),
    )
    rows = [(name, mean_of.shares[name], mean_of.shares[name] * days) for name in CATEGORIES]
    return AnswerTable("waterfall", "Where the time goes, in the mean of the runs", columns, rows)


def incident_table(run: LongRun, kinds: Sequence[FailureKind]) -> AnswerTable:
    """Return the failures that stopped a run: day, node, kind, lost work [s], time until the work went on [s]."""
    columns = (
        AnswerColumn("day", "day", _days),
        AnswerColumn("node", "node"),
        AnswerColumn("kind", "kind", left=True),
        AnswerColumn("lost_s", "lost work", format_duration),
        AnswerColumn("down_s", "until work went on", format_duration),
    )
    rows = [
        (incident.time / DAY, incident.node, kinds[incident.kind].name, incident.lost, incident.down)
        for incident in run.incidents
    ]
    return AnswerTable("incidents", "Failures that stopped the job, in the first run", columns, rows, most=_INCIDENTS)


def interval_table(choice: IntervalChoice) -> AnswerTable:
    """Return the intervals of work between saves that were tried [s], each with its useful share of the time."""
    columns = (AnswerColumn("interval_s", "interval", format_duration), AnswerColumn("useful", "useful", _percent))
    return AnswerTable("intervals", "Intervals of work between saves that were tried", columns, choice.tried)


def comparison_table(
    along: str, values: Sequence[str], outlooks: Sequence[Outlook], results: Sequence[str]
) -> AnswerTable:
    """Return a row for each value of a fact: shares of the time, and the days of 5, 50 and 95 % of the runs.

    Parameters
    ----------
    along : str
        Name of the fact.
    results : sequence of str
        What half of the runs reach with each value, in words.
    """
    columns = (
        AnswerColumn(along, along, left=True),
        # A fact may have the name of a category: restart.
        *(
            AnswerColumn(f"{name.replace(' ', '_')}_share", name if name in _SHOWN else "", _percent)
            for name in CATEGORIES
        ),
        *(AnswerColumn(f"days_{part:g}") for part in _PARTS),
        AnswerColumn("result", "result"),
    )
    rows = [
        (
            value,
            *(result_of.shares[name] for name in CATEGORIES),
            *(result_of.time(part) / DAY for part in _PARTS),
            result,
        )
        for value, result_of, result in zip(values, outlooks, results, strict=True)
    ]
    title = "Shares of the time, in the mean of the runs, and what comes of it (middle of the runs)"
    return AnswerTable("comparison", title, columns, rows)
