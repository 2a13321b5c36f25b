"""Which few figures answer a scenario's question at a glance: the winner in each place, or each setting's figures?

The tables hold text in rows and columns, for both the terminal and the page. Each measure in the answer has a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.sentence import capital
from simulator.basics.work_unit import has_padding
from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison, Row, Settings
from simulator.findings.text import at_text
from simulator.records.measures import SAME, Measure, factor_text, percent_text
from simulator.records.setting_text import label

# Maximum settings side by side; more settings become rows.
_MOST_COLUMNS: Final = 6
_MOST_MEASURES: Final = 4
# Measures for findings of a kind, if the scenario asks for no measure.
_SPOKEN_OF: Final = {"learned": ("loss",), "fit": ("memory", "reserved")}
# Maximum letters in column names; with more, settings become rows, and no table is cut off.
_MOST_LETTERS: Final = 72
# Measures in which points with different numbers of GPUs and different work are comparable.
_PER_GPU: Final = ("mfu", "hfu", "speed_per_gpu", "model_flops")
# Measures in which only points with the same work are comparable: a step with more tokens takes longer.
_OF_WORK: Final = ("time", "exposed", "communication", "recompute")
_USUAL: Final = {"collective": ("time", "busbw"), "training": ("time", "speed", "mfu", "memory")}
# Usual measures of steps with padding, which MFU counts as useful.
_PADDED: Final = ("time", "speed", "useful_speed", "memory")


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A table of texts that answers the scenario's question at a glance."""

    title: str  # meaning of the cells
    corner: str  # heading of the first column
    columns: tuple[str, ...]  # headings of the other columns
    rows: tuple[tuple[str, tuple[str, ...]], ...]  # A heading, and a cell for each column
    # Point that each cell describes; None if a cell describes several points.
    points: tuple[tuple[int | None, ...], ...]
    # Row and column of each cell that is best, or tied with the best, among the cells that it competes with.
    best: frozenset[tuple[int, int]] = frozenset()
    rivals: str = ""  # points with which a cell competes, if the table has points that do not compete with each other


def small_tables(compared: Comparison, answer: Answer) -> tuple[SmallTable, ...]:
    """Return the comparison's small tables, at most one for each measure (step time, memory ...) in the answer."""
    if not any(row.report is not None for row in compared.rows):
        return ()
    measures = _measures(compared, answer)
    several_settings, several_conditions = len(compared.settings) > 1, len(compared.conditions) > 1
    axes = [key for key in compared.scenario.sweep if len(compared.scenario.sweep[key]) > 1]
    best = any(finding.kind == "best" for finding in answer.findings)
    # Two swept axes and several settings would need a three-dimensional table: show only the winner in each place.
    if several_settings and len(axes) == 2 and best:
        return (_winners(compared, answer, measures[0], axes[0], axes[1]),)
    if several_settings and several_conditions:
        return tuple(_side_by_side(compared, measure) for measure in measures[:2])
    return (_by_measure(compared, measures),)


def _measures(compared: Comparison, answer: Answer) -> list[Measure]:
    """Return the measures for the small tables: those that the scenario asks for, then the usual ones."""
    requested = [name for request in compared.scenario.answer for name in request.of]
    kinds = {finding.kind for finding in answer.findings}
    spoken = [name for kind, names in _SPOKEN_OF.items() if kind in kinds for name in names]
    # A requested measure comes first, even if it is also a usual measure.
    reports = [row.report for row in compared.rows if row.report is not None]
    usual = _PADDED if has_padding(reports) else _USUAL[compared.kind]
    names = list(dict.fromkeys([*requested, *(spoken if not requested else ()), *usual]))
    measures = [compared.measure(name) for name in names]
    available = [m for m in measures if any(m.value(report) is not None for report in reports)]
    # With different numbers of tokens per step, only tokens/s can be compared, not step times.
    if any(str(finding.numbers.get("measure")).startswith("time_per_") for finding in answer.findings):
        available = [measure for measure in available if measure.name != "time"]
    return available[: max(_MOST_MEASURES, len(requested))]


def _heading(compared: Comparison, key: str, value: Any) -> str:
    return label(key, value)


