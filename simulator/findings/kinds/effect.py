"""How much does one axis, swept or compared, change each setting, against the first value of the axis?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from simulator.findings.comparison import Comparison, Settings, key_of
from simulator.findings.found import Finding, Found
from simulator.findings.words import listed
from simulator.records.measures import SAME, Measure, for_reports
from simulator.records.setting_text import label, labelled
from simulator.scenario.answer_spec import FindingSpec

_USUAL: Final = {"collective": ("time",), "training": ("time",)}
# Of a numeric axis with more values than this only the last is told.
_MOST_VALUES: Final = 3
# Of more values than these those are told that change most.
_MOST_TOLD: Final = 4
# More conditions beside the axis than these are told for the shown one alone.
_MOST_CONDITIONS: Final = 3


def find(compared: Comparison, asked: FindingSpec) -> Found | None:
    """Tell the effect of an axis; None where it has one value that was played."""
    axes = {**compared.scenario.sweep, **compared.scenario.compare}
    key = asked.along if asked.along in axes else next(iter(axes), None)
    if key is None:
        return None
    names = asked.of or _USUAL[compared.kind]
    values = _values(compared, key)
    told: Sequence[Any] = (
        values[1:] if len(values) <= _MOST_VALUES + 1 or key not in compared.numeric_axes else values[-1:]
    )
    rows = []
    for name in names:
        measure = compared.measure(name)
        rows += [_rows(compared, measure, key, fixed) for fixed in _fixed(compared, key)]
    changes = [one for own in rows for one in own]
    if not changes:
        return None
    if len(told) > _MOST_TOLD:
        told = _largest(told, changes)
    sentences = [_sentence(compared, key, value, changes) for value in told]
    kept = [sentence for sentence in sentences if sentence]
    if not kept:
        return None
    # The picture is of the condition that other findings show too, where there is a choice.
    shown = [one for one in changes if one["fixed"].items() <= compared.shown_condition.items()] or changes
    worst = max(shown, key=lambda one: abs(one["change"]))
    start = next((one["from_point"] for one in changes if one["point"] == worst["point"]), worst["point"])
    return Found("effect", tuple(kept), {"along": key, "changes": changes}, (worst["point"], start))


def _largest(values: Sequence[Any], changes: list[dict[str, Any]]) -> list[Any]:
    """The values that change most, in their order."""
    most = [max((abs(one["change"]) for one in changes if one["value"] == value), default=0.0) for value in values]
    chosen = sorted(range(len(values)), key=lambda i: -most[i])[:_MOST_TOLD]
    return [values[i] for i in sorted(chosen)]


def _values(compared: Comparison, key: str) -> Sequence[Any]:
    """The values of an axis, that of the baseline first."""
    scenario = compared.scenario
    values = {**scenario.compare, **scenario.sweep}[key]
    first = scenario.baseline.get(key, values[0])
    return [first, *(value for value in values if value != first)]


def _beside(all_of: Sequence[Settings], key: str) -> list[Settings]:
    """Settings, or conditions, without what the axis says of them, each once."""
    without = ({k: v for k, v in one.items() if k != key} for one in all_of)
    return list({key_of(one): one for one in without}.values())


def _fixed(compared: Comparison, key: str) -> list[Settings]:
    """Conditions beside the axis: all of few, of many the shown one."""
    fixed = _beside(compared.conditions, key)
    return fixed if len(fixed) <= _MOST_CONDITIONS else _beside([compared.shown_condition], key)


def _rows(compared: Comparison, measure: Measure, key: str, fixed: Settings) -> list[dict[str, Any]]:
    """Each setting's change at each value against the first."""
    found = []
    values = _values(compared, key)
    for setting in _beside(compared.settings, key):
        rows = [compared.row_of({**setting, **fixed, key: value}) for value in values]
        known = [row for row in rows if row.report is not None]
        if not known or rows[0].report is None:
            continue
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
    texts: dict[str, list[str]] = {}
    own = [one for one in changes if one["value"] == value]
    # Both are told where there are several, also of those that are left out.
    several = [len(_beside(all_of, key)) > 1 for all_of in (compared.settings, compared.conditions)]
    # Who is changed most stands first.
    for one in sorted(own, key=lambda one: -abs(one["change"])):
        parts = [f"with {compared.name(one['setting'])}"] if several[0] else []
        parts += [f"at {labelled(one['fixed'])}"] if several[1] else []
        measure = compared.measure(one["measure"])
        lacks = "" if one["fits"] else ", which does not fit,"
        texts.setdefault(" ".join(parts), []).append(measure.change_text(one["after"], one["before"]) + lacks)
    where: dict[str, list[str]] = {}
    for name, said in texts.items():
        where.setdefault(", ".join(said), []).append(name)
    if not where:
        return ""
    told = (f"{text} {listed(names)}".rstrip(" ,") for text, names in where.items())
    first, at = (label(key, one) for one in (_values(compared, key)[0], value))
    nothing = " changes nothing" if all(abs(one["change"]) <= SAME for one in own) else ""
    return f"{at}{nothing} against {first}: {'; '.join(told)}"


FINDING = Finding("effect", find)
