"""Which main difference have two runs, in a sentence: time, and for training steps also the peak memory?

A single common point has its two values in the sentence; for several points the sentence has the median of the ratios,
and the smallest and the largest ratio.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

from simulator.findings.text import predicates
from simulator.records.measures import Measure, Report, find, for_reports
from simulator.results.run_differences import RunDifferences

# Measures of a sentence, for each field that only reports of one kind have.
_MEASURES: Final = {"time_s": ("collective", ("time",)), "step_time_s": ("training", ("time", "memory"))}


def main_difference(differences: RunDifferences, names: tuple[str, str]) -> str:
    """Return a sentence with the change of time and memory from the first run to the second run.

    The sentence is empty if no figure differs, or if no common point has a report of the same kind in both runs.

    Parameters
    ----------
    differences : RunDifferences
        Differences between two runs.
    names : tuple of str
        Directories of the two runs.
    """
    pairs = [point.reports for point in differences.common]
    complete = [(first, second) for first, second in pairs if first is not None and second is not None]
    if not differences.figures or not complete:
        return ""
    kind, measures = next(
        (group for field, group in _MEASURES.items() if all(field in report for pair in complete for report in pair)),
        ("", ()),
    )
    texts = [text for name in measures if (text := _change(find(name, kind), complete)) is not None]
    if not texts:
        return ""
    points = f" (median of {len(complete):,} common points)" if len(complete) > 1 else ""
    return f"{_name(names[1])} {predicates(texts)} compared with {_name(names[0])}{points}."


def _change(measure: Measure, pairs: list[tuple[Report, Report]]) -> tuple[str, str] | None:
    """Return a measure's verb and its change between the reports of each pair; None if a report lacks the measure."""
    try:
        fair = for_reports(measure, [report for pair in pairs for report in pair])
        values = [(fair.value(first), fair.value(second)) for first, second in pairs]
    except (KeyError, TypeError, ZeroDivisionError):
        # A report of another version, or a report that was changed by hand.
        return None
    complete = [(first, second) for first, second in values if first and second]
    if len(complete) < len(values):
        return None
    ratios = sorted(second / first for first, second in complete)
    text = fair.change_text(median(ratios), 1.0)
    if len(complete) == 1:
        before, after = (fair.amount_text(value) for value in complete[0])
        return fair.verb, f"{text} ({before} -> {after})"
    least, most = (fair.sign_text(ratio, 1.0) for ratio in (ratios[0], ratios[-1]))
    return fair.verb, f"{text} ({least} to {most})" if least != most else text


def _name(folder: str) -> str:
    """Return a run's directory as given; the directory's own name for "." and ".."."""
    path = Path(folder)
    return path.resolve().name if path.name in ("", "..") else folder
