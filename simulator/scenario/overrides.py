"""What `--set KEY=VALUE` changes in a scenario, before anything is checked.

Rule: VALUE is read as YAML; what is set wins over the file, also over an axis of the same key. Several values, with
commas between them, make an axis; a list in brackets is one value where the key takes lists, and makes an axis of
another key. Text that holds a comma stands in quotes. A fault in it names the option instead of a line of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.basics.document import Document, Fault, parse
from simulator.basics.errors import ScenarioError
from simulator.basics.sections import flat, overlap, varied
from simulator.scenario.answer_spec import AGAINST, BudgetSpec
from simulator.scenario.axes import KINDS, place
from simulator.scenario.key_names import keys_of, unknown_key
from simulator.scenario.plan_spec import GPUS, KEYS, PlanSpec
from simulator.scenario.records import KINDS as PLAYED
from simulator.scenario.records import axis_keys, takes_lists

# Keys of the whole scenario, of which no axis can be made.
_BUDGETS: Final = tuple(f"budget.{name}" for name in BudgetSpec.model_fields)
_PLANS: Final = (
    *(f"plan.{name}" for name in PlanSpec.model_fields),
    *(f"plan.{kind}.{name}" for kind in ("fix", "among") for name in KEYS),
    f"plan.among.{GPUS}",
)
_OF_THE_WHOLE: Final = ("name", "question", "answer", "baseline", "budget", *_BUDGETS, "plots", "plan", *_PLANS)


@dataclass(frozen=True, slots=True)
class Override:
    """One --set: the key path, and how it was written."""

    key: tuple[str, ...]
    written: str


def _path(key: str) -> tuple[str, ...] | None:
    kind, _, rest = key.partition(".")
    if kind in KINDS and (not rest or rest in axis_keys()):
        return (kind, rest) if rest else (kind,)
    if key in axis_keys() or key in _OF_THE_WHOLE:
        return tuple(key.split("."))
    return None


def apply(document: Document, wanted: Mapping[str, str]) -> tuple[Document, tuple[Override, ...], tuple[Fault, ...]]:
    """Put overrides into a document; of what is wrong with the others nothing, and a fault for each.

    Faults are a key that nothing reads, or a value that is not YAML: then the fault has the key that it is for.
    """
    if not isinstance(document.data, dict):
        return document, (), ()
    data = dict(document.data)
    applied: list[Override] = []
    faults: list[Fault] = []
    for key, text in wanted.items():
        option = f"--set {key}={text}"
        path = _path(key)
        if path is None:
            faults.append(Fault((), unknown_key(key, _known(document.data)), source=option))
            continue
        other = _other_kind(document.data, path)
        if other is not None:
            message = f"the scenario plays {PLAYED[other]} and has no {path[0]}; start from another one"
            faults.append(Fault((), message, source=option))
            continue
        try:
            several, value = _read(key, text, option)
        except ScenarioError as error:
            # A place in the text may stand between the option and what is wrong with it.
            lines = [line.removeprefix(option).partition(": ") for line in str(error).splitlines()]
            faults += [Fault(path, message, source=option + place) for place, _, message in lines]
            continue
        if several:
            path = _axis_of(data, key)
            for name in varied({key: value}):
                _drop_axes(data, name, path)
            place(data, path, value)
            applied.append(Override(path, option))
            continue
        for name, inner in flat({key: value}).items():
            at = path if name == key else tuple(name.split("."))
            _drop_axes(data, name, at)
            place(data, at, inner)
            applied.append(Override(at, option))
    if applied:
        _drop_what_has_lost_its_axis(document.data, data, wanted)
    return replace(document, data=data), tuple(applied), tuple(faults)


def _known(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that may be set in a scenario with this data."""
    played = [kind for kind in PLAYED if kind in data]
    return (*(keys_of(played[0]) if len(played) == 1 else axis_keys()), *KINDS, *_OF_THE_WHOLE)


def _read(key: str, text: str, option: str) -> tuple[bool, Any]:
    """Whether a text holds several values, which make an axis, and the value or the list of them."""
    if not text.strip():
        return False, None
    if key not in axis_keys():
        return False, parse(text, option).data
    try:
        listed = parse(f"[{text}]").data
    except ScenarioError:  # no YAML, or no values with commas between them
        return False, parse(text, option).data
    if len(listed) > 1:
        return True, listed
    value = parse(text, option).data
    return isinstance(value, list) and not takes_lists(key), value


def _axis_of(data: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Where an axis of the key stands: in the list of axes where the file has it, else in `sweep`."""
    axes = data.get("compare")
    return ("compare" if isinstance(axes, dict) and key in axes else "sweep", key)


def _drop_what_has_lost_its_axis(before: Mapping[str, Any], data: dict[str, Any], wanted: Mapping[str, str]) -> None:
    """Leave out of `answer` and `baseline` what speaks of an axis that an option took away; the rest is still meant.

    What an option says itself stays, and is refused where it cannot be meant.
    """
    compare, sweep = ({**axes} if isinstance(axes := data.get(kind), dict) else {} for kind in KINDS)
    if "baseline" not in wanted and isinstance(baseline := data.get("baseline"), dict):
        was = _axes(before, "compare")
        kept = {key: value for key, value in baseline.items() if key not in was or _has(compare, key, value)}
        data["baseline"] = kept
    if "answer" not in wanted and isinstance(asked := data.get("answer"), list):
        gone = {axis for kind in KINDS for axis in _axes(before, kind) if axis not in compare and axis not in sweep}
        data["answer"] = [one for one in asked if not _lost(one, bool(compare), bool(sweep), gone)]


def _axes(data: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    axes = data.get(kind)
    return axes if isinstance(axes, dict) else {}


def _has(compare: Mapping[str, Any], key: str, value: Any) -> bool:
    values = compare.get(key)
    return isinstance(values, list) and value in values


def _lost(asked: Any, compared: bool, swept: bool, gone: set[str]) -> bool:
    """Whether a finding needs what is compared, or swept, and that is gone."""
    name = asked.get("finding") if isinstance(asked, dict) else asked
    along = asked.get("along") if isinstance(asked, dict) else None
    needs = (name in AGAINST and not compared) or (name == "effect" and not (swept or compared))
    return bool(gone) and (needs or (along in gone and not asked.get("between")))


def _other_kind(data: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    """What the scenario plays, if a key belongs to the other of KINDS (collective, training); else None."""
    if path[0] not in PLAYED or path[0] in data:
        return None
    return next((kind for kind in PLAYED if kind in data), None)


def _drop_axes(data: dict[str, Any], key: str, but: tuple[str, ...]) -> None:
    """Remove the axes of a key, of what is in it and of what it is in, but the one that is set; it keeps its place."""
    for kind in KINDS:
        axes = data.get(kind)
        if isinstance(axes, dict):
            data[kind] = {
                k: v
                for k, v in axes.items()
                if (kind, k) == but or not any(overlap(key, str(name)) for name in varied({k: v}))
            }


def renamed(faults: Iterable[Fault], overrides: tuple[Override, ...]) -> Iterator[Fault]:
    """Let faults of what was set name the option that set it instead of a line of the file."""
    for fault in faults:
        source = next((o for o in reversed(overrides) if fault.key[: len(o.key)] == o.key), None)
        if source is None:
            yield fault
            continue
        inside = fault.key != source.key
        yield Fault(fault.key if inside else (), fault.message, source=source.written)
