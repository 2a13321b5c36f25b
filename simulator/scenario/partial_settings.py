"""Which points of a scenario have given settings, such as {training.sharding: zero3, cluster.world_size: 8}?

Settings are compared by meaning: "1024 KiB" equals "1 MiB". A key need not be an axis::

    wanted {collective.size: 1024 KiB}   point {collective.size: 1 MiB}             match
    wanted {seed: 0}                     point without seed (default 0)             match
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simulator.basics.errors import few
from simulator.records.setting_text import setting_text
from simulator.scenario import build_records
from simulator.scenario.axes import put
from simulator.scenario.key_names import ending, unknown_key
from simulator.scenario.records import PlotsSpec, Point, Scenario, adapter, axis_keys
from simulator.scenario.resolve import resolved

# Most axis values shown in a message.
_MOST_VALUES = 12


class InvalidSettingError(ValueError):
    """Error for an invalid value in wanted settings.

    Attributes
    ----------
        Dotted key.
    reasons : ValidationError
        pydantic's errors for the value.
    """

    def __init__(self, key: str, reasons: ValidationError) -> None:
        super().__init__(key)
        self.key = key
        self.reasons = reasons


def full_key(scenario: Scenario, written: str) -> str:
    """Return the dotted key that ends like the written text: training.sharding.strategy for "strategy".

    Raises
    ------
    ValueError
        No key ends like this, or several keys do.
    """
    axes, keys = (
        {**scenario.compare, **scenario.sweep},
        axis_keys(scenario.kind),
    )
    # Axes first: an ending may be ambiguous among all keys, and still name a single axis.
    matches = ending(written, axes) or ending(written, keys)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(f"may be {' or '.join(matches)}; write one of these keys")
    raise ValueError(unknown_key(written, keys))


def matching(points: Sequence[Point], settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the indices of the points with these settings.

    A point has a setting if writing it into the point changes nothing.

    Raises
    ------
    InvalidSettingError
        A key cannot have the value.
    """
    for key, value in settings.items():
        try:
            adapter(key).validate_python(value)
        except ValidationError as error:
            raise InvalidSettingError(key, error) from error
    return tuple(number for number, point in enumerate(points) if _has(point, settings))


def _has(point: Point, settings: Mapping[str, Any]) -> bool:
    """Return True if a point has these settings, from its own axes or from its scenario."""
    # A point's data omits options unread by its own algorithm, although they are settings of the point: compare these
    # by their value on the axis.
    others = {key: value for key, value in settings.items() if not _is_own(point.settings, key, value)}
    scenario = point.scenario
    # Plots and warnings belong to the whole scenario and would differ.
    bare = scenario.replaced(plots=PlotsSpec(kinds=()), warnings=())
    data = resolved(bare)
    put(data, others)
    try:
        shape = Scenario.model_validate(data)
    # The key belongs to another kind of scenario.
    except ValidationError:
        return False
    return build_records.completed(shape, scenario.question, scenario.source, Path()) == bare


def _is_own(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    read = adapter(key).validate_python
    return key in settings and bool(read(settings[key]) == read(value))


def no_such_point(scenario: Scenario, settings: Mapping[str, Any]) -> str:
    """Return an error message that no point has these settings, and which settings exist."""
    texts = ", ".join(f"{key}: {setting_text(value)}" for key, value in settings.items())
    axes = [f"{key}: {_listed(values)}" for key, values in {**scenario.compare, **scenario.sweep}.items()]
    hint = f"the points differ in {'; '.join(axes)}" if axes else "the scenario is a single point; omit `points`"
    return f"got {{{texts}}}, which no point has; {hint}"


def _listed(values: Sequence[Any]) -> str:
    return few([setting_text(value) for value in values], _MOST_VALUES, f" and {len(values) - _MOST_VALUES} more")
