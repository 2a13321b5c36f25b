"""Axes: what `compare` and `sweep` may hold, and the combinations that they multiply out to.

Rule: compare is outermost, keys go in the file's order, the last key runs fastest. An option that only some algorithms
(or optimizers) listen to belongs, where those are compared, to the points of those that do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.document import Document, Fault, Key
from simulator.scenario import wording
from simulator.scenario.collective_rules import OPTIONS, takers
from simulator.scenario.numbers_rules import OPTIONS as OF_OPTIMIZERS
from simulator.scenario.reading import shown
from simulator.scenario.shape import KINDS as PLAYED
from simulator.scenario.shape import adapter, axis_keys
from simulator.scenario.training_shape import opened

KINDS: Final = ("compare", "sweep")
# Each point is played and reported; a slip that multiplies out to more would only be noticed after days.
MOST_POINTS: Final = 10_000
_ALGORITHM: Final = "collective.algorithm"
_OPTIMIZER: Final = "training.optimizer"


def faults(document: Document) -> Iterator[Fault]:
    """Find what is wrong with each axis by itself; its shape (a mapping of lists) is checked elsewhere."""
    axes = [(kind, key, values) for kind in KINDS for key, values in _axes(document.data, kind).items()]
    for number, (kind, key, values) in enumerate(axes):
        place: Key = (kind, key)
        for _, other, _ in axes[:number]:
            yield from _overlap(document, place, key, other)
        if key in axis_keys() and isinstance(values, list):
            yield from _values(document, place, key, values)
            yield from _of_another_kind(document, place, key)
    points = math.prod(len(values) for _, _, values in axes if isinstance(values, list))
    if points > MOST_POINTS:
        told = f"the axes multiply out to {points} points; at most {MOST_POINTS}; shorten a list"
        yield document.fault((axes[-1][0],), told, of_key=True)


def _axes(data: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    axes = data.get(kind)
    return axes if isinstance(axes, dict) else {}


def _overlap(document: Document, place: Key, key: str, other: str) -> Iterator[Fault]:
    if key == other:
        yield document.fault(place, "stands in compare and in sweep; keep one", of_key=True)
    elif str(key).startswith(f"{other}.") or str(other).startswith(f"{key}."):
        yield document.fault(place, f"overlaps with {other}, which is an axis too; keep one", of_key=True)


def _of_another_kind(document: Document, place: Key, key: str) -> Iterator[Fault]:
    """An axis below `training` in a scenario of a collective, or the other way round."""
    kind = key.partition(".")[0]
    if kind in PLAYED and kind not in document.data:
        other = next((k for k in PLAYED if k in document.data), None)
        if other is not None:
            yield document.fault(
                place, f"this scenario plays {PLAYED[other]} and has no {kind}; remove it", of_key=True
            )


def _values(document: Document, place: Key, key: str, values: list[Any]) -> Iterator[Fault]:
    if not values:
        yield document.fault(place, "got an empty list; give at least one value")
    seen: list[tuple[type, Any]] = []
    for i, written in enumerate(values):
        at: Key = (*place, i)
        try:
            value = adapter(key).validate_python(written)
        except ValidationError as error:
            yield from wording.faults(error, document, at, tuple(key.split(".")))
            continue
        # False equals 0 in Python, but not in a file: the type belongs to the value.
        if (type(value), value) in seen:
            yield document.fault(at, f"got {shown(written)} twice; name each value once")
        seen.append((type(value), value))


def combinations(compare: Mapping[str, Any], sweep: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Multiply the axes out.

    Examples
    --------
    >>> [list(c.values()) for c in combinations({"a": ["x", "y"]}, {"b": [1, 2]})]
    [['x', 1], ['x', 2], ['y', 1], ['y', 2]]
    """
    axes = {**compare, **sweep}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def applied(data: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Data of one point: the settings in their places, no axes, no options that its own choices do not listen to."""
    axes = {**_axes(data, "compare"), **_axes(data, "sweep")}
    point = {key: value for key, value in data.items() if key not in KINDS}
    for key, value in settings.items():
        place(point, tuple(key.split(".")), value)
    for choice, keys, able in (
        (_ALGORITHM, [f"collective.{option}" for option in OPTIONS], takers),
        (_OPTIMIZER, [f"training.learning.{option}" for option in OF_OPTIMIZERS], OF_OPTIMIZERS.__getitem__),
    ):
        for key in keys if choice in settings else ():
            if _there(point, key) and _elsewhere(key, able(key.rpartition(".")[2]), choice, settings, axes):
                _remove(point, key)
    return point


def _there(point: Mapping[str, Any], key: str) -> bool:
    """Whether something stands under a dotted key."""
    found: Any = point
    for step in key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found is not None


def _remove(point: dict[str, Any], key: str) -> None:
    """Remove a dotted key that is there; mappings on the way are copied, so that nobody else sees it."""
    *way, last = key.split(".")
    for step in way:
        point[step] = dict(point[step])
        point = point[step]
    del point[last]


def _elsewhere(
    key: str, able: Sequence[str], choice: str, settings: Mapping[str, Any], axes: Mapping[str, Any]
) -> bool:
    """Whether an option is not for what was chosen, but for another value of that axis, and no axis itself."""
    swept = any(axis == key or axis.startswith(f"{key}.") for axis in axes)
    return not swept and settings[choice] not in able and any(other in able for other in axes[choice])


def place(data: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    """Put a value under a key path; mappings on the way are copied, so that nobody else sees it."""
    for depth, step in enumerate(key[:-1], 1):
        inner = opened(key[:depth], data.get(step))
        if inner is not None and not isinstance(inner, dict):
            return
        data[step] = dict(inner or {})
        data = data[step]
    data[key[-1]] = value
