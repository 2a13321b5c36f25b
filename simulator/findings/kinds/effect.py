"""How much does an axis, swept or compared, change each setting, relative to the axis's first value?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulator.findings.comparison import Comparison, Settings, key_of
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import MOST_NAMED, clause, join_list
from simulator.findings.unfit import unfit_references
from simulator.records.measures import SAME, Measure, for_reports
from simulator.records.setting_text import label
from simulator.scenario.answer_spec import FindingSpec

_USUAL: Final = {"collective": ("time",), "training": ("time",)}
# For a numeric axis with more values than this, only the last value is reported.
_MOST_VALUES: Final = 3
# With more values than this, only the largest changes are reported.
_MOST_TOLD: Final = 4
# With more conditions beside the axis than this, only the shown condition is reported.
_MOST_CONDITIONS: Final = 3


def find(compared: Comparison, asked: FindingSpec) -> FindingResult | None:
    """Return the finding on how an axis changes each setting; None if only a single value was simulated."""
    axes = {**compared.scenario.sweep, **compared.scenario.compare}
    key = asked.along if asked.along in axes else next(iter(axes), None)
    if key is None:
        return None
    names = asked.of or _USUAL[compared.kind]
    values = _values(compared, key)
    # The first value is the reference.
    rows = []
    for name in names:
        measure = compared.measure(name)
        rows += [_rows(compared, measure, key, fixed) for fixed in _fixed(compared, key)]
    changes = [one for own in rows for one in own]
    if not changes:
        return None
    told: Sequence[Any] = values[1:]
    if len(values) > _MOST_VALUES + 1 and key in compared.numeric_axes:
        # The last value at which something fits; a step that does not fit cannot be run.
        fitting = [value for value in told if any(one["fits"] for one in changes if one["value"] == value)]
        told = (fitting or told)[-1:]
    if len(told) > _MOST_TOLD:
        told = _largest(told, changes)
    sentences = [_sentence(compared, key, value, changes) for value in told]
    kept = [sentence for sentence in sentences if sentence]
    if not kept:
        return None
    references = {one["from_point"] for one in changes}
    points = {one["point"] for one in changes} | references
    told_rows = [row for row in compared.rows if row.index in points]
    first_rows = [row for row in told_rows if row.index in references]
    told_reports = [row.report for row in told_rows if row.report is not None]
    measures = [for_reports(compared.measure(name), told_reports) for name in names]
    kept = [*unfit_references(compared, first_rows, told_rows, measures), *kept]
    # Prefer the condition shown by other findings for pictures.
    shown = [one for one in changes if one["fixed"].items() <= compared.shown_condition.items()] or changes
    # A step that does not fit explains nothing, if another does.
    shown = [one for one in shown if one["fits"]] or shown
    worst = max(shown, key=lambda one: abs(one["change"]))
    start = next((one["from_point"] for one in changes if one["point"] == worst["point"]), worst["point"])
    return FindingResult("effect", tuple(kept), {"along": key, "changes": changes}, (worst["point"], start))


def _largest(values: Sequence[Any], changes: list[dict[str, Any]]) -> list[Any]:
    """Return the axis values with the largest absolute changes, in their order."""
    most = [max((abs(one["change"]) for one in changes if one["value"] == value), default=0.0) for value in values]
    chosen = sorted(range(len(values)), key=lambda i: -most[i])[:_MOST_TOLD]
    return [values[i] for i in sorted(chosen)]


def _values(compared: Comparison, key: str) -> Sequence[Any]:
    """Return the values of a swept or compared key, the baseline's first."""
    scenario = compared.scenario
    values = {**scenario.compare, **scenario.sweep}[key]
    first = scenario.baseline.get(key, values[0])
    return [first, *(value for value in values if value != first)]


def _beside(all_of: Sequence[Settings], key: str) -> list[Settings]:
    """Return settings (or conditions) with the axis's key removed, without repetitions."""
    without = ({k: v for k, v in one.items() if k != key} for one in all_of)
    return list({key_of(one): one for one in without}.values())


def _fixed(compared: Comparison, key: str) -> list[Settings]:
    """Return the conditions without the axis's key: all if few, else only the condition that sentences describe."""
    fixed = _beside(compared.conditions, key)
    return fixed if len(fixed) <= _MOST_CONDITIONS else _beside([compared.shown_condition], key)


