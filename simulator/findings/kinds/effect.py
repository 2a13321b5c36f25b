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


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on how an axis changes each setting; None if only a single value was simulated."""
    axes = {**compared.scenario.sweep, **compared.scenario.compare}
    key = request.along if request.along in axes else next(iter(axes), None)
    if key is None:
        return None
    names = request.of or _USUAL[compared.kind]
    values = _values(compared, key)
    # The first value is the reference.
    rows = []
    for name in names:
        measure = compared.measure(name)
        rows += [_rows(compared, measure, key, fixed) for fixed in _fixed(compared, key)]
    changes = [entry for group in rows for entry in group]
    if not changes:
        return None
    targets: Sequence[Any] = values[1:]
    if len(values) > _MOST_VALUES + 1 and key in compared.numeric_axes:
        # The last value at which something fits; a step that does not fit cannot be run.
        fitting = [value for value in targets if any(entry["fits"] for entry in changes if entry["value"] == value)]
        targets = (fitting or targets)[-1:]
    if len(targets) > _MOST_TOLD:
        targets = _largest(targets, changes)
    sentences = [_sentence(compared, key, value, changes) for value in targets]
    texts = [sentence for sentence in sentences if sentence]
    if not texts:
        return None
    references = {entry["from_point"] for entry in changes}
    points = {entry["point"] for entry in changes} | references
    point_rows = [row for row in compared.rows if row.index in points]
    first_rows = [row for row in point_rows if row.index in references]
    reports = [row.report for row in point_rows if row.report is not None]
    measures = [for_reports(compared.measure(name), reports) for name in names]
    texts = [*unfit_references(compared, first_rows, point_rows, measures), *texts]
    # Prefer the condition shown by other findings for pictures.
    candidates = [entry for entry in changes if entry["fixed"].items() <= compared.shown_condition.items()] or changes
    # A step that does not fit explains nothing, if another does.
    candidates = [entry for entry in candidates if entry["fits"]] or candidates
    worst = max(candidates, key=lambda entry: abs(entry["change"]))
    start = next((entry["from_point"] for entry in changes if entry["point"] == worst["point"]), worst["point"])
    return FindingResult("effect", tuple(texts), {"along": key, "changes": changes}, (worst["point"], start))


def _largest(values: Sequence[Any], changes: list[dict[str, Any]]) -> list[Any]:
    """Return the axis values with the largest absolute changes, in their order."""
    most = [max((abs(entry["change"]) for entry in changes if entry["value"] == end), default=0.0) for end in values]
    indices = sorted(range(len(values)), key=lambda i: -most[i])[:_MOST_TOLD]
    return [values[i] for i in sorted(indices)]


def _values(compared: Comparison, key: str) -> Sequence[Any]:
    """Return the values of a swept or compared key, the baseline's first."""
    scenario = compared.scenario
    values = {**scenario.compare, **scenario.sweep}[key]
    first = scenario.baseline.get(key, values[0])
    return [first, *(value for value in values if value != first)]


def _beside(all_of: Sequence[Settings], key: str) -> list[Settings]:
    """Return settings (or conditions) with the axis's key removed, without repetitions."""
    without = ({k: v for k, v in setting.items() if k != key} for setting in all_of)
    return list({key_of(setting): setting for setting in without}.values())


def _fixed(compared: Comparison, key: str) -> list[Settings]:
    """Return the conditions without the axis's key: all if few, else only the condition that sentences describe."""
    fixed = _beside(compared.conditions, key)
    return fixed if len(fixed) <= _MOST_CONDITIONS else _beside([compared.shown_condition], key)


