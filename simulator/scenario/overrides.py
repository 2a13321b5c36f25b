"""Which values does `--set KEY=VALUE` change in a scenario? It changes the document's data, before any check.

VALUE is YAML and replaces the value in the file, also an axis over the same key. Values separated by commas make an
axis. A list in brackets is a single value for keys that take lists, and an axis for any other key. Text with a comma
needs quotes. Faults name the option instead of a line in the file.

    --set cluster.world_size=8            the value 8
    --set cluster.world_size=8,16         an axis, also written [8,16]
    --set cluster.placement=[1,0]         the value [1, 0]: this key takes lists
    --set cluster.placement=[0,1],[1,0]   an axis with two lists
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
from simulator.scenario.key_names import unknown_key
from simulator.scenario.plan_spec import GPUS, KEYS, PlanSpec
from simulator.scenario.records import KINDS as PLAYED
from simulator.scenario.records import axis_keys, is_axis_key, takes_lists

# Keys about the whole scenario; they cannot be an axis.
_BUDGETS: Final = tuple(f"budget.{name}" for name in BudgetSpec.model_fields)
_PLANS: Final = (
    *(f"plan.{name}" for name in PlanSpec.model_fields),
    *(f"plan.{kind}.{name}" for kind in ("fix", "among") for name in KEYS),
    f"plan.among.{GPUS}",
)
_OF_THE_WHOLE: Final = ("name", "question", "answer", "baseline", "budget", *_BUDGETS, "plots", "plan", *_PLANS)


@dataclass(frozen=True, slots=True)
class Override:
    """A `--set` option: key path and text as written."""

    key: tuple[str, ...]
    written: str


def _path(key: str) -> tuple[str, ...] | None:
    # Known are `sweep`, `sweep.KEY`, KEY, and keys about the whole scenario.
    kind, _, rest = key.partition(".")
    if kind in KINDS and (not rest or is_axis_key(rest)):
        return (kind, rest) if rest else (kind,)
    if is_axis_key(key) or key in _OF_THE_WHOLE:
        return tuple(key.split("."))
    return None


def apply(document: Document, changes: Mapping[str, str]) -> tuple[Document, tuple[Override, ...], tuple[Fault, ...]]:
    """Return a document with overrides (`--set KEY=VALUE`) put into its data, and a fault for each broken override.

    Returns
    -------
    Document
        The document with changed data; a broken override changes nothing.
    tuple of Override
        Overrides that were applied.
    tuple of Fault
        A fault for each broken override. For invalid YAML, the fault has the override's key; for an unknown key, or a
        key of another kind of scenario, the fault's key is empty.
    """
    if not isinstance(document.data, dict):
        return document, (), ()
    data = dict(document.data)
    applied: list[Override] = []
    faults: list[Fault] = []
    for key, text in changes.items():
        option = f"--set {key}={text}"
        section, path = key.partition(".")[0], _path(key)
        other = _other_kind(document.data, section)
        if other is not None:
            message = f"the scenario simulates {PLAYED[other]} and has no {section}; start from another scenario"
            faults.append(Fault((), message, source=option))
            continue
        if path is None:
            faults.append(Fault((), unknown_key(key, _settable_keys(document.data)), source=option))
            continue
        try:
            several, value = _read(key, text, option)
        except ScenarioError as error:
            # str(error) reads "OPTION:LINE:COLUMN: message"; the place is kept behind the option.
            lines = [line.removeprefix(option).partition(": ") for line in str(error).splitlines()]
            faults += [Fault(path, message, source=option + place) for place, _, message in lines]
            continue
        if several:
            # A setting for a whole section is an axis over every key that it names: drop each such axis.
            path = _axis_of(data, key)
            for name in varied({key: value}):
                _drop_axes(data, name, path)
            place(data, path, value)
            applied.append(Override(path, option))
            continue
        # {"collective": {"algorithm": "ring"}} sets collective.algorithm and leaves other keys in the section alone.
        for name, inner in flat({key: value}).items():
            at = path if name == key else tuple(name.split("."))
            _drop_axes(data, name, at)
            place(data, at, inner)
            applied.append(Override(at, option))
    if applied:
        _drop_what_has_lost_its_axis(document.data, data, changes)
    return replace(document, data=data), tuple(applied), tuple(faults)


def _settable_keys(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that `--set` may change in a scenario with this data."""
    kinds = [kind for kind in PLAYED if kind in data]
    return (*axis_keys(kinds[0] if len(kinds) == 1 else None), *KINDS, *_OF_THE_WHOLE)


