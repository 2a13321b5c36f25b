"""Which values may `compare` and `sweep` hold, and which points does a sweep have? Every combination of axis values.

`compare` is outermost, keys go in file order, and the last key varies fastest. A section's setting sets each named key.
If algorithms (optimizers, shardings, schedules) are compared, points omit options unread by their own algorithm. This
holds for options set in the file and for axes. Example::

    compare: {collective.algorithm: [ring, parameter_server]}
    sweep: {collective.servers.count: [1, 2]}

    settings                      data of the point
    ring, servers.count 1         algorithm: ring                            no servers: ring would refuse the option
    ring, servers.count 2         algorithm: ring
    parameter_server, 1           algorithm: parameter_server, servers: {count: 1}
    parameter_server, 2           algorithm: parameter_server, servers: {count: 2}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.document import Document, Fault, Key
from simulator.basics.errors import ScenarioError
from simulator.basics.reading import shown
from simulator.basics.sections import SECTIONS, flat, overlap, varied
from simulator.scenario import error_messages
from simulator.scenario.collective_rules import OPTIONS, algorithms_with, file_reads
from simulator.scenario.records import KINDS as PLAYED
from simulator.scenario.records import adapter, default_of, fields, is_axis_key

KINDS: Final = ("compare", "sweep")
# Each point is simulated and reported. More points would take days: most likely an axis was mistyped.
MOST_POINTS: Final = 10_000


def _of_algorithms() -> dict[str, Sequence[str]]:
    return {f"collective.{option}": algorithms_with(option) for option in OPTIONS}


def _of_optimizers() -> dict[str, Sequence[str]]:
    # Imported late, here and below, because a collective has no parts of a training.
    from simulator.scenario.numerics_rules import OPTIONS as OPTIMIZER_OPTIONS

    return {f"training.learning.{option}": able for option, able in OPTIMIZER_OPTIONS.items()}


def _of_shardings() -> dict[str, Sequence[str]]:
    from simulator.step.strategies.strategy import STRATEGIES

    names = (name for name in fields(("training", "sharding")) if name != "strategy")
    return {f"training.sharding.{name}": STRATEGIES.listening(name) for name in names}


def _of_schedules() -> dict[str, Sequence[str]]:
    from simulator.step.pipelines.schedule import SCHEDULES

    schedules = [SCHEDULES.find(name) for name in SCHEDULES.names()]
    return {
        "training.parallelism.virtual_stages": [schedule.name for schedule in schedules if schedule.chunks is None],
        "training.parallelism.microbatch_group": [schedule.name for schedule in schedules if schedule.grouped],
    }


def _own_strategy_reads(name: Any, option: str, base: Path) -> bool:
    from simulator.step.strategies.strategy import STRATEGIES

    if name is None or name in STRATEGIES.names():
        return False
    try:
        return option in STRATEGIES.find(name, base).options
    # The rules report an unusable strategy.
    except ScenarioError:
        return False


def _own_schedule_reads(name: Any, option: str, base: Path) -> bool:
    from simulator.step.pipelines.schedule import SCHEDULES

    if name is None or name in SCHEDULES.names():
        return False
    try:
        schedule = SCHEDULES.find(name, base)
    # The rules report an unusable schedule.
    except ScenarioError:
        return False
    return schedule.grouped if option == "microbatch_group" else schedule.chunks is None


# Keys that choose an algorithm (or optimizer, ...), each with a function returning {option: values that read it}.
# Functions instead of dicts delay the look-up: it imports every algorithm.
_CHOICES: Final[Mapping[str, Callable[[], Mapping[str, Sequence[str]]]]] = MappingProxyType(
    {
        "collective.algorithm": _of_algorithms,
        "training.optimizer.name": _of_optimizers,
        "training.sharding.strategy": _of_shardings,
        "training.parallelism.schedule": _of_schedules,
    }
)
# Functions (name, option, base) returning True if a choice from outside this package reads an option.
_FOREIGN_READS: Final[Mapping[str, Callable[[Any, str, Path], bool]]] = MappingProxyType(
    {
        "collective.algorithm": file_reads,
        "training.optimizer.name": lambda name, option, base: False,
        "training.sharding.strategy": _own_strategy_reads,
        "training.parallelism.schedule": _own_schedule_reads,
    }
)


def faults(document: Document) -> Iterator[Fault]:
    """Yield a fault for each error in the axes (keys and values of `compare` and `sweep`) of a scenario document."""
    axes = [(kind, key, values) for kind in KINDS for key, values in _axes(document.data, kind).items()]
    for number, (kind, key, values) in enumerate(axes):
        place: Key = (kind, key)
        for _, other, others in axes[:number]:
            yield from _overlap(document, place, (key, values), (other, others))
        if is_axis_key(key) and isinstance(values, list):
            yield from _values(document, place, key, values)
            # A scenario of a collective has no keys of `training`, although both are axis keys.
            yield from _of_other_kind(document, place, key)
    # Axes that are not lists are reported by the type check and do not count here.
    points = math.prod(len(values) for _, _, values in axes if isinstance(values, list))
    if points > MOST_POINTS:
        message = f"the axes give {points} points; must be at most {MOST_POINTS}; shorten a list"
        yield document.fault((axes[-1][0],), message, of_key=True)


def _axes(data: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    axes = data.get(kind)
    return axes if isinstance(axes, dict) else {}


def _overlap(document: Document, place: Key, axis: tuple[str, Any], earlier: tuple[str, Any]) -> Iterator[Fault]:
    # Arguments are two axes, each (key, values); `earlier` comes first in the file.
    (key, values), (before, others) = axis, earlier
    if key == before:
        yield document.fault(place, "is a key in both compare and sweep; keep one", of_key=True)
        return
    # Example: `collective: [{algorithm: ring}]` and `collective.algorithm: [tree]` both set collective.algorithm.
    keys, earlier_keys = varied({key: values}), varied({before: others})
    both = next(((a, b) for a in keys for b in earlier_keys if overlap(str(a), str(b))), None)
    if both is not None:
        sets = f", which sets {both[1]}" if before in SECTIONS else ", which is an axis too"
        name = f"{both[0]} " if key in SECTIONS else ""
        yield document.fault(place, f"{name}overlaps with {before}{sets}; keep one", of_key=True)


def _of_other_kind(document: Document, place: Key, key: str) -> Iterator[Fault]:
    """Yield a fault if the axis `key` lies below `training` in a collective's scenario, or the reverse."""
    kind = key.partition(".")[0]
    if kind in PLAYED and kind not in document.data:
        other = next((k for k in PLAYED if k in document.data), None)
        if other is not None:
            yield document.fault(
                place, f"this scenario simulates {PLAYED[other]} and has no {kind}; remove the key", of_key=True
            )


