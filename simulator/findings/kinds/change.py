"""How does each setting differ from the baseline, under the shown condition and over every condition?"""

from __future__ import annotations

from typing import Any

from simulator.findings.comparison import Comparison, Row
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import join_list, joined
from simulator.records.measures import SAME, Measure, for_reports
from simulator.records.setting_text import labelled
from simulator.scenario.answer_spec import FindingSpec

_USUAL = {"collective": ("time",), "training": ("time", "memory")}
# From this many settings on, changes in several measures become a list whose head names the measures.
_LIST = 3
# A change that varies by less than this over the conditions is reported for the shown condition alone.
_ALIKE = 0.05


def find(compared: Comparison, asked: FindingSpec) -> FindingResult | None:
    """Report changes from the baseline; None if fewer than two settings were simulated."""
    condition = compared.shown_condition
    rows = compared.under(condition)
    first = next((row for row in rows if row.setting == compared.settings[0]), None)
    others = [row for row in rows if row is not first]
    if first is None or first.report is None or not others:
        return None
    reports = [row.report for row in rows if row.report is not None]
    names = asked.of or _USUAL[compared.kind]
    # Times of steps with different numbers of tokens are compared per token instead (for_reports).
    wanted = list(dict.fromkeys(for_reports(compared.measure(name), reports) for name in names))
    # Comparing needs a value in every report.
    told = [measure for measure in wanted if all(measure.value(report) is not None for report in reports)]
    if not told:
        return None
    as_list = len(told) > 1 and len(others) >= _LIST
    changes = [(compared.name(row.setting), _changes(first, row, told, as_list=as_list)) for row in others]
    values = join_list([measure.text(measure.value(first.report) or 0.0) for measure in told])
    where = labelled(condition)
    place = f" at {where}" if where else ""
    fits = "" if first.fits else ", which does not fit"
    head = f", {join_list([measure.noun for measure in told])} change" if as_list else ""
    sentences = [f"Against {compared.name(first.setting)}{place} ({values}{fits}){head}: {joined(changes)}"]
    if len(compared.conditions) > 1:
        # State the range of the first measure; mention another measure only if its change has both signs.
        texts = (_over_conditions(compared, measure, flips=measure is not told[0]) for measure in told)
        sentences += [text for text in texts if text]
    numbers = {
        "baseline": dict(first.setting),
        "condition": dict(condition),
        "changes": [_numbers(first, row, told) for row in rows],
        "conditions": len(compared.conditions),
        "over_all": [row for measure in told for row in _ranges(compared, measure)],
    }
    return FindingResult("change", tuple(sentences), numbers, _spoken(rows, first, told[0]))


def _spoken(rows: tuple[Row, ...], first: Row, measure: Measure) -> tuple[int, ...]:
    """Return the best point that fits, the baseline, and the worst."""
    fitting = [row for row in rows if row.fits] or list(rows)
    # Sort the best first, whether small or large values are good.
    sign = 1 if measure.best == "least" else -1
    ordered = sorted(fitting, key=lambda row: sign * (measure.value(row.report or {}) or 0.0))
    return tuple(dict.fromkeys((ordered[0].index, first.index, ordered[-1].index)))


def _changes(first: Row, row: Row, told: list[Measure], *, as_list: bool) -> str:
    """Write a setting's changes in every measure."""
    before, after = first.report or {}, row.report or {}
    texts = [
        (measure.sign_text if as_list else measure.change_text)(
            measure.value(after) or 0.0, measure.value(before) or 0.0
        )
        for measure in told
    ]
    lacks = "" if row.fits else ", and does not fit"
    return join_list(texts) + lacks


def _numbers(first: Row, row: Row, told: list[Measure]) -> dict[str, Any]:
    """Return a setting's values and changes as plain data."""
    return {
        "setting": dict(row.setting),
        "point": row.index,
        "fits": row.fits,
        **{measure.name: measure.value(row.report or {}) for measure in told},
        **{f"{measure.name}_change": _change(first, row, measure) for measure in told},
    }


def _change(first: Row, row: Row, measure: Measure) -> float | None:
    """Return the relative change of a measure; None if a value is missing or the baseline is 0."""
    before, after = measure.value(first.report or {}), measure.value(row.report or {})
    return after / before - 1 if before and after is not None else None


def _ranges(compared: Comparison, measure: Measure) -> list[dict[str, Any]]:
    """Return each setting's smallest and largest change over the conditions."""
    ranges = []
    for setting in compared.settings[1:]:
        found = []
        for condition in compared.conditions:
            first, row = compared.row(compared.settings[0], condition), compared.row(setting, condition)
            # A point that does not fit has no real speed.
            change = _change(first, row, measure) if first.fits and row.fits else None
            found += [(change, condition)] if change is not None else []
        if found:
            least, most = min(found, key=lambda one: one[0]), max(found, key=lambda one: one[0])
            ranges.append(
                {
                    "setting": dict(setting), "measure": measure.name,
                    "least": least[0], "least_at": dict(least[1]), "most": most[0], "most_at": dict(most[1]),
                }
            )  # fmt: skip
    return ranges


def _over_conditions(compared: Comparison, measure: Measure, *, flips: bool) -> str:
    """Write the ranges of changes that vary over the conditions; with `flips`, only ranges with both signs."""
    texts = []
    for one in _ranges(compared, measure):
        apart = one["most"] - one["least"] > _ALIKE
        if apart and (not flips or _sign(one["least"]) != _sign(one["most"])):
            ends = [
                f"{measure.change_text(1 + one[end], 1.0)} ({labelled(one[f'{end}_at'])})" for end in ("least", "most")
            ]
            texts.append((compared.name(one["setting"]), " to ".join(ends)))
    # "both" reads better than "all 2".
    several = "both" if len(compared.conditions) == 2 else f"all {len(compared.conditions)}"
    return f"Over {several} conditions: {joined(texts)}" if texts else ""


def _sign(change: float) -> int:
    """Return -1, 0 or 1; changes too small to be written count as 0."""
    return (change > SAME) - (change < -SAME)


FINDING = Finding("change", find)
