"""Which setting is best under which condition, by how much, and where along an axis does the lead change?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from simulator.findings.along import Axis, axis_of, changes
from simulator.findings.comparison import Comparison, Row, Settings, amount, key_of
from simulator.findings.found import Finding, Found
from simulator.findings.search import Bracket
from simulator.findings.words import bracket_text, bracketed, joined, listed
from simulator.records.measures import Measure, Report, factor_text, for_reports, percent_text
from simulator.records.setting_text import label, labelled
from simulator.scenario.answer_spec import FindingSpec

_USUAL: Final = {"collective": "time", "training": "time"}
# Values that differ by less than this share are equal: the engine's own precision against the closed forms.
_EQUAL: Final = 1e-9
# Settings that are told one by one beside the best.
_MOST_OTHERS: Final = 4


def find(compared: Comparison, asked: FindingSpec) -> Found | None:
    """Tell who is best where; None where no condition has two settings that can be compared."""
    reports = [row.report for row in compared.rows if row.fits and row.report is not None]
    measure = for_reports(compared.measure(asked.of[0] if asked.of else _USUAL[compared.kind]), reports)
    contests = [(condition, _contest(compared, condition, measure)) for condition in compared.conditions]
    contests = [(condition, rows) for condition, rows in contests if len(rows) > 1]
    if not contests:
        return None
    crossings = [one for key in compared.numeric_axes for one in _crossings(compared, measure, contests, key)]
    numbers: dict[str, Any] = {
        "measure": measure.name,
        "places": [_place(measure, condition, rows) for condition, rows in contests],
        "crossings": crossings,
        **_counts(compared, measure, contests),
    }
    shown = next((rows for condition, rows in contests if condition == compared.shown_condition), contests[-1][1])
    told = _alone(compared, measure, shown) if len(contests) == 1 else _over_all(compared, measure, contests)
    lost = _lost(compared)
    sentences = [told + lost, *_lead_changes(compared, measure, crossings)]
    spoken = (shown[0].index, *(row.index for row in shown if row.setting == compared.settings[0]), shown[-1].index)
    return Found("best", tuple(sentences), numbers, tuple(dict.fromkeys(spoken)))


def _counts(
    compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]
) -> dict[str, Any]:
    """How many conditions each setting wins, how many are tied, and how many points do not fit or failed."""
    wins: dict[str, int] = {}
    for _, rows in contests:
        if not _all_tied(measure, rows):
            name = _leaders_text(compared, measure, rows)
            wins[name] = wins.get(name, 0) + 1
    return {
        "wins": wins,
        "conditions": len(contests),
        "ties": sum(_all_tied(measure, rows) for _, rows in contests),
        "points": len(compared.rows),
        "do_not_fit": sum(row.report is not None and not row.fits for row in compared.rows),
        "failed": sum(row.report is None for row in compared.rows),
    }


def _contest(compared: Comparison, condition: Settings, measure: Measure) -> list[Row]:
    """Points under a condition that fit and have a value, the best first."""
    sign = 1 if measure.best == "least" else -1
    rows = [row for row in compared.under(condition) if row.fits and measure.value(row.report or {}) is not None]
    return sorted(rows, key=lambda row: sign * _value(measure, row))


def _value(measure: Measure, row: Row) -> float:
    report: Report = row.report or {}
    return measure.value(report) or 0.0


def _ratio(measure: Measure, best: Row, other: Row) -> float:
    """How many times worse another is; 1 for equal ones, infinite where one of two is 0."""
    one, two = _value(measure, best), _value(measure, other)
    if one == two:
        return 1.0
    return (two / one if measure.best == "least" else one / two) if one and two else math.inf


def _equals(measure: Measure, rows: Sequence[Row]) -> list[Row]:
    """The best, and rows with the same value."""
    return [row for row in rows if _ratio(measure, rows[0], row) - 1 <= _EQUAL]


def _leaders(measure: Measure, rows: Sequence[Row]) -> list[Row]:
    """The best, and rows that tie with it: equal, or behind by less than the prediction's own uncertainty."""
    margin = max(_EQUAL, measure.uncertainty(rows[0].report or {}))
    return [row for row in rows if _ratio(measure, rows[0], row) - 1 <= margin]


def _leaders_text(compared: Comparison, measure: Measure, rows: Sequence[Row]) -> str:
    return listed([compared.name(row.setting) for row in _leaders(measure, rows)])


def _all_tied(measure: Measure, rows: Sequence[Row]) -> bool:
    return len(_leaders(measure, rows)) == len(rows)


def _ahead(measure: Measure, rows: Sequence[Row]) -> float:
    """How many times worse the next is than the best and its equals."""
    leaders = _leaders(measure, rows)
    return _ratio(measure, rows[0], rows[len(leaders)])


def _factor(ratio: float) -> str:
    return factor_text(ratio) if math.isfinite(ratio) else "more than any factor, for its own is 0"


