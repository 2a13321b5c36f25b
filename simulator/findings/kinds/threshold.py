"""From which value of an axis on is a setting worse than the baseline by a margin, or a measure above a value?

The answer to "from how many GPUs on is communication over half of the step?" needs no baseline: `above: 0.5`. Where the
setting ties with the baseline, the sentence says so:

    zero3 takes at most 1 % more time per step than ddp from micro-batch 6 on: 143 ms instead of 120 ms at micro-batch 1
    (+19 %), 1.19 s instead of 1.2 s at micro-batch 32 (-0.67 %); from micro-batch 4 on, the difference is within the
    uncertainty of ±9 %
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.findings.axis_search import Bracket
from simulator.findings.comparison import Comparison, Row, Settings, key_of
from simulator.findings.crossovers import Axis, axis_of, changes, log_ratio, sign_changes
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import at_text, bracket_text, bracketed, clause, ends_text, join_list, short_list
from simulator.records.measures import Measure, Report, for_reports, percent_text
from simulator.records.setting_text import label
from simulator.scenario.answer_spec import FindingSpec

_USUAL = ("time",)
# Log ratios closer to 0 than this belong to equal values.
_EQUAL = 1e-9


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on axis values from which a setting is, or ceases to be, worse than the baseline by a margin.

    There is a sentence per measure and setting.
    """
    key = request.along or ""
    axis = axis_of(compared, key, request.between)
    if axis is None:
        return None
    if request.above is not None:
        return _above(compared, request, axis, request.above)
    if len(compared.settings) < 2:
        return None
    rows = compared.under(compared.shown_condition)
    reports = [row.report for row in rows if row.report is not None]
    entries: list[dict[str, Any]] = []
    sentences: list[str] = []
    for name in request.of or _USUAL:
        measure = for_reports(compared.measure(name), reports)
        # Settings that differ only in the axis's own key would repeat the same search.
        for setting in _distinct(compared.settings[1:], key):
            results = [
                _statement(compared, measure, setting, _playable(compared, setting, axis, fixed), fixed, request.margin)
                for fixed in _fixed(compared, key)
            ]
            answers = [result for result in results if result is not None]
            entries += [numbers for _, numbers in answers]
            sentences += _together([text for text, _ in answers])
    if not entries:
        return None
    return FindingResult(
        "threshold", tuple(sentences), {"along": key, "margin": request.margin, "places": entries},
        _worst(compared, entries, axis) or tuple(row.index for row in rows[:2]),
    )  # fmt: skip


def _worst(compared: Comparison, entries: Sequence[Mapping[str, Any]], axis: Axis) -> tuple[int, ...]:
    """Return the indices of a setting's point and the baseline's, where the setting is worst against the baseline
    among points that fit in memory.

    Empty if the axis is not swept, or if no setting is worse anywhere.
    """
    ratios = [
        (ratio, _pair(compared, entry, axis, int(number)))
        for entry in entries
        for number, ratio in entry["log_ratios"].items()
        if ratio > _EQUAL
    ]
    # A step that does not fit explains nothing, if another does.
    fitting = [pair for pair in ratios if all(row.fits for row in pair[1])]
    _, rows = max(fitting or ratios, key=lambda pair: pair[0], default=(0.0, ()))
    return tuple(row.index for row in rows)


def _pair(compared: Comparison, entry: Mapping[str, Any], axis: Axis, number: int) -> tuple[Row, ...]:
    """Return the simulated points of a setting and of the baseline at an axis value, under a finding's condition."""
    settings = {**entry["fixed"], **axis.settings(number)}
    pair = ({**entry["setting"], **settings}, {**compared.settings[0], **settings})
    return tuple(compared.row_of(point) for point in pair if compared.has(point))


def _above(compared: Comparison, request: FindingSpec, axis: Axis, above: float) -> FindingResult | None:
    """Return the finding on axis values from which measures of each setting are above a value (SI units).

    There is a sentence per measure and setting: "The job has over 50 % exposed communication from 32 GPUs on: 25.8 %
    at 16 GPUs, 53.4 % at 64 GPUs".
    """
    entries: list[dict[str, Any]] = []
    sentences: list[str] = []
    for measure in map(compared.measure, request.of or _USUAL):
        for setting in _distinct(compared.settings, axis.key):
            texts = []
            for fixed in _fixed(compared, axis.key):
                distance = _distance(compared, measure, {**setting, **fixed}, axis, above)
                distances = {number: distance(number) for number in axis.numbers}
                values = {number: above + far for number, far in distances.items() if far is not None}
                if not values:
                    continue
                places = sign_changes(distance, axis)
                statement = _above_text(measure, axis, places, values, above)
                name = _without_axis(compared, setting, axis.key)
                where = compared.where(fixed)
                texts.append((clause(name, statement[0]), statement[1], where))
                entries.append({
                    "setting": dict(setting), "measure": measure.name, "fixed": dict(fixed), "above": above,
                    "places": [bracketed(bracket) | {"above_from_here": after} for bracket, after in places],
                    "values": {str(number): reached for number, reached in values.items()},
                })  # fmt: skip
            sentences += _together(texts)
    if not entries:
        return None
    rows = compared.under(compared.shown_condition)
    return FindingResult(
        "threshold", tuple(sentences), {"along": axis.key, "above": above, "places": entries},
        tuple(row.index for row in rows[:2]),
    )  # fmt: skip


