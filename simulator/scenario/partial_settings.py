"""Which points of a scenario have some settings: {training.sharding: zero3, cluster.world_size: 8}?

Rule: a setting is compared by what it means, not by how it is written, so "1024 KiB" is "1 MiB", and a key need not be
an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simulator.records.setting_text import setting_text
from simulator.scenario import build_records
from simulator.scenario.axes import put
from simulator.scenario.key_names import ending, keys_of, unknown_key
from simulator.scenario.records import PlotsSpec, Point, Scenario, adapter
from simulator.scenario.resolve import resolved

# Values of an axis that a message names.
_MOST_VALUES = 12


class InvalidSettingError(ValueError):
    """A value that its key cannot have.

    Attributes
    ----------
    key : str
    reasons : ValidationError
    """

    def __init__(self, key: str, reasons: ValidationError) -> None:
        super().__init__(key)
        self.key = key
        self.reasons = reasons


def full_key(scenario: Scenario, written: str) -> str:
    """The dotted key that a text names: "strategy" for training.sharding.strategy, where it is the only one so called.

    Raises
    ------
    ValueError
        No key of the scenario ends so, or several do.
    """
    axes, keys = (
        {**scenario.compare, **scenario.sweep},
        keys_of("collective" if scenario.training is None else "training"),
    )
    named = ending(written, axes) or ending(written, keys)
    if len(named) == 1:
        return named[0]
    if named:
        raise ValueError(f"may be {' or '.join(named)}; write one of them")
    raise ValueError(unknown_key(written, keys))


def matching(points: Sequence[Point], wanted: Mapping[str, Any]) -> tuple[int, ...]:
    """Places of the points that stay as they are when the settings are put into them.

    Raises
    ------
    InvalidSettingError
        A key cannot have its value.
    """
    for key, value in wanted.items():
        try:
            adapter(key).validate_python(value)
        except ValidationError as error:
            raise InvalidSettingError(key, error) from error
    return tuple(number for number, point in enumerate(points) if _has(point, wanted))


def _has(point: Point, wanted: Mapping[str, Any]) -> bool:
    """Return True if a point has the settings, be they its own or what its scenario says."""
    # An option that the point's own choice does not read is a setting of the point, and stands nowhere in its scenario.
    others = {key: value for key, value in wanted.items() if not _is_own(point.settings, key, value)}
    scenario = point.scenario
    bare = scenario.replaced(plots=PlotsSpec(kinds=()), warnings=())
    data = resolved(bare)
    put(data, others)
    try:
        shape = Scenario.model_validate(data)
    except ValidationError:  # a key of another kind of scenario
        return False
    return build_records.completed(shape, scenario.question, scenario.source, Path()) == bare


def _is_own(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    read = adapter(key).validate_python
    return key in settings and bool(read(settings[key]) == read(value))


def no_such_point(scenario: Scenario, wanted: Mapping[str, Any]) -> str:
    """Say that no point has the settings, and which settings there are."""
    said = ", ".join(f"{key}: {setting_text(value)}" for key, value in wanted.items())
    there = [f"{key}: {_listed(values)}" for key, values in {**scenario.compare, **scenario.sweep}.items()]
    hint = f"points differ in {'; '.join(there)}" if there else "the scenario is a single point; leave `points` out"
    return f"got {{{said}}}, which no point has; {hint}"


def _listed(values: Sequence[Any]) -> str:
    more = "" if len(values) <= _MOST_VALUES else f" and {len(values) - _MOST_VALUES} more"
    return ", ".join(setting_text(value) for value in values[:_MOST_VALUES]) + more
