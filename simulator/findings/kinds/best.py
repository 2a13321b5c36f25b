"""Which setting is best under which condition, by how much, and at which value does the lead change?

Example with 3 conditions (rows sorted by time, the winner first):

    64 KiB   naive 1.0  ring 1.2     naive wins, ahead of the next by 1.2x
    1 MiB    ring 1.0   naive 1.4    ring wins      -> crossover between 64 KiB and 1 MiB, found by further points
    16 MiB   ring 1.0   naive 9.0    ring wins

Settings within the prediction's uncertainty tie with the winner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from simulator.basics.counts import number_of
from simulator.findings.axis_search import Bracket
from simulator.findings.comparison import Comparison, Row, Settings, amount, key_of
from simulator.findings.crossovers import Axis, axis_of, changes
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import (
    MOST_NAMED,
    bracket_text,
    bracketed,
    clause,
    clauses,
    ends_text,
    join_list,
    joined,
    short_list,
)
from simulator.records.measures import Measure, Report, factor_text, for_reports, percent_text
from simulator.records.memory_margin import margin_of
from simulator.scenario.answer_spec import FindingSpec

_USUAL: Final = {"collective": "time", "training": "time"}
# Values that differ by less than this share are equal: the engine's precision against closed forms.
_EQUAL: Final = 1e-9
# Conditions with a single fitting setting that are told.
_MOST_LONE: Final = 3
# Conditions named in a list; of more conditions, the sentence has the number.
_MOST_CONDITIONS: Final = 2


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on the best setting under each condition; None if no condition has two comparable settings."""
    reports = [row.report for row in compared.rows if row.fits and row.report is not None]
    measure = for_reports(compared.measure(request.of[0] if request.of else _USUAL[compared.kind]), reports)
    every = [(condition, _contest(compared, condition, measure)) for condition in compared.conditions]
    # A condition with a single comparable setting has no winner.
    contests = [(condition, rows) for condition, rows in every if len(rows) > 1]
    lone = [(condition, rows[0]) for condition, rows in every if len(rows) == 1 and len(compared.settings) > 1]
    if not contests:
        return _only_lone(compared, measure, lone) if lone and not compared.numeric_axes else None
    crossings = [crossing for key in compared.numeric_axes for crossing in _crossings(compared, measure, contests, key)]
    numbers: dict[str, Any] = {
        "measure": measure.name,
        "places": [_place(measure, condition, rows) for condition, rows in contests],
        "crossings": crossings,
        **_counts(compared, measure, contests),
    }
    rows = _main_contest(compared, measure, contests)
    if len(contests) == 1:
        where = compared.where(contests[0][0]) if len(compared.conditions) > 1 else ""
        verdict = (f"With {where}, " if where else "") + _single_contest(compared, measure, rows)
    else:
        verdict = _over_all(compared, measure, contests)
    sentences = [verdict + _failures(compared), *_lead_changes(compared, measure, crossings)]
    # The winner, the baseline and the worst.
    spoken = [rows[0].index, *(row.index for row in rows if row.setting == compared.settings[0]), rows[-1].index]
    if lone:
        ordered = sorted(lone, key=lambda pair: measure.rank(pair[1].report or {}))
        texts = [_without_rival(compared, measure, condition, row) for condition, row in ordered[:_MOST_LONE]]
        first = ordered[0][1]
        # A setting without a rival may be faster than the winner of every contest: its sentence comes first. Along
        # numbers (of GPUs, of bytes) conditions are no rivals.
        leads = not compared.numeric_axes and measure.better(_value(measure, first), _value(measure, rows[0]))
        sentences = [*texts, *sentences] if leads else [*sentences, *texts]
        if leads:
            spoken.insert(0, first.index)
    return FindingResult("best", tuple(sentences), numbers, tuple(dict.fromkeys(spoken)))


def _main_contest(compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, list[Row]]]) -> list[Row]:
    """Return the points, best first, under the condition of pictures and of the reason: the shown condition, unless all
    settings tie there and not elsewhere; else the last condition with a winner.
    """
    won = [pair for pair in contests if not _all_tied(measure, pair[1])] or contests
    return next((rows for condition, rows in won if condition == compared.shown_condition), won[-1][1])