def _place(measure: Measure, condition: Settings, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "condition": dict(condition),
        "winner": dict(rows[0].setting),
        "tied": _all_tied(measure, rows),
        "equal_to_winner": [dict(row.setting) for row in _equals(measure, rows)[1:]],
        "tied_with_winner": [dict(row.setting) for row in _leaders(measure, rows)[1:]],
        "value": _value(measure, rows[0]),
        "uncertainty": measure.uncertainty(rows[0].report or {}),
        "point": rows[0].index,
        "others": [
            {
                "setting": dict(row.setting),
                "value": _value(measure, row),
                "factor": _finite(_ratio(measure, rows[0], row)),
            }
            for row in rows[1:]
        ],
    }


def _finite(ratio: float) -> float | None:
    """A ratio as JSON has it."""
    return ratio if math.isfinite(ratio) else None


def _alone(compared: Comparison, measure: Measure, rows: Sequence[Row]) -> str:
    """One condition: the best, what ties with it, and how far the others are behind."""
    equal, leaders, value = _equals(measure, rows), _leaders(measure, rows), _value(measure, rows[0])
    if len(equal) == len(rows):
        return f"all {len(rows)} have {measure.text(value)}"
    names = listed([compared.name(row.setting) for row in equal])
    tied, behind = (_changes(compared, measure, own, value) for own in (leaders[len(equal) :], rows[len(leaders) :]))
    if not tied:
        return f"{names} {'is' if len(equal) == 1 else 'are'} {measure.superlative}, {measure.text(value)}: {behind}"
    within = f"±{percent_text(measure.uncertainty(rows[0].report or {}))} of measured runs"
    lead = (
        f"{names} {'leads' if len(equal) == 1 else 'lead'} with {measure.text(value)}, a tie within the {within} with"
    )
    return f"{lead} {tied}{f'; behind: {behind}' if behind else ''}"


def _changes(compared: Comparison, measure: Measure, rows: Sequence[Row], value: float) -> str:
    """How far some settings are behind a value, those that are many with the first and the last of them."""
    others = [(compared.name(row.setting), measure.change_text(_value(measure, row), value)) for row in rows]
    told = others if len(others) <= _MOST_OTHERS + 1 else [*others[:_MOST_OTHERS], others[-1]]
    left = len(others) - len(told)
    return f"{joined(told)}{f' ({left} more between)' if left else ''}"


def _over_all(compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]) -> str:
    """Several conditions: who wins how many, and by how much over the next."""
    wins: dict[str, list[tuple[float, Settings]]] = {}
    for condition, rows in contests:
        if not _all_tied(measure, rows):
            wins.setdefault(_leaders_text(compared, measure, rows), []).append((_ahead(measure, rows), condition))
    total = len(contests)
    ties = total - sum(map(len, wins.values()))
    exact = sum(len(_equals(measure, rows)) == len(rows) for _, rows in contests)
    if not wins and exact == total:
        return f"all have the same {measure.noun} under all {total} conditions"
    if not wins:
        return _tie(compared, measure, contests)
    order = sorted(wins, key=lambda name: -len(wins[name]))
    if len(order) == 1 and not ties and total > 1:
        least, most = min(wins[order[0]], key=lambda one: one[0]), max(wins[order[0]], key=lambda one: one[0])
        ends = [(_factor(ratio), labelled(where)) for ratio, where in (least, most)]
        told = f"{ends[0][0]} ({ends[0][1]}) to {ends[1][0]} ({ends[1][1]})" if ends[0][0] != ends[1][0] else ends[0][0]
        return f"{order[0]} {_are(order[0])} {measure.superlative} everywhere, ahead of the next by {told}"
    parts = []
    for name in order:
        ratio, where = max(wins[name], key=lambda one: one[0])
        if len(wins[name]) == 1:
            verb, ahead = (
                (f" {_are(name)} {measure.superlative}", "ahead of the next by") if name == order[0] else ("", "by")
            )
            parts.append(f"{name}{verb} at {labelled(where)}, {ahead} {_factor(ratio)}")
            continue
        count = f"{len(wins[name])} of {total} conditions" if name == order[0] else str(len(wins[name]))
        verb = f"{_are(name)} {measure.superlative} in" if name == order[0] else "in"
        parts.append(f"{name} {verb} {count}, ahead of the next by up to {_factor(ratio)} ({labelled(where)})")
    if exact:
        parts.append(f"all equal in {exact}")
    if ties > exact:
        parts.append(f"all tied in {ties - exact}, within {_margin(measure, contests)}")
    return "; ".join(parts)


def _tie(compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]) -> str:
    """Nobody wins: who leads all the same, and by how much at most."""
    condition, rows = max(contests, key=lambda one: _ratio(measure, one[1][0], one[1][-1]))
    most = f"{_factor(_ratio(measure, rows[0], rows[-1]))} at most ({labelled(condition)})"
    names = list(dict.fromkeys(compared.name(own[0].setting) for _, own in contests))
    first = f"{names[0]} leads everywhere" if len(names) == 1 else f"{listed(names)} take turns to lead"
    return f"all tie in {measure.noun} within {_margin(measure, contests)}: {first}, by {most}"


