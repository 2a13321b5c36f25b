"""Overrides: `--set KEY=VALUE`, put into the data before anything is checked.

Rule: VALUE is read as YAML; what is set wins over the file, also over an axis of the same key; a fault in it is told
with the option instead of a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.basics import document
from simulator.basics.document import Document, Fault
from simulator.errors import ScenarioError, in_lines, one_of
from simulator.scenario.axes import KINDS, place
from simulator.scenario.shape import KINDS as PLAYED
from simulator.scenario.shape import axis_keys


@dataclass(frozen=True, slots=True)
class Override:
    """One --set: the key path, and how it was written."""

    key: tuple[str, ...]
    written: str


def _path(key: str) -> tuple[str, ...] | None:
    kind, _, rest = key.partition(".")
    if kind in KINDS and (not rest or rest in axis_keys()):
        return (kind, rest) if rest else (kind,)
    if key in axis_keys() or key in ("name", "question", "plots"):
        return tuple(key.split("."))
    return None


def apply(read: Document, wanted: Mapping[str, str]) -> tuple[Document, tuple[Override, ...]]:
    """Put overrides into a document.

    Raises
    ------
    ScenarioError
        A key that nothing reads, or a value that is not YAML; one line each.
    """
    if not isinstance(read.data, dict):
        return read, ()
    data = dict(read.data)
    done: list[Override] = []
    wrong: list[str] = []
    for key, text in wanted.items():
        option = f"--set {key}={text}"
        path = _path(key)
        if path is None:
            known = (*axis_keys(), *KINDS, "name", "question", "plots")
            wrong.append(f"{option}: unknown key; {one_of(known, key)}")
            continue
        other = _other_kind(read.data, path)
        if other is not None:
            told = f"the scenario plays {PLAYED[other]} and has no {path[0]}; start from another one"
            wrong.append(f"{option}: {told}")
            continue
        try:
            value = document.parse(text, option).data if text.strip() else None
        except ScenarioError as error:
            wrong += str(error).splitlines()
            continue
        _drop_axis(data, key)
        place(data, path, value)
        done.append(Override(path, option))
    if wrong:
        raise ScenarioError(in_lines(wrong))
    return replace(read, data=data), tuple(done)


def _other_kind(data: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    """What the scenario is of, where a key is below what it is not of."""
    if path[0] not in PLAYED or path[0] in data:
        return None
    return next((kind for kind in PLAYED if kind in data), None)


def _drop_axis(data: dict[str, Any], key: str) -> None:
    for kind in KINDS:
        axes = data.get(kind)
        if isinstance(axes, dict):
            data[kind] = {
                k: v for k, v in axes.items() if not (f"{k}.".startswith(f"{key}.") or key.startswith(f"{k}."))
            }


def renamed(faults: Iterable[Fault], done: tuple[Override, ...]) -> Iterator[Fault]:
    """Tell the faults of what was set with the option that set it; its line in the file says nothing."""
    for fault in faults:
        source = next((o for o in reversed(done) if fault.key[: len(o.key)] == o.key), None)
        if source is None:
            yield fault
            continue
        inside = fault.key != source.key
        yield Fault(fault.key if inside else (), fault.message, source=source.written)