def _only_lone(compared: Comparison, measure: Measure, lone: Sequence[tuple[Settings, Row]]) -> FindingResult | None:
    """Return the finding for conditions in each of which a single setting fits, the best first."""
    ordered = sorted(lone, key=lambda pair: measure.rank(pair[1].report or {}))
    sentences = [_without_rival(compared, measure, condition, row) for condition, row in ordered[:_MOST_LONE]]
    places = [{"condition": dict(condition), "point": row.index} for condition, row in ordered]
    numbers = {"measure": measure.name, "places": [], "crossings": [], "alone": places}
    return FindingResult("best", tuple(sentences), numbers, tuple(row.index for _, row in ordered))


def _without_rival(compared: Comparison, measure: Measure, condition: Settings, row: Row) -> str:
    """Return a sentence on a condition in which a single setting fits: 'With offload none, only ... fits: 3.7 s'."""
    failed = any(other.report is None for other in compared.under(condition))
    verb = "can be simulated" if failed else "fits"
    text = f"{clause(compared.name(row.setting), verb)}: {measure.text(_value(measure, row))}"
    where = compared.where(condition)
    return f"With {where}, only {text}" if where else f"Only {text}"


def _counts(
    compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]
) -> dict[str, Any]:
    """Return the counts of conditions won by each setting, ties, points without enough memory, and failed points."""
    wins: dict[str, int] = {}
    for _, rows in contests:
        if not _all_tied(measure, rows):
            name = join_list(_leading(compared, measure, rows))
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
    """Return a condition's points that fit in memory and have a value of the measure, the best first."""
    rows = [row for row in compared.under(condition) if row.fits and measure.value(row.report or {}) is not None]
    return sorted(rows, key=lambda row: measure.rank(row.report or {}))


def _value(measure: Measure, row: Row) -> float:
    """Return a point's value of the measure, 0 if the value is missing."""
    report: Report = row.report or {}
    return measure.value(report) or 0.0


def _ratio(measure: Measure, best: Row, other: Row) -> float:
    """Return how many times worse another point's value is than the best's: 1 if equal, infinite if one is 0."""
    first, second = _value(measure, best), _value(measure, other)
    # Also covers two zeros, whose ratio is undefined.
    if first == second:
        return 1.0
    return (second / first if measure.best == "least" else first / second) if first and second else math.inf


def _equals(measure: Measure, rows: Sequence[Row]) -> list[Row]:
    """Return the best point, which is first in `rows`, and the points with the same value of the measure."""
    return [row for row in rows if _ratio(measure, rows[0], row) - 1 <= _EQUAL]


def _leaders(measure: Measure, rows: Sequence[Row]) -> list[Row]:
    """Return the best point, which is first in `rows`, and the points tied with it."""
    equal = _equals(measure, rows)
    return [row for row in rows if row in equal or measure.tied(rows[0].report or {}, row.report or {})]


def _behind(measure: Measure, rows: Sequence[Row]) -> list[Row]:
    """Return the points that are not tied with the best, which is first in `rows`."""
    leaders = _leaders(measure, rows)
    return [row for row in rows if row not in leaders]


