"""Which values `compare` and `sweep` may hold, and which points a sweep has: all combinations of the axes.

Rule: compare is outermost, keys go in the file's order, the last key runs fastest. An option that only some algorithms
(or optimizers) read is left out of the points of the others, where algorithms (or optimizers) are compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.document import Document, Fault, Key
from simulator.scenario import error_messages
from simulator.scenario.collective_rules import OPTIONS, algorithms_with
from simulator.scenario.numerics_rules import OPTIONS as OPTIMIZER_OPTIONS
from simulator.scenario.reading import shown
from simulator.scenario.shape import KINDS as PLAYED
from simulator.scenario.shape import adapter, axis_keys
from simulator.scenario.training_shape import without_short_form

KINDS: Final = ("compare", "sweep")
# Each point is played and reported; more would take days, so a mistyped axis is refused at once.
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
            yield from _of_other_kind(document, place, key)
    points = math.prod(len(values) for _, _, values in axes if isinstance(values, list))
    if points > MOST_POINTS:
        message = f"the axes multiply out to {points} points; at most {MOST_POINTS}; shorten a list"
        yield document.fault((axes[-1][0],), message, of_key=True)


def _axes(data: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    axes = data.get(kind)
    return axes if isinstance(axes, dict) else {}


def _overlap(document: Document, place: Key, key: str, other: str) -> Iterator[Fault]:
    if key == other:
        yield document.fault(place, "stands in compare and in sweep; keep one", of_key=True)
    elif str(key).startswith(f"{other}.") or str(other).startswith(f"{key}."):
        yield document.fault(place, f"overlaps with {other}, which is an axis too; keep one", of_key=True)


def _of_other_kind(document: Document, place: Key, key: str) -> Iterator[Fault]:
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
            yield from error_messages.faults(error, document, at, tuple(key.split(".")))
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
    """Data of one point: with the settings, without axes, without options that its own choices do not read.

    What is told of all points together is left out too.
    """
    axes = {**_axes(data, "compare"), **_axes(data, "sweep")}
    point = {key: value for key, value in data.items() if key not in (*KINDS, "baseline", "answer")}
    for key, value in settings.items():
        place(point, tuple(key.split(".")), value)
    for choice, keys, able in (
        (_ALGORITHM, [f"collective.{option}" for option in OPTIONS], algorithms_with),
        (_OPTIMIZER, [f"training.learning.{option}" for option in OPTIMIZER_OPTIONS], OPTIMIZER_OPTIONS.__getitem__),
    ):
        for key in keys if choice in settings else ():
            if _is_set(point, key) and _is_for_another_value(key, able(key.rpartition(".")[2]), choice, settings, axes):
                _remove(point, key)
    return point


def _is_set(data: Mapping[str, Any], key: str) -> bool:
    """Whether something stands under a dotted key."""
    value: Any = data
    for step in key.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value is not None


def _remove(point: dict[str, Any], key: str) -> None:
    """Remove a dotted key that is there; mappings on the way are copied, so that other points keep it."""
    *parents, last = key.split(".")
    for step in parents:
        point[step] = dict(point[step])
        point = point[step]
    del point[last]


def _is_for_another_value(
    key: str, able: Sequence[str], choice: str, settings: Mapping[str, Any], axes: Mapping[str, Any]
) -> bool:
    """Whether this point's choice does not read the option, another value of that axis does, and it is no axis."""
    swept = any(axis == key or axis.startswith(f"{key}.") for axis in axes)
    return not swept and settings[choice] not in able and any(other in able for other in axes[choice])


def place(data: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    """Put a value under a key path; mappings on the way are copied, so that other points stay as they are."""
    for depth, step in enumerate(key[:-1], 1):
        inner = without_short_form(key[:depth], data.get(step))
        if inner is not None and not isinstance(inner, dict):
            return
        data[step] = dict(inner or {})
        data = data[step]
    data[key[-1]] = value