def _values(document: Document, place: Key, key: str, values: list[Any]) -> Iterator[Fault]:
    if not values:
        yield document.fault(place, "got an empty list; give at least one value")
    pairs: list[tuple[type, Any]] = []
    for i, written in enumerate(values):
        at: Key = (*place, i)
        try:
            value = adapter(key).validate_python(written)
        except ValidationError as error:
            yield from error_messages.faults(error, document, at, tuple(key.split(".")))
            continue
        # In Python, False equals 0 and 8 equals 8.0; in a file they differ. The type is therefore compared too.
        if (type(value), value) in pairs:
            yield document.fault(at, f"got {shown(written)} twice; name each value once")
        pairs.append((type(value), value))


def combinations(compare: Mapping[str, Any], sweep: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the axis values as {key: value}; the last axis varies fastest.

    >>> [list(c.values()) for c in combinations({"a": ["x", "y"]}, {"b": [1, 2]})]
    [['x', 1], ['x', 2], ['y', 1], ['y', 2]]
    """
    axes = {**compare, **sweep}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


@dataclass(frozen=True)
class PointData:
    """Builds the data (keys as in a file) for each point of a scenario with axes."""

    data: Mapping[str, Any]  # the scenario's data, with its axes
    base: Path = Path()  # folder for relative paths

    def of(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point's data, given its axis values: without axes and without options unread by its own choices.

        Keys about the whole set of points (`baseline`, `answer`) are omitted too.
        """
        point = {key: value for key, value in self.data.items() if key not in (*KINDS, "baseline", "answer")}
        put(point, settings)
        # Three conditions keep an option: the point's own choice reads it; no compared choice reads it (a rule then
        # refuses it, or a warning names it); or the setting that makes the choice also names the option.
        for choice, compared in self._compared.items():
            current, together = value_of(choice, point), _set_with(choice, settings)
            for option, able in _CHOICES[choice]().items():
                read = current in able or _FOREIGN_READS[choice](current, option.split(".")[-1], self.base)
                unread = not read and any(other in able for other in compared)
                if unread and _is_set(point, option) and not any(overlap(option, key) for key in together):
                    _remove(point, option)
        return point

    @cached_property
    def _compared(self) -> dict[str, set[Any]]:
        """Values over the points of each choice (algorithm, optimizer ...), for choices with several values."""
        axes = {**_axes(self.data, "compare"), **_axes(self.data, "sweep")}
        varied_choices = [choice for choice in _CHOICES if any(overlap(choice, str(axis)) for axis in axes)]
        values_of_choices = {choice: set(_axis_values(choice, self.data)) for choice in varied_choices}
        return {choice: values for choice, values in values_of_choices.items() if len(values) > 1}


def values_of(key: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of a key over the points of a scenario's data, each once: its own and its axes' values.

    >>> values_of("cluster.world_size", {"cluster": {"world_size": 8}, "sweep": {"cluster.world_size": [8, "1k"]}})
    (8, 1000)
    """
    distinct: list[Any] = []
    for value in (value_of(key, data), *_axis_values(key, data)):
        # A list, because a topology may be a mapping.
        if value not in distinct:
            distinct.append(value)
    return tuple(distinct)


def _axis_values(key: str, data: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that the axes of a scenario's data give to a key."""
    for axis, values in {**_axes(data, "compare"), **_axes(data, "sweep")}.items():
        # The axis may be the key itself, a whole section, or the mapping around the key.
        if not isinstance(values, list | tuple) or not overlap(key, str(axis)):
            continue
        for value in values:
            changed = dict(data)
            put(changed, {axis: value})
            yield value_of(key, changed)


def _without_short_form(key: tuple[str, ...], value: Any) -> Any:
    # Only `training` has mappings with a short form.
    if key[0] != "training":
        return value
    from simulator.step.training_spec import without_short_form

    return without_short_form(key, value)


def value_of(key: str, data: Mapping[str, Any]) -> Any:
    """Return a key's validated value in a scenario's data, or its default; `key` is one of `axis_keys`.

    >>> data = {"cluster": {"world_size": "1k"}, "collective": {"size": 256}}
    >>> value_of("cluster.world_size", data), value_of("collective.dtype", data), value_of("collective.size", data)
    (1000, 'float32', None)
    """
    value: Any = data
    *at, last = key.split(".")
    for depth, step in enumerate(at, 1):
        # `sharding: zero3` is short for {strategy: zero3}; the key training.sharding.strategy lies below the word.
        value = _without_short_form(tuple(at[:depth]), value.get(step, {}))
        if not isinstance(value, Mapping):
            return None
    try:
        return adapter(key).validate_python(value.get(last, default_of(key)))
    except ValidationError:
        return None


def _set_with(choice: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the keys set together with the key `choice` by the same axis value; empty if set alone."""
    for key, value in settings.items():
        names = list(_leaves(key, value))
        if key != choice and any(overlap(choice, name) for name in names):
            return names
    return []


def _leaves(key: str, value: Any) -> Iterator[str]:
    """Yield the dotted keys of all values in a nested mapping at `key`, down to the leaves."""
    if not isinstance(value, Mapping):
        yield key
        return
    for name, inner in value.items():
        yield from _leaves(f"{key}.{name}", inner)


def _is_set(data: Mapping[str, Any], key: str) -> bool:
    """Return True if a scenario's data has a value other than None under a dotted key."""
    value: Any = data
    for step in key.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value is not None


def _remove(point: dict[str, Any], key: str) -> None:
    """Remove a dotted key from a point's data in place; shared parent mappings are copied."""
    *parents, last = key.split(".")
    for step in parents:
        point[step] = dict(point[step])
        point = point[step]
    del point[last]


def put(data: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Put settings into a scenario's data in place; shared parent mappings are copied.

    >>> data = {"collective": {"operation": "all_reduce", "size": "1 MiB"}}
    >>> put(data, {"collective": {"algorithm": "parameter_server", "servers.count": 4}})
    >>> data["collective"]["servers"], data["collective"]["size"]
    ({'count': 4}, '1 MiB')
    """
    for key, value in flat(settings).items():
        place(data, tuple(key.split(".")), value)


def place(data: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    """Put a value into the data under a key path, in place; shared parent mappings are copied.

    >>> data = {"training": {"sharding": "zero3"}}
    >>> place(data, ("training", "sharding", "prefetch"), 2)
    >>> data
    {'training': {'sharding': {'strategy': 'zero3', 'prefetch': 2}}}
    """
    for depth, step in enumerate(key[:-1], 1):
        inner = _without_short_form(key[:depth], data.get(step))
        # A parent that is not a mapping is a fault reported elsewhere; the data stays unchanged.
        if inner is not None and not isinstance(inner, dict):
            return
        data[step] = dict(inner or {})
        data = data[step]
    data[key[-1]] = value
