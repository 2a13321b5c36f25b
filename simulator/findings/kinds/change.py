"""How does each setting differ from the baseline, under the shown condition and over every condition?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.basics.counts import number_of
from simulator.basics.sentence import capital
from simulator.findings.comparison import Comparison, Row, key_of
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import MOST_NAMED, clauses, join_list, joined, predicates
from simulator.findings.unfit import unfit_references
from simulator.records.measures import SAME, Measure, for_reports, percent_text
from simulator.scenario.answer_spec import FindingSpec

_USUAL = {"collective": ("time",), "training": ("time", "memory")}
# Most changes in clauses: with more settings than this, or more changes in all, only the best setting has a clause,
# and changes of the other settings become a list.
_MOST_CLAUSES = 2
_MOST_CHANGES = 4
# A change that varies by less than this over the conditions is reported for the shown condition alone.
_ALIKE = 0.05


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on changes from the baseline setting; None if fewer than two settings were simulated."""
    condition = compared.shown_condition
    rows = compared.under(condition)
    first = next((row for row in rows if row.setting == compared.settings[0]), None)
    others = [row for row in rows if row is not first]
    if first is None or first.report is None or not others:
        return None
    reports = [row.report for row in rows if row.report is not None]
    names = request.of or _USUAL[compared.kind]
    # Times of steps with different numbers of tokens are compared per token instead (for_reports).
    all_measures = list(dict.fromkeys(for_reports(compared.measure(name), reports) for name in names))
    # Comparing needs a value in every report.
    measures = [measure for measure in all_measures if all(measure.value(report) is not None for report in reports)]
    if not measures:
        return None
    sentences = unfit_references(compared, [first], rows, measures)
    sentences += _sentences(compared, first, others, measures, compared.where(condition))
    if len(compared.conditions) > 1:
        # State the range of the first measure; mention another measure only if its change has both signs.
        texts = (_over_conditions(compared, measure, flips=measure is not measures[0]) for measure in measures)
        sentences += [text for text in texts if text]
    numbers = {
        "baseline": dict(first.setting),
        "condition": dict(condition),
        "changes": [_numbers(first, row, measures) for row in rows],
        "conditions": len(compared.conditions),
        "over_all": [row for measure in measures for row in _ranges(compared, measure)],
    }
    return FindingResult("change", tuple(sentences), numbers, _spoken(rows, first, measures[0]))


def _sentences(compared: Comparison, first: Row, others: list[Row], measures: list[Measure], where: str) -> list[str]:
    """Return sentences on how settings differ from the baseline point `first`: a clause each, or a list if many."""
    place = f"With {where}, " if where else ""
    baseline = compared.name(first.setting)
    best = _ordered(others, measures[0])[0]
    is_short = len(others) <= _MOST_CLAUSES and len(others) * len(measures) <= _MOST_CHANGES
    # The winner first, then settings that lose or do not fit.
    in_words = sorted(others, key=lambda row: row is not best) if is_short else [best]
    texts = [(compared.name(row.setting), _predicate(first, row, measures, baseline)) for row in in_words]
    sentences = [place + clauses(texts)]
    listed = [row for row in others if row not in in_words]
    # Hiding a single setting would save nothing, hence the + 1.
    hidden = _ordered(listed, measures[0])[MOST_NAMED:] if len(listed) > MOST_NAMED + 1 else []
    rest = [(compared.name(row.setting), _signs(first, row, measures)) for row in listed if row not in hidden]
    if rest:
        nouns = capital(join_list([measure.noun for measure in measures]))
        omitted = f"; {number_of(len(hidden), 'further setting')}: {_range(first, hidden, measures)}" if hidden else ""
        sentences.append(f"{nouns} of the other settings vs {baseline}: {joined(rest, ' ')}{omitted}")
    return sentences