def _rows(compared: Comparison, measure: Measure, key: str, fixed: Settings) -> list[dict[str, Any]]:
    """Return each setting's relative change of a measure at each axis value, relative to the first value."""
    found = []
    values = _values(compared, key)
    for setting in _beside(compared.settings, key):
        rows = [compared.row_of({**setting, **fixed, key: value}) for value in values]
        known = [row for row in rows if row.report is not None]
        # Without the first value there is no reference.
        if not known or rows[0].report is None:
            continue
        # Times of steps with different numbers of tokens are compared per token instead.
        own = for_reports(measure, [row.report for row in known if row.report is not None])
        before = own.value(rows[0].report)
        for row, value in zip(rows[1:], values[1:], strict=True):
            after = None if row.report is None else own.value(row.report)
            if not before or after is None:
                continue
            found.append(
                {
                    "setting": dict(setting), "fixed": dict(fixed), "value": value, "measure": own.name,
                    "before": before, "after": after, "change": after / before - 1, "point": row.index,
                    "from_point": rows[0].index, "fits": row.fits,
                }
            )  # fmt: skip
    return found


def _sentence(compared: Comparison, key: str, value: Any, changes: list[dict[str, Any]]) -> str:
    """Return a sentence on how settings' measures change from the axis's first value to the given `value`."""
    texts: dict[str, list[str]] = {}
    own = [one for one in changes if one["value"] == value]
    # Name settings (and conditions) only if several exist, including omitted ones.
    several = [len(_beside(all_of, key)) > 1 for all_of in (compared.settings, compared.conditions)]
    # The largest change first.
    for one in sorted(own, key=lambda one: -abs(one["change"])):
        texts.setdefault(_place(compared, one, several), []).append(_change_text(compared, one))
    # Settings with the same text share it.
    where: dict[str, list[str]] = {}
    for name, said in texts.items():
        where.setdefault(", ".join(said), []).append(name)
    if not where:
        return ""
    told = [f"{text} {join_list(names)}".rstrip(" ,") for text, names in where.items()]
    first, at = (label(key, one) for one in (_values(compared, key)[0], value))
    # State plainly that an option has no effect, before the list of equal values.
    nothing = all(abs(one["change"]) <= SAME for one in own)
    head = clause(at, f"has no effect vs {first}") if nothing else f"{at} vs {first}"
    if len(told) <= MOST_NAMED:
        return f"{head}: {'; '.join(told)}"
    # Many changes cannot be read as a list: name both ends of each measure's range.
    measures = dict.fromkeys(one["measure"] for one in own)
    ranges = [_range(compared, [one for one in own if one["measure"] == name], several) for name in measures]
    return f"{head}: {'; '.join(ranges)}"


def _range(compared: Comparison, changes: list[dict[str, Any]], several: Sequence[bool]) -> str:
    """Return both ends of a measure's changes, with their settings: 'time -16 % with zero1 to 2.4x with zero3'."""
    measure = compared.measure(changes[0]["measure"])
    names: dict[str, list[str]] = {}
    for one in sorted(changes, key=lambda one: one["change"]):
        text = f"{measure.sign_text(one['after'], one['before'])}{_lacks(one)}"
        names.setdefault(text, []).append(_place(compared, one, several))
    ends = [f"{text} {join_list(own)}" for text, own in names.items()]
    return f"{measure.noun} {' to '.join(dict.fromkeys((ends[0], ends[-1])))}"


def _place(compared: Comparison, one: Mapping[str, Any], several: Sequence[bool]) -> str:
    """Return a change's setting and condition in words; `several` has a flag for each, True if it must be named."""
    parts = [f"with {compared.name(one['setting'])}"] if several[0] else []
    parts += [f"at {compared.where(one['fixed'])}"] if several[1] else []
    return " ".join(parts)


def _change_text(compared: Comparison, one: Mapping[str, Any]) -> str:
    """Return a change in words: "16 % less time"."""
    return compared.measure(one["measure"]).change_text(one["after"], one["before"]) + _lacks(one)


def _lacks(one: Mapping[str, Any]) -> str:
    return "" if one["fits"] else " (does not fit in memory)"


FINDING = Finding("effect", find)