def _distance(
    compared: Comparison, measure: Measure, settings: Settings, axis: Axis, above: float
) -> Callable[[int], float | None]:
    """Return a function from an axis value to the distance of the measure from `above` (None: unknown point)."""

    def distance(number: int) -> float | None:
        # A point between the scenario's own values is simulated once, and kept by the comparison.
        report = compared.known({**settings, **axis.settings(number)})
        reached = None if report is None else measure.value(report)
        return None if reached is None else reached - above

    return distance


def _without_axis(compared: Comparison, setting: Settings, key: str) -> str:
    """Return a setting's name without the axis's key; the kind of job for a scenario without compared settings."""
    if not setting:
        return {"collective": "The collective", "training": "The job"}[compared.kind]
    return compared.name(_without(setting, key))


def _above_text(
    measure: Measure, axis: Axis, places: Sequence[tuple[Bracket, bool]], values: Mapping[int, float], above: float
) -> tuple[str, str]:
    """Return a statement such as 'has over 50 % exposed communication', and the axis values at which it holds.

    Parameters
    ----------
    places : sequence of (Bracket, bool)
        Places on the axis; True if the measure is above the value from there on.
    values : mapping of int to float
        The measure's values at the axis's own numbers.
    """
    limit = measure.text(above).replace(".0 %", " %")
    over, under = (f"{measure.value_verb} {word} {limit}" for word in ("over", "at most"))
    first, last = min(values), max(values)
    ends = ", ".join(
        f"{measure.amount_text(values[number])} at {label(axis.key, axis.settings(number)[axis.key])}"
        for number in dict.fromkeys((first, last))
    )
    if not places:
        names = [label(axis.key, axis.settings(number)[axis.key]) for number in (first, last)]
        if values[first] > above:
            return over, f"already with {names[0]}, and up to {names[1]}: {ends}"
        return under, f"from {names[0]} to {names[1]}: {ends}"
    statements = [over if after else under for _, after in places]
    at = [_from_text(axis, bracket) for bracket, _ in places]
    before = "".join(f"{text} {where}, and " for text, where in zip(statements[:-1], at[:-1], strict=True))
    return f"{before}{statements[-1]}", f"{at[-1]}: {ends}"


def _fixed(compared: Comparison, key: str) -> list[Settings]:
    """Return the conditions (swept values) with the axis's key removed, without repetitions."""
    fixed: list[Settings] = []
    for condition in compared.conditions:
        rest = {k: v for k, v in condition.items() if k != key}
        if rest not in fixed:
            fixed.append(rest)
    return fixed