def _range(first: Row, rows: Sequence[Row], measures: list[Measure]) -> str:
    """Format the smallest and the largest change of each measure with signs: '-9 % to +4 % and -65 % to -12 %'."""
    texts = []
    for measure in measures:
        before, values = measure.value(first.report or {}) or 0.0, [measure.value(row.report or {}) for row in rows]
        ends = [measure.sign_text(pick(value or 0.0 for value in values), before) for pick in (min, max)]
        texts.append(" to ".join(dict.fromkeys(ends)))
    return join_list(texts)


def _ordered(rows: Sequence[Row], measure: Measure) -> list[Row]:
    """Return the points fitting in memory (all points if none fits), the best by the measure first."""
    fitting = [row for row in rows if row.fits] or list(rows)
    # Small or large values may be good.
    return sorted(fitting, key=lambda row: measure.rank(row.report or {}))


def _spoken(rows: tuple[Row, ...], first: Row, measure: Measure) -> tuple[int, ...]:
    """Return the indices of the best point that fits, the baseline point, and the worst."""
    ordered = _ordered(rows, measure)
    return tuple(dict.fromkeys((ordered[0].index, first.index, ordered[-1].index)))


def _predicate(first: Row, row: Row, measures: list[Measure], baseline: str) -> str:
    """Format a setting's changes: 'takes 6 % less time than ddp (47 ms instead of 50 ms)'."""
    parts = []
    for number, measure in enumerate(measures):
        before, after = (measure.value(point.report or {}) or 0.0 for point in (first, row))
        # The first change names the baseline; the others refer to the same setting.
        width = _tie_width(measure, first, row)
        tie = f"a tie within the uncertainty of {width}" if width else ""
        parts.append((measure.verb, _compared(measure, after, before, baseline if number == 0 else "", tie)))
    lacks = ", but does not fit in memory" if row.fits is False else ""
    return f"{predicates(parts)}{lacks}"


def _compared(measure: Measure, after: float, before: float, baseline: str, tie: str) -> str:
    """Return a text with the change of a value from the baseline's, both values, and `tie` if the values tie."""
    values = measure.amount_text(after), measure.amount_text(before)
    # A change relative to 0 is undefined: write the values.
    if before == 0 and after != 0:
        return f"{measure.text(after)} instead of {values[1]}"
    change = measure.change_text(after, before)
    if change.startswith("the same "):
        return f"{change}{f' as {baseline}' if baseline else ''} ({values[0]})"
    link = "of" if "x the " in change else "than"
    within = f"; {tie}" if tie else ""
    return f"{change}{f' {link} {baseline}' if baseline else ''} ({values[0]} instead of {values[1]}{within})"


def _tie_width(measure: Measure, first: Row, row: Row) -> str:
    """Return the uncertainty, "±11 %", within which two points' values differ; "" for equal values and for no tie."""
    reports = (first.report or {}, row.report or {})
    before, after = (measure.value(report) or 0.0 for report in reports)
    # Such a change may be the other way round in reality.
    is_unsure = before and abs(after / before - 1) > SAME and measure.tied(*reports)
    return f"±{percent_text(measure.uncertainty(*reports))}" if is_unsure else ""


def _signs(first: Row, row: Row, measures: list[Measure]) -> str:
    """Format a setting's relative changes with signs: '-8.5 % (a tie within ±11 %) and +5.4 %'."""
    texts = []
    for measure in measures:
        before, after = (measure.value(point.report or {}) or 0.0 for point in (first, row))
        width = _tie_width(measure, first, row)
        texts.append(f"{measure.sign_text(after, before)}{f' (a tie within {width})' if width else ''}")
    return join_list(texts) + ("" if row.fits else " (does not fit in memory)")


def _numbers(first: Row, row: Row, measures: list[Measure]) -> dict[str, Any]:
    """Return a setting's values of the measures, and their changes from the baseline point, as plain data."""
    return {
        "setting": dict(row.setting),
        "point": row.index,
        "fits": row.fits,
        **{measure.name: measure.value(row.report or {}) for measure in measures},
        **{f"{measure.name}_change": _change(first, row, measure) for measure in measures},
    }


