"""How much does what is swept change each setting, against the first value of the axis?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from simulator.findings.comparison import Comparison, Settings, key_of
from simulator.findings.found import Finding, Found
from simulator.findings.words import condition_text, listed, place
from simulator.report.numbers.measures import Measure, for_reports
from simulator.scenario.records import Asked

_USUAL: Final = {"collective": ("time",), "training": ("time",)}
# Of a numeric axis with more values than this only the last is told.
_MOST_VALUES: Final = 3
# Of more values than these those are told that change most.
_MOST_TOLD: Final = 4
# More conditions beside the axis than these are told for the shown one alone.
_MOST_CONDITIONS: Final = 3


def find(compared: Comparison, asked: Asked) -> Found | None:
    """Tell the effect of an axis; None where it has one value that was played."""
    key = asked.along if asked.along in compared.scenario.sweep else next(iter(compared.scenario.sweep), None)
    if key is None:
        return None
    names = asked.of or _USUAL[compared.kind]
    values = compared.scenario.sweep[key]
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
    worst = max(changes, key=lambda one: abs(one["change"]))
    start = next((one["from_point"] for one in changes if one["point"] == worst["point"]), worst["point"])
    return Found("effect", tuple(kept), {"along": key, "changes": changes}, (worst["point"], start))


def _largest(values: Sequence[Any], changes: list[dict[str, Any]]) -> list[Any]:
    """The values that change most, in their order."""
    most = [max((abs(one["change"]) for one in changes if one["value"] == value), default=0.0) for value in values]
    chosen = sorted(range(len(values)), key=lambda i: -most[i])[:_MOST_TOLD]
    return [values[i] for i in sorted(chosen)]


def _fixed(compared: Comparison, key: str) -> list[Settings]:
    """Conditions beside the axis: all of few, of many the shown one."""
    without = ({k: v for k, v in condition.items() if k != key} for condition in compared.conditions)
    fixed: list[Settings] = list({key_of(one): one for one in without}.values())
    if len(fixed) <= _MOST_CONDITIONS:
        return fixed
    return [{k: v for k, v in compared.shown_condition.items() if k != key}]


def _rows(compared: Comparison, measure: Measure, key: str, fixed: Settings) -> list[dict[str, Any]]:
    """Each setting's change at each value against the first."""
    found = []
    values = compared.scenario.sweep[key]
    order = list(compared.scenario.sweep)
    for setting in compared.settings:
        places = [{k: v for k in order for v in [({**fixed, key: value})[k]]} for value in values]
        rows = [compared.row(setting, where) for where in places]
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
    # Who is changed most stands first.
    for one in sorted(changes, key=lambda one: -abs(one["change"])):
        if one["value"] != value:
            continue
        # The condition is told where there are several, also of those that are left out.
        several = len({key_of({k: v for k, v in c.items() if k != key}) for c in compared.conditions}) > 1
        parts = [f"with {compared.name(one['setting'])}"] if len(compared.settings) > 1 else []
        parts += [f"at {condition_text(one['fixed'], compared.kind)}"] if several else []
        measure = compared.measure(one["measure"])
        texts.setdefault(" ".join(parts), []).append(measure.change_text(one["after"], one["before"]))
    where: dict[str, list[str]] = {}
    for name, own in texts.items():
        where.setdefault(", ".join(own), []).append(name)
    if not where:
        return ""
    told = (f"{text} {listed(names)}".rstrip() for text, names in where.items())
    first, at = (place(key, one, compared.kind) for one in (compared.scenario.sweep[key][0], value))
    return f"{at} against {first}: {'; '.join(told)}"


FINDING = Finding("effect", find)