def _leading(compared: Comparison, measure: Measure, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the names of the settings that lead or tie, from points sorted best first."""
    return tuple(compared.name(row.setting) for row in _leaders(measure, rows))


def _uncertainty(measure: Measure, rows: Sequence[Row]) -> float:
    """Return the largest uncertainty of the best point, which is first in `rows`, and the points tied with it."""
    return measure.uncertainty(*(row.report or {} for row in _leaders(measure, rows)))


def _all_tied(measure: Measure, rows: Sequence[Row]) -> bool:
    """Return True if every point is tied with the best point, which is first in `rows`."""
    return len(_leaders(measure, rows)) == len(rows)


def _ahead(measure: Measure, rows: Sequence[Row]) -> float:
    """Return how many times worse the first point that is not tied is than the best; `rows` come best first."""
    return _ratio(measure, rows[0], _behind(measure, rows)[0])


def _factor(ratio: float) -> str:
    """Format a ratio, '1.2x', also an infinite ratio."""
    return factor_text(ratio) if math.isfinite(ratio) else "an infinite factor (the best value is 0)"


def _place(measure: Measure, condition: Settings, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a condition's winner, ties and order of settings as plain data; `rows` come best first."""
    return {
        "condition": dict(condition),
        "winner": dict(rows[0].setting),
        "tied": _all_tied(measure, rows),
        # "Equal" is a statement about the simulation, "tied" about the real machine.
        "equal_to_winner": [dict(row.setting) for row in _equals(measure, rows)[1:]],
        "tied_with_winner": [dict(row.setting) for row in _leaders(measure, rows)[1:]],
        "value": _value(measure, rows[0]),
        "uncertainty": _uncertainty(measure, rows),
        "point": rows[0].index,
        "others": [
            {
                "setting": dict(row.setting),
                "value": _value(measure, row),
                "factor": _finite(_ratio(measure, rows[0], row)),
                **({"difference": _value(measure, row) - _value(measure, rows[0])} if measure.is_share else {}),
            }
            for row in rows[1:]
        ],
    }


def _finite(ratio: float) -> float | None:
    """Return a ratio, or None in place of infinity, which JSON lacks."""
    return ratio if math.isfinite(ratio) else None


def _single_contest(compared: Comparison, measure: Measure, rows: Sequence[Row]) -> str:
    """Return a sentence for a single condition: the best setting, its ties, and how far other settings are behind."""
    equal, leaders, value = _equals(measure, rows), _leaders(measure, rows), _value(measure, rows[0])
    if len(equal) == len(rows):
        return f"all {len(rows)} settings have {measure.text(value)}"
    names = short_list([compared.name(row.setting) for row in equal], "setting")
    # The best three settings are named, with their ties, and the last.
    tied = _changes(compared, measure, leaders[len(equal) :], value, most=1)
    behind = _changes(compared, measure, _behind(measure, rows), value, most=max(1, MOST_NAMED - len(leaders)))
    best = clause(names, _is_best(measure, measure.amount_text(value)))
    if not tied:
        return f"{best}; next: {behind}"
    within = f"tied within the uncertainty of ±{percent_text(_uncertainty(measure, rows))}"
    return f"{best}; {within}: {tied}{f'; next: {behind}' if behind else ''}"


def _is_best(measure: Measure, value: str = "") -> str:
    """Return the predicate of the best setting: 'is fastest with 3 ms', 'has the lowest idle time (15.4 %)'."""
    if measure.superlative == "fastest":
        return f"is fastest{f' with {value}' if value else ''}"
    return f"has the {measure.superlative} {measure.noun}{f' ({value})' if value else ''}"


def _changes(compared: Comparison, measure: Measure, rows: Sequence[Row], best: float, most: int) -> str:
    """Return a text with settings' values and distances from the best; of many, the first `most` and the last."""
    others: list[tuple[str, str]] = []
    for row in rows:
        value = _value(measure, row)
        change = measure.change_text(value, best)
        if measure.is_share:
            # "59 % more" of a share would be mistaken for a share of the step.
            change = f"{100 * abs(value - best):.1f} points {'more' if value > best else 'less'}"
        # Only the first change names the measure.
        short = change.removesuffix(f" the {measure.noun}").removesuffix(f" {measure.noun}") if others else change
        others.append((compared.name(row.setting), f"{measure.amount_text(value)} ({short})"))
    # Hiding a single setting would save nothing, hence the + 2.
    listed = others if len(others) <= most + 2 else [*others[:most], others[-1]]
    hidden = len(others) - len(listed)
    omitted = f" ({hidden} settings in between omitted)" if hidden else ""
    return f"{joined(listed, ' with ')}{omitted}"


def _over_all(compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]) -> str:
    """Return a sentence over several conditions: how many each setting wins, and by how much over the next."""
    wins: dict[tuple[str, ...], list[tuple[float, Settings]]] = {}
    ties: list[Settings] = []
    # Conditions in which every setting has the same value, e.g. because a link limits all.
    exact: list[Settings] = []
    for condition, rows in contests:
        if len(_equals(measure, rows)) == len(rows):
            exact.append(condition)
        elif _all_tied(measure, rows):
            ties.append(condition)
        else:
            wins.setdefault(_leading(compared, measure, rows), []).append((_ahead(measure, rows), condition))
    total = len(contests)
    if len(exact) == total:
        return f"all settings have the same {measure.noun} under all {total} conditions"
    if not wins:
        return _tie(compared, measure, contests)
    order = sorted(wins, key=lambda names: -len(wins[names]))
    # A single winner everywhere: the range of its lead says more than counts.
    if len(order) == 1 and len(wins[order[0]]) == total > 1:
        least, most = min(wins[order[0]], key=lambda win: win[0]), max(wins[order[0]], key=lambda win: win[0])
        ends = [(_factor(ratio), compared.where(where)) for ratio, where in (least, most)]
        lead = f"{ends[0][0]} ({ends[0][1]}) to {ends[1][0]} ({ends[1][1]})" if ends[0][0] != ends[1][0] else ends[0][0]
        best = clause(short_list(order[0], "setting"), _is_best(measure))
        several = "both conditions" if total == 2 else f"all {total} conditions"
        return f"{best} under {several}, ahead of the runner-up by {lead}"
    parts = []
    # Hiding a single setting would save nothing, hence the + 1.
    listed = order if len(order) <= MOST_NAMED + 1 else order[:MOST_NAMED]
    for names in listed:
        ratio, where = max(wins[names], key=lambda win: win[0])
        best = clause(short_list(names, "setting"), _is_best(measure))
        ahead = ", ahead of the runner-up by" if names == order[0] else ", by"
        if len(wins[names]) == 1:
            parts.append(f"{best} with {compared.where(where)}{ahead} {_factor(ratio)}")
            continue
        count = f"in {len(wins[names])}{f' of {total}' if names == order[0] else ''} conditions"
        parts.append(f"{best} {count}{ahead} up to {_factor(ratio)} ({compared.where(where)})")
    if len(listed) < len(order):
        parts.append(f"other settings are best in {sum(len(wins[names]) for names in order[len(listed) :])} conditions")
    if exact:
        parts.append(f"all settings are equal {_conditions(compared, exact)}")
    if ties:
        parts.append(f"all settings tie {_conditions(compared, ties)}, within {_margin(measure, contests)}")
    return "; ".join(parts)