def _read(key: str, text: str, option: str) -> tuple[bool, Any]:
    """Return (several, value) for an override's text: whether it holds several values, and the value or their list.

    >>> _read("cluster.world_size", "8, 16", ""), _read("cluster.placement", "[1, 0]", "")
    ((True, [8, 16]), (False, [1, 0]))
    """
    if not text.strip():
        return False, None
    if not is_axis_key(key):
        return False, parse(text, option).data
    # In brackets, commas separate values: "8,16" alone would be text in YAML.
    try:
        listed = parse(f"[{text}]").data
    # Not a list of values: read the text alone. If YAML fails again, the error names the option.
    except ScenarioError:
        return False, parse(text, option).data
    if len(listed) > 1:
        return True, listed
    value = parse(text, option).data
    return isinstance(value, list) and not takes_lists(key), value


def _axis_of(data: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Return the path of the key's axis: below `compare` if the file has the axis there, otherwise below `sweep`."""
    axes = data.get("compare")
    return ("compare" if isinstance(axes, dict) and key in axes else "sweep", key)


def _drop_what_has_lost_its_axis(before: Mapping[str, Any], data: dict[str, Any], changes: Mapping[str, str]) -> None:
    """Remove from `data` the entries of `answer` and `baseline` whose axis was replaced by a `--set` option.

    The remaining entries stay. `answer` and `baseline` set by an option are not touched; rules refuse them if they
    refer to a missing axis.
    """
    compare, sweep = ({**axes} if isinstance(axes := data.get(kind), dict) else {} for kind in KINDS)
    if "baseline" not in changes and isinstance(baseline := data.get("baseline"), dict):
        was = _axes(before, "compare")
        remaining = {key: value for key, value in baseline.items() if key not in was or _has(compare, key, value)}
        data["baseline"] = remaining
    if "answer" not in changes and isinstance(answer := data.get("answer"), list):
        gone = {axis for kind in KINDS for axis in _axes(before, kind) if axis not in compare and axis not in sweep}
        data["answer"] = [entry for entry in answer if not _lacks_axis(entry, bool(compare), bool(sweep), gone)]


def _axes(data: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    axes = data.get(kind)
    return axes if isinstance(axes, dict) else {}


def _has(compare: Mapping[str, Any], key: str, value: Any) -> bool:
    values = compare.get(key)
    return isinstance(values, list) and value in values


def _lacks_axis(entry: Any, compared: bool, swept: bool, gone: set[str]) -> bool:
    """Return True if an `answer` entry needs an axis that was removed.

    `compared` and `swept`: some axis is left in `compare` or `sweep`.
    """
    name = entry.get("finding") if isinstance(entry, dict) else entry
    along = entry.get("along") if isinstance(entry, dict) else None
    needs = (name in AGAINST and not compared) or (name == "effect" and not (swept or compared))
    return bool(gone) and (needs or (along in gone and not entry.get("between")))


def _other_kind(data: Mapping[str, Any], section: str) -> str | None:
    """Return the scenario's kind, collective or training, if a section belongs to the other kind; otherwise None."""
    if section not in PLAYED or section in data:
        return None
    return next((kind for kind in PLAYED if kind in data), None)


def _drop_axes(data: dict[str, Any], key: str, but: tuple[str, ...]) -> None:
    """Remove axes over a key, its parents and its children from the data, except the axis at the path `but`."""
    # `but` is not removed and put back, because an axis must keep its place: the order of the axes orders the points.
    for kind in KINDS:
        axes = data.get(kind)
        if isinstance(axes, dict):
            data[kind] = {
                k: v
                for k, v in axes.items()
                if (kind, k) == but or not any(overlap(key, str(name)) for name in varied({k: v}))
            }


def renamed(faults: Iterable[Fault], overrides: tuple[Override, ...]) -> Iterator[Fault]:
    """Yield the faults; a fault in a value set by a `--set` option names the option instead of a place in the file."""
    for fault in faults:
        # The last option wins, also in `apply`.
        source = next((o for o in reversed(overrides) if fault.key[: len(o.key)] == o.key), None)
        if source is None:
            yield fault
            continue
        # The option names its key already; a key below it, such as `collective.servers.count`, is still shown.
        inside = fault.key != source.key
        yield Fault(fault.key if inside else (), fault.message, source=source.written)