def _rows(compared: Comparison, measure: Measure, key: str, fixed: Settings) -> list[dict[str, Any]]:
    """Return each setting's relative change of a measure at each axis value, relative to the first value."""
    entries = []
    values = _values(compared, key)
    for setting in _beside(compared.settings, key):
        rows = [compared.row_of({**setting, **fixed, key: value}) for value in values]
        runs = [row for row in rows if row.report is not None]
        # Without the first value there is no reference.
        if not runs or rows[0].report is None:
            continue
        # Times of steps with different numbers of tokens are compared per token instead.
        comparable = for_reports(measure, [row.report for row in runs if row.report is not None])
        before = comparable.value(rows[0].report)
        for row, value in zip(rows[1:], values[1:], strict=True):
            after = None if row.report is None else comparable.value(row.report)
            if not before or after is None:
                continue
            entries.append(
                {
                    "setting": dict(setting), "fixed": dict(fixed), "value": value, "measure": comparable.name,
                    "before": before, "after": after, "change": after / before - 1, "point": row.index,
                    "from_point": rows[0].index, "fits": row.fits,
                }
            )  # fmt: skip
    return entries


def _sentence(compared: Comparison, key: str, value: Any, changes: list[dict[str, Any]]) -> str:
    """Return a sentence on how settings' measures change from the axis's first value to the given `value`."""
    texts: dict[str, list[str]] = {}
    entries = [entry for entry in changes if entry["value"] == value]
    # Name settings (and conditions) only if several exist, including omitted ones.
    several = [len(_beside(all_of, key)) > 1 for all_of in (compared.settings, compared.conditions)]
    # The largest change first.
    for entry in sorted(entries, key=lambda entry: -abs(entry["change"])):
        texts.setdefault(_place(compared, entry, several), []).append(_change_text(compared, entry))
    # Settings with the same text share it.
    where: dict[str, list[str]] = {}
    for name, parts in texts.items():
        where.setdefault(", ".join(parts), []).append(name)
    if not where:
        return ""
    clauses = [f"{text} {join_list(names)}".rstrip(" ,") for text, names in where.items()]
    first, at = (label(key, end) for end in (_values(compared, key)[0], value))
    # State plainly that an option has no effect, before the list of equal values.
    nothing = all(abs(entry["change"]) <= SAME for entry in entries)
    head = clause(at, f"has no effect vs {first}") if nothing else f"{at} vs {first}"
    if len(clauses) <= MOST_NAMED:
        return f"{head}: {'; '.join(clauses)}"
    # Many changes cannot be read as a list: name both ends of each measure's range.
    measures = dict.fromkeys(entry["measure"] for entry in entries)
    ranges = [_range(compared, [entry for entry in entries if entry["measure"] == name], several) for name in measures]
    return f"{head}: {'; '.join(ranges)}"


def _range(compared: Comparison, changes: list[dict[str, Any]], several: Sequence[bool]) -> str:
    """Return both ends of a measure's changes, with their settings: 'time -16 % with zero1 to 2.4x with zero3'."""
    measure = compared.measure(changes[0]["measure"])
    names: dict[str, list[str]] = {}
    for entry in sorted(changes, key=lambda entry: entry["change"]):
        text = f"{measure.sign_text(entry['after'], entry['before'])}{_lacks(entry)}"
        names.setdefault(text, []).append(_place(compared, entry, several))
    ends = [f"{text} {join_list(places)}" for text, places in names.items()]
    return f"{measure.noun} {' to '.join(dict.fromkeys((ends[0], ends[-1])))}"


def _place(compared: Comparison, entry: Mapping[str, Any], several: Sequence[bool]) -> str:
    """Return a change's setting and condition in words; `several` has a flag for each, True if it must be named."""
    parts = [f"with {compared.name(entry['setting'])}"] if several[0] else []
    parts += [f"at {compared.where(entry['fixed'])}"] if several[1] else []
    return " ".join(parts)


def _change_text(compared: Comparison, entry: Mapping[str, Any]) -> str:
    """Return a change in words: "16 % less time"."""
    return compared.measure(entry["measure"]).change_text(entry["after"], entry["before"]) + _lacks(entry)


def _lacks(entry: Mapping[str, Any]) -> str:
    return "" if entry["fits"] else " (does not fit in memory)"


FINDING = Finding("effect", find)
