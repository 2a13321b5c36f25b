"""Which few figures answer a scenario's question at a glance: who wins where, or what each setting reaches?

Rule: text in rows and columns, for the terminal and the page alike; a measure that the answer speaks of has a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison, Row, Settings
from simulator.findings.words import at_text
from simulator.records.measures import SAME, Measure, factor_text, percent_text
from simulator.records.setting_text import label, labelled

# Settings that stand side by side; more become rows.
_MOST_COLUMNS: Final = 6
_MOST_MEASURES: Final = 4
# What findings of a kind speak of where a scenario asks for no measure.
_SPOKEN_OF: Final = {"learned": ("loss",), "fit": ("memory", "reserved")}
# Letters of all columns' names beyond which settings become rows, so that no table is cut.
_MOST_LETTERS: Final = 72
_USUAL: Final = {"collective": ("time", "busbw"), "training": ("time", "speed", "mfu", "memory")}


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A table of texts.

    Attributes
    ----------
    title : str
        What its cells are.
    corner : str
        Heading of the first column.
    columns : tuple of str
    rows : tuple of (str, tuple of str)
        A heading and a cell for each column.
    points : tuple of tuple of (int or None)
        The point that each cell speaks of; None where it is of several.
    best : frozenset of (int, int)
        Row and column of the cells that are best among those that they compete with, or tie with the best.
    """

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    points: tuple[tuple[int | None, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()


def small_tables(compared: Comparison, answer: Answer) -> tuple[SmallTable, ...]:
    """The tables of a scenario, at most one for each measure that its answer speaks of."""
    if not any(row.report is not None for row in compared.rows):
        return ()
    measures = _measures(compared, answer)
    several_settings, several_conditions = len(compared.settings) > 1, len(compared.conditions) > 1
    axes = [key for key in compared.scenario.sweep if len(compared.scenario.sweep[key]) > 1]
    best = any(found.kind == "best" for found in answer.findings)
    if several_settings and len(axes) == 2 and best:
        return (_winners(compared, answer, measures[0], axes[0], axes[1]),)
    if several_settings and several_conditions:
        return tuple(_side_by_side(compared, measure) for measure in measures[:2])
    return (_by_measure(compared, measures),)


def _measures(compared: Comparison, answer: Answer) -> list[Measure]:
    """Those that the scenario asks of, then the usual ones."""
    asked = [name for one in compared.scenario.answer for name in one.of]
    kinds = {found.kind for found in answer.findings}
    spoken = [name for kind, names in _SPOKEN_OF.items() if kind in kinds for name in names]
    names = list(dict.fromkeys([*asked, *(spoken if not asked else ()), *_USUAL[compared.kind]]))
    wanted = [compared.measure(name) for name in names]
    reports = [row.report for row in compared.rows if row.report is not None]
    known = [m for m in wanted if any(m.value(report) is not None for report in reports)]
    # Steps that learn from unlike numbers of tokens are compared by tokens/s.
    if any(found.numbers.get("measure") == "time_per_token" for found in answer.findings):
        known = [measure for measure in known if measure.name != "time"]
    return known[: max(_MOST_MEASURES, len(asked))]


def _heading(compared: Comparison, key: str, value: Any) -> str:
    return label(key, value)


def _axis_name(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _winners(compared: Comparison, answer: Answer, measure: Measure, down: str, across: str) -> SmallTable:
    """Who wins at each place of two axes, how far ahead of the next, and where along a row the lead changes."""
    values_down, values_across = (compared.scenario.sweep[key] for key in (down, across))
    rows, points = [], []
    for value in values_down:
        cells = [_winner(compared, measure, {down: value, across: other}) for other in values_across]
        rows.append((_heading(compared, down, value), tuple(text for text, _ in cells)))
        points.append(tuple(point for _, point in cells))
    columns = tuple(_heading(compared, across, value) for value in values_across)
    changes = [_lead_changes(compared, answer, across, {down: value}) for value in values_down]
    if any(changes):
        columns = (*columns, "the lead changes")
        rows = [(name, (*cells, change or "-")) for (name, cells), change in zip(rows, changes, strict=True)]
        points = [(*own, None) for own in points]
    title = f"{measure.superlative}, and how far ahead of the next"
    return SmallTable(f"{measure.noun}: {title}", _axis_name(down), columns, tuple(rows), tuple(points))


def _lead_changes(compared: Comparison, answer: Answer, along: str, fixed: Settings) -> str:
    """Who overtakes where along an axis, everything else fixed."""
    found = (one for finding in answer.findings for one in finding.numbers.get("crossings", ()))
    return ", ".join(
        f"{compared.name(one['after'])} from {at_text(along, one['at'], exact=one['exact'])} on"
        for one in found
        if one["along"] == along and one["fixed"] == fixed and one["at"] is not None
    )


def _winner(compared: Comparison, measure: Measure, condition: Settings) -> tuple[str, int | None]:
    ordered = {key: condition[key] for key in compared.scenario.sweep}
    rows = [row for row in compared.under(ordered) if row.fits and measure.value(row.report or {}) is not None]
    if not rows:
        return "none fits", None
    sign = 1 if measure.best == "least" else -1
    rows.sort(key=lambda row: sign * (measure.value(row.report or {}) or 0.0))
    name = compared.name(rows[0].setting)
    if len(rows) == 1:
        return f"{name} alone", rows[0].index
    one, two = (measure.value(row.report or {}) or 0.0 for row in rows[:2])
    if one == two or (one and two and abs(one / two - 1) <= SAME):
        return f"{name} tied", rows[0].index
    if not one or not two:
        return name, rows[0].index
    ratio = two / one if measure.best == "least" else one / two
    tie = " (a tie)" if ratio - 1 <= measure.uncertainty(rows[0].report or {}) else ""
    return f"{name} {factor_text(ratio)}{tie}", rows[0].index


def _side_by_side(compared: Comparison, measure: Measure) -> SmallTable:
    """Settings in columns, conditions in rows; or the other way round where settings are many."""
    settings, conditions = compared.settings, compared.conditions
    names = tuple(compared.name(setting) for setting in settings)
    places = tuple(labelled(condition) for condition in conditions)
    grid = [[_cell(measure, compared.row(setting, condition)) for setting in settings] for condition in conditions]
    points = [[compared.row(setting, condition).index for setting in settings] for condition in conditions]
    contests = [[compared.row(setting, condition) for setting in settings] for condition in conditions]
    best = {(line, place) for line, rows in enumerate(contests) for place in _best(measure, rows)}
    headings, columns = places, names
    wide = len(settings) > _MOST_COLUMNS and len(conditions) < len(settings)
    if wide or sum(map(len, names)) > _MOST_LETTERS > sum(map(len, places)):
        grid, points = [list(c) for c in zip(*grid, strict=True)], [list(c) for c in zip(*points, strict=True)]
        headings, columns = names, places
        best = {(place, line) for line, place in best}
    rows = tuple((heading, tuple(cells)) for heading, cells in zip(headings, grid, strict=True))
    return SmallTable(measure.noun, "", columns, rows, tuple(tuple(own) for own in points), frozenset(best))


def _best(measure: Measure, rows: Sequence[Row]) -> list[int]:
    """Places of the rows that fit and are best, or behind the best by less than its prediction's uncertainty."""
    known = {
        place: value
        for place, row in enumerate(rows)
        if row.fits and (value := measure.value(row.report or {})) is not None
    }
    if len(known) < 2:
        return []
    sign = 1 if measure.best == "least" else -1
    first = min(known, key=lambda place: sign * known[place])
    margin = max(SAME, measure.uncertainty(rows[first].report or {}))
    best = [place for place, value in known.items() if abs(value - known[first]) <= margin * abs(known[first])]
    # Where all tie none stands out.
    return best if len(best) < len(known) else []


def _cell(measure: Measure, row: Row) -> str:
    if row.report is None:
        return "failed"
    value = measure.value(row.report)
    text = "-" if value is None else measure.number(value)
    return text if row.fits else f"{text} (does not fit)"


def _by_measure(compared: Comparison, measures: Sequence[Measure]) -> SmallTable:
    """A row for each point, a column for each measure, with its change from the first where one thing differs."""
    rows = compared.rows
    first = rows[0].report if sum(len(values) > 1 for values in compared.scenario.sweep.values()) < 2 else None
    columns = tuple(measure.noun for measure in measures)
    told, points = [], []
    for row in rows:
        name = compared.name({**row.setting, **row.condition})
        own = compared.row(compared.settings[0], row.condition) if len(compared.settings) > 1 else rows[0]
        before = own.report if first is not None and row is not own else None
        cells = tuple(_changed(measure, row, before) for measure in measures)
        told.append((name if row.fits or row.report is None else f"{name} (does not fit)", cells))
        points.append((row.index,) * len(measures))
    best = {(place, column) for column, measure in enumerate(measures) for place in _best(measure, rows)}
    return SmallTable("", "", columns, tuple(told), tuple(points), frozenset(best))


def _changed(measure: Measure, row: Row, first: Mapping[str, Any] | None) -> str:
    if row.report is None:
        return "failed"
    value = measure.value(row.report)
    if value is None:
        return "-"
    before = None if first is None else measure.value(first)
    if not before or abs(value / before - 1) <= SAME:
        return measure.number(value)
    change = value / before - 1
    sign = "+" if change > 0 else "-"
    return f"{measure.number(value)} ({sign}{percent_text(abs(change))})"