def _together(texts: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a sentence per statement that lists all places of the statement, from (statement, place, condition)."""
    places: dict[str, dict[str, list[str]]] = {}
    for statement, at, where in texts:
        places.setdefault(statement, {}).setdefault(at, []).extend([where] if where else [])
    return [f"{statement} {short_list(_bracketed(conditions), 'place')}" for statement, conditions in places.items()]


def _bracketed(conditions: Mapping[str, list[str]]) -> list[str]:
    """Return each place with its conditions in brackets, if there are any, from {place: conditions}."""
    return [f"{at} ({short_list(texts, 'condition')})" if texts else at for at, texts in conditions.items()]


def _distinct(settings: Sequence[Settings], key: str) -> list[Settings]:
    """Return the settings with those removed that differ from an earlier setting in the axis's key only."""
    # Reversed twice: the first of several settings that are equal without the axis's key remains.
    return list({key_of(_without(setting, key)): setting for setting in reversed(settings)}.values())[::-1]


def _statement(
    compared: Comparison, measure: Measure, setting: Settings, axis: Axis, fixed: Settings, margin: float
) -> tuple[tuple[str, str, str], dict[str, Any]] | None:
    """Return a setting's ((statement, place, condition), numbers) against the baseline; None without a known value."""
    pair = (setting, compared.settings[0])
    ratios = {
        number: ratio
        for number in axis.numbers
        if (ratio := log_ratio(compared, measure, pair, {**fixed, **axis.settings(number)})) is not None
    }
    if not ratios:
        return None
    places = changes(compared, measure, pair, axis, fixed, margin=margin)
    ends = _ends(compared, measure, pair, axis, fixed, ratios)
    # Settings that are equal everywhere need no uncertainty.
    tied, widths = _ties(compared, measure, pair, axis, fixed) if ends else ([], [])
    names = compared.name(_without(setting, axis.key)), compared.name(compared.settings[0])
    where = compared.where(fixed)
    statement, at = _sentence(compared, measure, names, axis, places, ratios, margin)
    tie = _tie_text(axis, tied)
    if not places and tied == [(None, None)]:
        # No crossing and no difference that would last on the real machine: the tie is the whole statement.
        statement = clause(
            names[0], f"ties with {names[1]} in {_counted(measure)} within the uncertainty of {_range_text(widths)}"
        )
        tie = ""
    if where:
        where += f"; tie {tie}, within {_range_text(widths)}" if tie else ""
    else:
        at += _ends_text(measure, axis, ends)
        at += f"; {tie}, the difference is within the uncertainty of {_range_text(widths)}" if tie else ""
        at += _lacking(compared, key_of(setting), axis.key)
    numbers = {
        "setting": dict(setting), "measure": measure.name, "fixed": dict(fixed),
        "places": [
            bracketed(bracket) | {"worse_from_here": worse} for bracket, worse in places
        ],
        "ends": ends,
        "ties": [{"from": first, "to": last} for first, last in tied],
        "log_ratios": {str(number): ratio for number, ratio in ratios.items()},
        "first": axis.numbers[0], "last": axis.numbers[-1],
    }  # fmt: skip
    return (statement, at, where), numbers


def _ties(
    compared: Comparison, measure: Measure, pair: tuple[Settings, Settings], axis: Axis, fixed: Settings
) -> tuple[list[tuple[float | None, float | None]], list[float]]:
    """Return the parts of an axis on which two settings differ and tie, and the uncertainties there.

    Returns
    -------
    list of (float or None, float or None)
        First and last axis value of each part; None for an end of the axis.
    list of float
        Uncertainty of the measure at each of the axis's own numbers that tie.
    """

    def reports(number: int) -> list[Report]:
        place = {**fixed, **axis.settings(number)}
        return [compared.known({**setting, **place}) or {} for setting in pair]

    def room(number: int) -> float | None:
        ratio = log_ratio(compared, measure, pair, {**fixed, **axis.settings(number)})
        return None if ratio is None else math.log1p(measure.uncertainty(*reports(number))) - abs(ratio)

    rooms = {number: far for number in axis.numbers if (far := room(number)) is not None}
    widths = [measure.uncertainty(*reports(number)) for number, far in rooms.items() if far > 0]
    if not widths:
        return [], []
    starts: list[float | None] = [None] if next(iter(rooms.values())) > 0 else []
    stops: list[float | None] = []
    for bracket, begins in sign_changes(room, axis):
        if begins:
            starts.append(bracket.high if bracket.exact else bracket.at or bracket.high)
        else:
            stops.append(bracket.low if bracket.exact else bracket.at or bracket.low)
    return list(zip(starts, [*stops, None], strict=False)), widths


def _tie_text(axis: Axis, tied: Sequence[tuple[float | None, float | None]]) -> str:
    """Return the parts of an axis with ties in words: 'up to 4 GPUs', 'everywhere'; "" without any."""
    texts = []
    for first, last in tied:
        start, end = (
            "" if number is None else at_text(axis.key, number, exact=number in axis.numbers or axis.step == 1)
            for number in (first, last)
        )
        joined = f"from {start} to {end}" if end else f"from {start} on"
        texts.append(joined if start else f"up to {end}" if end else "everywhere")
    return join_list(texts) if texts else ""


def _range_text(widths: Sequence[float]) -> str:
    """Return the range of uncertainties: '±9 % to 45 %'."""
    return "±" + " to ".join(dict.fromkeys(percent_text(pick(widths)) for pick in (min, max)))


def _counted(measure: Measure) -> str:
    """Return the noun of a measure; a step's time is named as such, beside the "time per token" of another measure."""
    return "time per step" if (measure.name, measure.of) == ("time", ("training",)) else measure.noun


def _ends(
    compared: Comparison,
    measure: Measure,
    pair: tuple[Settings, Settings],
    axis: Axis,
    fixed: Settings,
    ratios: Mapping[int, float],
) -> list[dict[str, float]]:
    """Return both settings' values at both ends of the axis, and the relative change; empty if equal everywhere."""
    if all(abs(ratio) <= _EQUAL for ratio in ratios.values()):
        return []
    ends = []
    for number in dict.fromkeys((min(ratios), max(ratios))):
        reports = (compared.known({**setting, **fixed, **axis.settings(number)}) or {} for setting in pair)
        value, baseline = (measure.value(report) or 0.0 for report in reports)
        # The log ratio is positive for "worse"; turn it into the change of the measure itself.
        sign = 1 if measure.best == "least" else -1
        ends.append({"at": number, "value": value, "baseline": baseline, "change": math.expm1(sign * ratios[number])})
    return ends


def _ends_text(measure: Measure, axis: Axis, ends: Sequence[Mapping[str, float]]) -> str:
    """Return a text with both settings' values at both ends of the axis, and the changes; "" without any."""
    texts = [
        f"{measure.amount_text(end['value'])} instead of {measure.amount_text(end['baseline'])} "
        f"at {label(axis.key, axis.settings(int(end['at']))[axis.key])} ({measure.sign_text(1 + end['change'], 1.0)})"
        for end in ends
    ]
    return f": {', '.join(texts)}" if texts else ""


def _lacking(compared: Comparison, setting: str, key: str) -> str:
    """Return a text on the compared points without enough memory; "" if the finding "fit" reports them."""
    if any(request.finding == "fit" for request in compared.scenario.answer):
        return ""
    lacking: dict[str, list[str]] = {}
    for row in compared.rows:
        if key_of(row.setting) in (setting, key_of(compared.settings[0])) and row.report is not None and not row.fits:
            at = compared.where(row.condition)
            lacking.setdefault(compared.name(row.setting), []).append(at)
    return "".join(f"; {clause(name, 'does not fit')} with {join_list(where)}" for name, where in lacking.items())


def _without(setting: Settings, key: str) -> Settings:
    """Return a setting without the axis's key; a mapping of options loses only this option."""
    around, _, name = key.rpartition(".")
    value = setting.get(around)
    return {**setting, around: {k: v for k, v in value.items() if k != name}} if isinstance(value, dict) else setting


def _playable(compared: Comparison, setting: Settings, axis: Axis, fixed: Settings) -> Axis:
    """Return the axis up to the last value that can be simulated: workers cannot have more servers than workers."""
    numbers = list(axis.numbers)
    while len(numbers) > 1 and compared.known({**setting, **fixed, **axis.settings(numbers[-1])}) is None:
        # Halve the last value until a point can be simulated, or the value before is reached.
        shorter = numbers[-1] // 2
        numbers = [*numbers[:-1], *([shorter] if shorter > numbers[-2] else [])]
    return Axis(axis.key, tuple(numbers))


def _from_text(axis: Axis, bracket: Bracket) -> str:
    """Return a place on an axis in words: 'from about 1,830 tokens on (between the simulated points ... and ...)'."""
    place = bracketed(bracket)
    return f"from {bracket_text(axis.key, place)} on{ends_text(axis.key, place)}"


def _sentence(
    compared: Comparison,
    measure: Measure,
    names: tuple[str, str],
    axis: Axis,
    places: list[tuple[Bracket, bool]],
    ratios: dict[int, float],
    margin: float,
) -> tuple[str, str]:
    """Return a statement such as 'ring takes more time than tree', and the axis values at which it holds."""
    name, baseline = names
    more = "more" if measure.best == "least" else "less"
    than = f"{more} {_counted(measure)} than {baseline}"
    worse = f"{measure.verb} over {percent_text(margin)} {than}" if margin else f"{measure.verb} {than}"
    near = f"{measure.verb} at most {percent_text(margin)} {than}" if margin else f"{measure.verb} no {than}"
    ends = (axis.settings(number)[axis.key] for number in (axis.numbers[0], axis.numbers[-1]))
    first, last = (label(axis.key, end) for end in ends)
    if not places and all(abs(ratio) <= _EQUAL for ratio in ratios.values()):
        return clause(name, f"{measure.verb} the same {_counted(measure)} as {baseline}"), f"from {first} to {last}"
    if not places:
        stays = worse if next(iter(ratios.values())) > math.log1p(margin) else near
        # Better everywhere: the margin says less than the comparison itself.
        if all(ratio < -_EQUAL for ratio in ratios.values()):
            fewer = "less" if measure.best == "least" else "more"
            stays = f"{measure.verb} {fewer} {_counted(measure)} than {baseline}"
        return clause(name, stays), f"from {first} to {last}"
    statements = [worse if now else near for _, now in places]
    at = [_from_text(axis, bracket) for bracket, _ in places]
    before = "".join(f"{text} {where}, and " for text, where in zip(statements[:-1], at[:-1], strict=True))
    return clause(name, f"{before}{statements[-1]}"), at[-1]


FINDING = Finding("threshold", find)