def _are(names: str) -> str:
    return "are" if " and " in names else "is"


def _margin(measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]) -> str:
    """The widest uncertainty of a lead."""
    widest = max(measure.uncertainty(rows[0].report or {}) for _, rows in contests)
    return f"the ±{percent_text(widest)} of measured runs"


def _lost(compared: Comparison) -> str:
    """How many points do not fit, or failed."""
    failed = sum(row.report is None for row in compared.rows)
    short = sum(row.report is not None and not row.fits for row in compared.rows)
    parts = [f"{short} of {len(compared.rows)} do not fit"] if short else []
    parts += [f"{failed} of {len(compared.rows)} failed"] if failed else []
    return f" ({', '.join(parts)})" if parts else ""


def _crossings(
    compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]], key: str
) -> list[dict[str, Any]]:
    """Where the lead changes along one axis, everything else that is swept fixed."""
    axis = axis_of(compared, key, None)
    if axis is None:
        return []
    lines: dict[str, list[tuple[Settings, Sequence[Row]]]] = {}
    for condition, rows in contests:
        lines.setdefault(key_of({k: v for k, v in condition.items() if k != key}), []).append((condition, rows))
    found = []
    for line in lines.values():
        line.sort(key=lambda place: amount(place[0][key]) or 0)
        fixed = {k: v for k, v in line[0][0].items() if k != key}
        for (low, one), (high, two) in pairwise(line):
            before, after = one[0].setting, two[0].setting
            leaders = [[row.setting for row in _leaders(measure, rows)] for rows in (one, two)]
            if any(setting in leaders[1] for setting in leaders[0]):
                continue
            section = Axis(key, tuple(n for n in axis.numbers if _between(compared, key, low, n, high)))
            places = changes(compared, measure, (before, after), section, fixed)
            bracket = next((one for one, worse in places if worse), None)
            found.append({"along": key, "fixed": fixed, "before": dict(before), "after": dict(after)})
            found[-1] |= _bracketed(compared, measure, after, section, fixed, bracket)
    return found


def _bracketed(
    compared: Comparison, measure: Measure, after: Settings, section: Axis, fixed: Settings, bracket: Bracket | None
) -> dict[str, Any]:
    """Where a lead changes, and what both take there; without the place where it could not be searched for."""
    if bracket is None:
        return {"at": None, "exact": False, "value": None, "from": section.numbers[0], "to": section.numbers[-1]}
    report = compared.known({**after, **fixed, **section.settings(bracket.high)})
    value = None if report is None else measure.value(report)
    return bracketed(bracket) | {"value": value}


def _between(compared: Comparison, key: str, low: Settings, number: int, high: Settings) -> bool:
    return (amount(low[key]) or 0) <= number <= (amount(high[key]) or 0)


def _lead_changes(compared: Comparison, measure: Measure, crossings: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each two settings and axis: where one overtakes the other."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for one in crossings:
        groups.setdefault((one["along"], key_of(one["before"]), key_of(one["after"])), []).append(one)
    # Along sizes where there are any: along workers the same changes would be told a second time.
    along = {key for key, _, _ in groups}
    wanted = next((key for key in ("collective.size", *along) if key in along), None)
    sentences = []
    for (key, _, _), places in groups.items():
        if key != wanted:
            continue
        texts = [_where(compared, one) for one in places]
        shown, others = _shown_first(compared, places, texts)
        before, after = compared.name(places[0]["before"]), compared.name(places[0]["after"])
        rest = f" ({listed(others)})" if others else ""
        what = "" if measure.superlative == "fastest" else f" in {measure.noun}"
        sentences.append(f"{after} overtakes {before}{what} at {shown}{rest}")
    return sentences


def _where(compared: Comparison, one: Mapping[str, Any]) -> tuple[str, str]:
    at = bracket_text(one["along"], one)
    return at, ", ".join(label(k, v) for k, v in one["fixed"].items())


def _shown_first(
    compared: Comparison, places: Sequence[Mapping[str, Any]], texts: Sequence[tuple[str, str]]
) -> tuple[str, list[str]]:
    """The crossing under the scenario's own settings, else the first; and the first and last of the others."""
    own = {"cluster.world_size": compared.scenario.cluster.world_size}
    number = next((i for i, one in enumerate(places) if one["fixed"] and one["fixed"].items() <= own.items()), 0)
    written = [f"{at} with {fixed}" if fixed else at for at, fixed in texts]
    others = [text for i, text in enumerate(written) if i != number]
    return written[number], others if len(others) <= 2 else [others[0], others[-1]]


FINDING = Finding("best", find)