def _conditions(compared: Comparison, conditions: Sequence[Settings]) -> str:
    """Return conditions in words, 'with 8 GPUs'; of many, the number: 'in 5 conditions'."""
    if len(conditions) > _MOST_CONDITIONS:
        return f"in {number_of(len(conditions), 'condition')}"
    return " and ".join(f"with {compared.where(condition)}" for condition in conditions)


def _tie(compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]) -> str:
    """Return a sentence for a tie under every condition, with the largest difference."""
    condition, rows = max(contests, key=lambda pair: _ratio(measure, pair[1][0], pair[1][-1]))
    most = f"{percent_text(_ratio(measure, rows[0], rows[-1]) - 1)} ({compared.where(condition)})"
    names = list(dict.fromkeys(compared.name(row.setting) for _, contest in contests for row in contest))
    who = join_list(names) if len(names) <= MOST_NAMED else f"all {len(names)} settings"
    return f"{who} tie in {measure.noun}: they differ by at most {most}, within {_margin(measure, contests)}"


def _margin(measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]]) -> str:
    """Format the largest uncertainty of winners and points tied with them: 'the uncertainty of ±5 %'."""
    widest = max(_uncertainty(measure, rows) for _, rows in contests)
    return f"the uncertainty of ±{percent_text(widest)}"


def _failures(compared: Comparison) -> str:
    """Return the end of a sentence on how many points do not fit in memory or failed; "" if none."""
    failed = sum(row.report is None for row in compared.rows)
    lacking = [row for row in compared.rows if row.report is not None and not row.fits]
    parts = [_short_text(compared, lacking)] if lacking else []
    parts += [f"{failed} of {len(compared.rows)} points failed"] if failed else []
    return "".join(f"; {part}" for part in parts)


def _short_text(compared: Comparison, lacking: Sequence[Row]) -> str:
    """Return a text on points that do not fit in memory: by how much, or the number of several conditions' points."""
    if len(lacking) <= MOST_NAMED and len(compared.conditions) == 1:
        return clauses([(compared.place(row), margin_of(row.report or {}).verdict) for row in lacking])
    short = len(lacking)
    verb = "does" if short == 1 else "do"
    return f"{short} of {len(compared.rows)} points {verb} not fit in memory{_where_lost(compared, short)}"


def _where_lost(compared: Comparison, short: int) -> str:
    """Return the conditions to which all `short` points without enough memory belong, if no setting fits there."""
    lost = [condition for condition in compared.conditions if not any(row.fits for row in compared.under(condition))]
    if len(compared.settings) < 2 or sum(len(compared.under(condition)) for condition in lost) != short:
        return ""
    return f" (all settings with {short_list([compared.where(condition) for condition in lost], 'condition')})"