def _axis_name(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _winners(compared: Comparison, answer: Answer, measure: Measure, down: str, across: str) -> SmallTable:
    """Return a table over two swept axes, a cell with winner and lead each; crossovers follow each row."""
    values_down, values_across = (compared.scenario.sweep[key] for key in (down, across))
    rows, points = [], []
    for value in values_down:
        cells = [_winner(compared, measure, {down: value, across: other}) for other in values_across]
        rows.append((_heading(compared, down, value), tuple(text for text, _ in cells)))
        points.append(tuple(point for _, point in cells))
    columns = tuple(_heading(compared, across, value) for value in values_across)
    # A column with crossovers is added only if any row has a crossover.
    changes = [_lead_changes(compared, answer, across, {down: value}) for value in values_down]
    if any(changes):
        columns = (*columns, "crossover")
        rows = [(name, (*cells, change or "-")) for (name, cells), change in zip(rows, changes, strict=True)]
        points = [(*indices, None) for indices in points]
    # The ratio to the second-best setting stands behind the name.
    title = f"{capital(measure.noun)}: {measure.superlative} setting, and lead over the runner-up"
    return SmallTable(title, _axis_name(down), columns, tuple(rows), tuple(points))


def _lead_changes(compared: Comparison, answer: Answer, along: str, fixed: Settings) -> str:
    """Return a text with the crossovers along an axis, at the fixed values of the other axes."""
    crossings = (place for finding in answer.findings for place in finding.numbers.get("crossings", ()))
    return ", ".join(
        f"{compared.name(place['after'])} {'from' if place['exact'] else 'above'} "
        f"{at_text(along, place['at'], exact=place['exact'])}"
        for place in crossings
        if place["along"] == along and place["fixed"] == fixed and place["at"] is not None
    )


def _winner(compared: Comparison, measure: Measure, condition: Settings) -> tuple[str, int | None]:
    # Conditions are compared in the scenario's order of keys.
    ordered = {key: condition[key] for key in compared.scenario.sweep}
    rows = [row for row in compared.under(ordered) if row.fits and measure.value(row.report or {}) is not None]
    # Rows without a value (failed points, missing measures) cannot win.
    if not rows:
        return "no setting fits", None
    rows.sort(key=lambda row: measure.rank(row.report or {}))
    name = compared.name(rows[0].setting)
    if len(rows) == 1:
        return f"only {name}", rows[0].index
    first, second = (measure.value(row.report or {}) or 0.0 for row in rows[:2])
    # Equal up to rounding: a tie. Without both values, no ratio can be computed.
    if first == second or (first and second and abs(first / second - 1) <= SAME):
        return f"{name} (tie)", rows[0].index
    if not first or not second:
        return name, rows[0].index
    ratio = second / first if measure.best == "least" else first / second
    # A lead within the prediction's uncertainty is a tie.
    tie = " (tie)" if measure.tied(rows[0].report or {}, rows[1].report or {}) else ""
    return f"{name} {factor_text(ratio)}{tie}", rows[0].index


def _side_by_side(compared: Comparison, measure: Measure) -> SmallTable:
    """Return a table of a measure, settings in columns and conditions in rows; transposed for many settings."""
    settings, conditions = compared.settings, compared.conditions
    names = tuple(compared.name(setting) for setting in settings)
    places = tuple(compared.where(condition) for condition in conditions)
    grid = [[_cell(measure, compared.row(setting, condition)) for setting in settings] for condition in conditions]
    points = [[compared.row(setting, condition).index for setting in settings] for condition in conditions]
    contests = [[compared.row(setting, condition) for setting in settings] for condition in conditions]
    best = {(line, place) for line, rows in enumerate(contests) for place in _best(measure, rows)}
    headings, columns = places, names
    # Settings become rows if there are too many, or if their names are too long for a terminal.
    wide = len(settings) > _MOST_COLUMNS and len(conditions) < len(settings)
    if wide or sum(map(len, names)) > _MOST_LETTERS > sum(map(len, places)):
        grid, points = [list(c) for c in zip(*grid, strict=True)], [list(c) for c in zip(*points, strict=True)]
        headings, columns = names, places
        best = {(place, line) for line, place in best}
    rows = tuple((heading, tuple(cells)) for heading, cells in zip(headings, grid, strict=True))
    rivals = _rivals([measure], contests[0])
    title, indices = capital(measure.noun), tuple(tuple(line) for line in points)
    return SmallTable(title, "", columns, rows, indices, frozenset(best), rivals)


def _best(measure: Measure, rows: Sequence[Row]) -> list[int]:
    """Return the indices of the fitting rows with the best value, or within its uncertainty, among comparable rows."""
    contests: dict[Hashable, dict[int, float]] = {}
    for place, row in enumerate(rows):
        if row.fits and (value := measure.value(row.report or {})) is not None:
            contests.setdefault(_contest(measure, row), {})[place] = value
    return [place for values in contests.values() for place in _leaders(measure, rows, values)]


def _contest(measure: Measure, row: Row) -> Hashable:
    """Return a key that is equal for rows whose values of the measure are comparable."""
    if measure.name in _PER_GPU:
        return None
    gpus, report = row.point.cluster.world_size, row.report or {}
    if row.point.collective is not None:
        return gpus, row.point.collective.nbytes
    # Tokens per step = tokens/s x step time, up to rounding.
    return gpus, round(report["tokens_per_s"] * report["step_time_s"]) if measure.name in _OF_WORK else None


def _rivals(measures: Sequence[Measure], rows: Sequence[Row]) -> str:
    """Return a text on the rows that compete with each other; empty if all rows do in every measure."""
    runs = [row for row in rows if row.report is not None]
    if all(len({_contest(measure, row) for row in runs}) <= 1 for measure in measures):
        return ""
    text = "among points with the same number of GPUs and the same work"
    return f"{text}; MFU and speed per GPU among all points" if runs[0].point.training is not None else text


def _leaders(measure: Measure, rows: Sequence[Row], values: Mapping[int, float]) -> list[int]:
    """Return the indices of the rows that are best, or tied with the best, given {index: value} of comparable rows."""
    if len(values) < 2:
        return []
    sign = 1 if measure.best == "least" else -1
    first = min(values, key=lambda place: sign * values[place])
    winner = rows[first].report or {}
    best = [
        place
        for place, value in values.items()
        # Equal up to rounding, or within the uncertainty.
        if abs(value - values[first]) <= SAME * abs(values[first]) or measure.tied(winner, rows[place].report or {})
    ]
    # If every row is tied, no row is marked.
    return best if len(best) < len(values) else []


def _cell(measure: Measure, row: Row) -> str:
    if row.report is None:
        return "failed"
    value = measure.value(row.report)
    text = "-" if value is None else measure.number(value)
    return text if row.fits else f"{text} (does not fit)"


def _by_measure(compared: Comparison, measures: Sequence[Measure]) -> SmallTable:
    """Return a table with a row per point and a column per measure, with relative changes if only one key varies."""
    rows = compared.rows
    # Changes are shown only if at most one swept key has several values: otherwise the reference point would be
    # unclear.
    first = rows[0].report if sum(len(values) > 1 for values in compared.scenario.sweep.values()) < 2 else None
    columns = tuple(measure.noun for measure in measures)
    lines, points = [], []
    for row in rows:
        name = compared.name({**row.setting, **row.condition})
        # The reference is the first setting under the same condition.
        reference = compared.row(compared.settings[0], row.condition) if len(compared.settings) > 1 else rows[0]
        before = reference.report if first is not None and row is not reference else None
        cells = tuple(_changed(measure, row, before) for measure in measures)
        lines.append((name if row.fits or row.report is None else f"{name} (does not fit)", cells))
        points.append((row.index,) * len(measures))
    best = {(place, column) for column, measure in enumerate(measures) for place in _best(measure, rows)}
    return SmallTable("", "", columns, tuple(lines), tuple(points), frozenset(best), _rivals(measures, rows))


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
    if measure.is_share:
        # Percent of percent would be misread: 25.8 % against 0.1 % is 25.7 points more.
        return f"{measure.number(value)} ({sign}{100 * abs(value - before):.1f} points)"
    return f"{measure.number(value)} ({sign}{percent_text(abs(change))})"