def _change(first: Row, row: Row, measure: Measure) -> float | None:
    """Return a measure's relative change from the baseline point; None if a value is missing or the baseline's is 0."""
    before, after = measure.value(first.report or {}), measure.value(row.report or {})
    return after / before - 1 if before and after is not None else None


def _ranges(compared: Comparison, measure: Measure) -> list[dict[str, Any]]:
    """Return each setting's smallest and largest change from the baseline over the conditions (swept values)."""
    ranges = []
    for setting in compared.settings[1:]:
        changes = []
        for condition in compared.conditions:
            first, row = compared.row(compared.settings[0], condition), compared.row(setting, condition)
            # A point that does not fit has no real speed.
            change = _change(first, row, measure) if first.fits and row.fits else None
            changes += [(change, condition)] if change is not None else []
        if changes:
            least, most = min(changes, key=lambda pair: pair[0]), max(changes, key=lambda pair: pair[0])
            ranges.append(
                {
                    "setting": dict(setting), "measure": measure.name,
                    "least": least[0], "least_at": dict(least[1]), "most": most[0], "most_at": dict(most[1]),
                }
            )  # fmt: skip
    return ranges


def _over_conditions(compared: Comparison, measure: Measure, *, flips: bool) -> str:
    """Return a sentence with the ranges of changes that vary over the conditions; with `flips`, if both signs occur."""
    order = [key_of(condition) for condition in compared.conditions]
    varying = [
        span
        for span in _ranges(compared, measure)
        if span["most"] - span["least"] > _ALIKE and (not flips or _sign(span["least"]) != _sign(span["most"]))
    ]
    if not varying:
        return ""
    # Hiding a single setting would save nothing, hence the + 1.
    hidden = _best_first(varying, measure)[MOST_NAMED:] if len(varying) > MOST_NAMED + 1 else []
    ranges: list[tuple[str, list[tuple[str, str]]]] = []
    for span in varying:
        if span not in hidden:
            # Both ends in the order of the conditions: from 2 GPUs to 8 GPUs.
            ends = sorted(("least", "most"), key=lambda end: order.index(key_of(span[f"{end}_at"])))
            texts = [(measure.sign_text(1 + span[end], 1.0), compared.where(span[f"{end}_at"])) for end in ends]
            ranges.append((compared.name(span["setting"]), texts))
    # Several settings whose ends have the same conditions share the text of the conditions.
    shared = {tuple(where for _, where in ends) for _, ends in ranges}
    common = f" ({' to '.join(next(iter(shared)))})" if len(shared) == 1 < len(ranges) else ""
    parts = [
        (name, " to ".join(change if common else f"{change} ({where})" for change, where in ends))
        for name, ends in ranges
    ]
    head = f"Change of {measure.noun} vs {compared.name(compared.settings[0])}"
    rest = ""
    if hidden:
        least, most = min(span["least"] for span in hidden), max(span["most"] for span in hidden)
        ends_of_rest = " to ".join(measure.sign_text(1 + end, 1.0) for end in (least, most))
        rest = f"; {number_of(len(hidden), 'further setting')}: {ends_of_rest}"
    return f"{head} over {len(compared.conditions)} conditions{common}: {joined(parts, ' ')}{rest}"


def _best_first(ranges: Sequence[dict[str, Any]], measure: Measure) -> list[dict[str, Any]]:
    """Return ranges of changes, from `_ranges`, sorted by their best end: the largest gain first."""
    return sorted(ranges, key=lambda span: span["least"] if measure.best == "least" else -span["most"])


def _sign(change: float) -> int:
    """Return the sign of a relative change, -1, 0 or 1; changes too small to be written count as 0."""
    return (change > SAME) - (change < -SAME)


FINDING = Finding("change", find)