def _crossings(
    compared: Comparison, measure: Measure, contests: Sequence[tuple[Settings, Sequence[Row]]], key: str
) -> list[dict[str, Any]]:
    """Return the crossovers between best settings along the axis `key`, with every other swept key fixed."""
    axis = axis_of(compared, key, None)
    if axis is None:
        return []
    # Group the conditions into lines along the axis: with sizes and workers swept, a line per number of workers.
    lines: dict[str, list[tuple[Settings, Sequence[Row]]]] = {}
    for condition, rows in contests:
        lines.setdefault(key_of({k: v for k, v in condition.items() if k != key}), []).append((condition, rows))
    crossings = []
    for line in lines.values():
        line.sort(key=lambda place: amount(place[0][key]) or 0)
        fixed = {k: v for k, v in line[0][0].items() if k != key}
        for (low, low_rows), (high, high_rows) in pairwise(line):
            before, after = low_rows[0].setting, high_rows[0].setting
            leaders = [[row.setting for row in _leaders(measure, rows)] for rows in (low_rows, high_rows)]
            # A setting that leads at both ends: the lead does not change (ties included). A leader that does not fit at
            # the other end was not overtaken: memory ends its lead, which another sentence tells.
            if any(setting in leaders[1] for setting in leaders[0]) or before not in [row.setting for row in high_rows]:
                continue
            # Search only between the two neighbouring conditions.
            section = Axis(key, tuple(n for n in axis.numbers if _between(compared, key, low, n, high)))
            places = changes(compared, measure, (before, after), section, fixed)
            # Take the place from which on the old leader is worse.
            bracket = next((bracket for bracket, worse in places if worse), None)
            crossings.append({"along": key, "fixed": fixed, "before": dict(before), "after": dict(after)})
            crossings[-1] |= _bracketed(compared, measure, after, section, fixed, bracket)
    return crossings


def _bracketed(
    compared: Comparison, measure: Measure, after: Settings, section: Axis, fixed: Settings, bracket: Bracket | None
) -> dict[str, Any]:
    """Return plain data for a crossover: the place (None without a bracket), and the new leader's value there."""
    if bracket is None:
        return {"at": None, "exact": False, "value": None, "from": section.numbers[0], "to": section.numbers[-1]}
    report = compared.known({**after, **fixed, **section.settings(bracket.high)})
    value = None if report is None else measure.value(report)
    # Both settings have nearly the same value at the crossover; report the new leader's.
    return bracketed(bracket) | {"value": value}


def _between(compared: Comparison, key: str, low: Settings, number: int, high: Settings) -> bool:
    """Return True if a number lies between two conditions' values of the key."""
    return (amount(low[key]) or 0) <= number <= (amount(high[key]) or 0)


def _lead_changes(compared: Comparison, measure: Measure, crossings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences with the crossovers of each pair of settings, along the main axis."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for place in crossings:
        groups.setdefault((place["along"], key_of(place["before"]), key_of(place["after"])), []).append(place)
    # Prefer array sizes: along workers, the same changes would be reported a second time.
    along = {key for key, _, _ in groups}
    main_key = next((key for key in ("collective.size", *along) if key in along), None)
    sentences = []
    for (key, _, _), places in groups.items():
        if key != main_key:
            continue
        texts = [_where(compared, place) for place in places]
        first, others = _shown_first(compared, places, texts)
        before, after = compared.name(places[0]["before"]), compared.name(places[0]["after"])
        # "beats" means faster; other measures are named.
        measured = "" if measure.superlative == "fastest" else f" in {measure.noun}"
        # A place known to 2 % is a limit; an exact place is the first value at which the new leader is ahead.
        start = "above" if all(place["at"] is not None and not place["exact"] for place in places) else "from"
        rest = f"; {join_list([f'{start} {other}' for other in others])}" if others else ""
        left = len(places) - 1 - len(others)
        rest += f" ({number_of(left, 'condition')} in between omitted)" if left else ""
        sentences.append(f"Crossover: {after} beats {before}{measured} {start} {first}{rest}")
    return sentences


def _where(compared: Comparison, place: Mapping[str, Any]) -> tuple[str, str]:
    """Return two texts, for a crossover's place and for the fixed conditions."""
    at = bracket_text(place["along"], place)
    return at, compared.where(place["fixed"])


def _shown_first(
    compared: Comparison, places: Sequence[Mapping[str, Any]], texts: Sequence[tuple[str, str]]
) -> tuple[str, list[str]]:
    """Return the text of the crossover at the scenario's own settings, and the texts of the first and last others.

    The first text names the two simulated points on either side of the crossover.
    """
    gpus = {"cluster.world_size": compared.scenario.cluster.world_size}
    number = next((i for i, place in enumerate(places) if place["fixed"] and place["fixed"].items() <= gpus.items()), 0)
    written = [f"{at} with {fixed}" if fixed else at for at, fixed in texts]
    others = [text for i, text in enumerate(written) if i != number]
    first = written[number] + ends_text(places[number]["along"], places[number])
    return first, others if len(others) <= 2 else [others[0], others[-1]]


FINDING = Finding("best", find)
