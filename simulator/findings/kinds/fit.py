"""Which settings fit in a GPU's memory, how much memory is left, and which values of an axis still fit?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from simulator.findings.comparison import Comparison, Row, Settings
from simulator.findings.crossovers import Axis, axis_of, sign_changes
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import MOST_NAMED, at_text, bracket_text, bracketed, clauses
from simulator.records.measures import Report
from simulator.records.memory_margin import margin_of
from simulator.scenario.answer_spec import FindingSpec

# Conditions that are told one by one.
_MOST_CONDITIONS: Final = 4


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on which settings fit in memory; None if nothing was simulated."""
    axis = axis_of(compared, request.along, request.between) if request.along else None
    # A numeric axis has a limit to search for; without an axis, list each setting.
    if axis is not None:
        return _along(compared, axis)
    condition = compared.shown_condition
    rows = compared.under(condition)
    if not rows:
        return None
    # The shown condition first; a setting may fit under another one that is better in time.
    others = [other for other in compared.conditions if other != condition][: _MOST_CONDITIONS - 1]
    sentences, numbers = [], []
    for where in (condition, *others):
        runs = [row for row in compared.under(where) if row.report is not None]
        sentences += [_under(compared, where, runs)] if runs else []
        numbers += [{"condition": dict(where), **_figures(row)} for row in runs]
    return FindingResult(
        "fit", tuple(sentences), {"condition": dict(condition), "fits": numbers}, tuple(row.index for row in rows)
    )


def _under(compared: Comparison, condition: Settings, rows: Sequence[Row]) -> str:
    """Return a sentence on which settings fit under a condition."""
    # The settings that fit come first, the smallest need first.
    rows = sorted(rows, key=lambda row: (not row.fits, (row.report or {})["peak_memory_bytes"]))
    texts = [(compared.name(row.setting), _text(row)) for row in rows]
    where = compared.where(condition)
    # A single unnamed setting is called "the job".
    if not rows[0].setting:
        texts = [(f"{'the' if where else 'The'} job", texts[0][1])]
    # Hiding a single setting would save nothing, hence the + 1.
    is_short = len({text for _, text in texts}) <= MOST_NAMED + 1
    return (f"With {where}, " if where else "") + (clauses(texts) if is_short else _smallest(texts, rows))


def _smallest(texts: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    """Return clauses (name, predicate) of the three settings with the smallest needs, and how many others fit."""
    rest = rows[MOST_NAMED:]
    fitting = sum(row.fits for row in rest)
    first = clauses(texts[:MOST_NAMED])
    if fitting in (0, len(rest)):
        return f"{first}; {'all' if fitting else 'none'} of the other {len(rest)} settings fit{'' if fitting else 's'}"
    return f"{first}; {fitting} of the other {len(rest)} settings fit{'s' if fitting == 1 else ''}"


def _figures(row: Row) -> dict[str, Any]:
    """Return a point's setting, and its memory figures [B]."""
    keys = ("peak_memory_bytes", "peak_reserved_bytes", "process_bytes", "capacity_bytes", "shortfall_bytes")
    labels = {"setting": dict(row.setting), "point": row.index, "fits": row.fits}
    report = row.report or {}
    return labels | {key: report[key] for key in keys} | {"free_bytes": margin_of(report).free}


def _text(row: Row) -> str:
    """Return a text on whether a point fits in memory: capacity, process, and free or missing memory."""
    report: Report = row.report or {}
    return margin_of(report).verdict


def _along(compared: Comparison, axis: Axis) -> FindingResult | None:
    """Return the finding on each setting's largest axis value with which the step fits in memory."""
    texts, numbers = [], []
    for setting in compared.settings:
        fixed = {k: v for k, v in compared.shown_condition.items() if k != axis.key}
        places = sign_changes(partial(_excess, compared, {**setting, **fixed}, axis), axis)
        # The first place from which on the setting exceeds the memory.
        ends = next((bracket for bracket, now in places if now), None)
        last = _excess(compared, {**setting, **fixed}, axis, axis.numbers[-1])
        name = compared.name(setting)
        if ends is not None:
            place = bracketed(ends)
            texts.append((name, f"does not fit from {bracket_text(axis.key, place)} on"))
            numbers.append({"setting": dict(setting)} | place)
        elif last is not None:
            until = at_text(axis.key, axis.numbers[-1], exact=True)
            texts.append((name, f"fits up to {until}" if last <= 0 else "does not fit at any value"))
            numbers.append({"setting": dict(setting), "at": None, "last": axis.numbers[-1], "fits": last <= 0})
    if not texts:
        return None
    fixed = {k: v for k, v in compared.shown_condition.items() if k != axis.key}
    where = compared.where(fixed)
    spoken = tuple(row.index for row in compared.under(compared.shown_condition))
    sentence = f"With {where}, {clauses(texts)}" if where else clauses(texts)
    return FindingResult("fit", (sentence,), {"along": axis.key, "fixed": fixed, "places": numbers}, spoken)


def _excess(compared: Comparison, at: Settings, axis: Axis, number: int) -> float | None:
    """Return ln(needed / available memory) of a setting at a value of the axis; positive if the step does not fit."""
    report: dict[str, Any] | Report | None = compared.known({**at, **axis.settings(number)})
    if report is None:
        return None
    margin = margin_of(report)
    excess = math.log(margin.process / margin.capacity)
    # Memory that is used to the last byte fits: the sign must be negative.
    return min(excess, -1e-12) if margin.fits else excess


FINDING = Finding("fit", find)
