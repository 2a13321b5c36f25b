"""Which points of a scenario are compared with each other: settings side by side, under one condition each?

Rule: what `compare` varies are settings, what `sweep` varies are conditions. A further point, between those of the
scenario, is played when a finding asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from simulator.basics.errors import SimulatorError
from simulator.basics.sections import varied
from simulator.records.measures import Measure, Report, find
from simulator.records.setting_text import labelled
from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.scenario.description import describe
from simulator.scenario.load import point_of, points
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import bytes_text

Settings = Mapping[str, Any]
# Further points of up to 64 ranks that one scenario's findings may play; a search takes about five for each of two
# settings. One of more ranks counts as several, so that nobody waits for minutes: of 16,384 ranks none is played.
MOST_FURTHER: Final = 200
_RANKS: Final = 64
# Keys that are written with a unit of bytes.
_SIZES: Final = (
    "collective.size", "collective.fusion.buckets", "collective.fusion.buffer", "training.sharding.bucket_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One point that was played.

    Attributes
    ----------
    index : int
        Its place among the points.
    setting, condition : mapping of dotted key to value
        What `compare` and `sweep` say of it.
    point : Scenario
        Without axes.
    report : mapping or None
        None where it failed.
    """

    index: int
    setting: Settings
    condition: Settings
    point: Scenario
    report: Report | None

    @property
    def fits(self) -> bool:
        """Whether it was played, and fits into memory."""
        return self.report is not None and bool(self.report.get("fits", True))


def key_of(settings: Settings) -> str:
    """Settings as text, to find equal ones by."""
    return json.dumps(settings, sort_keys=True, default=str)


@dataclass(frozen=True)
class Comparison:
    """All points of a scenario, and what plays further ones.

    Attributes
    ----------
    scenario : Scenario
    outcomes : sequence of PointOutcome
        In the order of the scenario's points.
    """

    scenario: Scenario
    outcomes: Sequence[PointOutcome]
    _further: dict[str, Report | None] = field(default_factory=dict, init=False, repr=False)
    _clusters: Clusters = field(default_factory=Clusters, init=False, repr=False)

    @property
    def kind(self) -> str:
        """ "collective" or "training"."""
        return "collective" if self.scenario.training is None else "training"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One for each point."""
        compared, swept = self.scenario.compare, self.scenario.sweep
        return tuple(
            Row(
                outcome.index,
                {key: point.settings[key] for key in compared},
                {key: point.settings[key] for key in swept},
                point.scenario,
                outcome.report,
            )
            for point, outcome in zip(points(self.scenario), self.outcomes, strict=True)
        )

    @cached_property
    def settings(self) -> tuple[Settings, ...]:
        """What is compared, in order, the baseline first."""
        by_key = {key_of(row.setting): row.setting for row in self.rows}
        if not self.scenario.baseline:
            return tuple(by_key.values())
        wanted = dict(self.scenario.baseline)
        stands = [one for one in by_key.values() if all(one.get(key) == value for key, value in wanted.items())]
        return tuple(stands[:1] + [one for one in by_key.values() if one is not stands[0]]) if stands else ()

    @cached_property
    def conditions(self) -> tuple[Settings, ...]:
        """What is swept, in order; one without settings where nothing is."""
        return tuple({key_of(row.condition): row.condition for row in self.rows}.values())

    @cached_property
    def _table(self) -> dict[tuple[str, str], Row]:
        return {(key_of(row.setting), key_of(row.condition)): row for row in self.rows}

    def row(self, setting: Settings, condition: Settings) -> Row:
        """The point of a setting under a condition."""
        return self._table[key_of(setting), key_of(condition)]

    def row_of(self, settings: Settings) -> Row:
        """The point of everything that is compared and swept, in whatever order."""
        return self._own[key_of(settings)]

    def under(self, condition: Settings) -> tuple[Row, ...]:
        """Points under one condition that were played, in the order of settings."""
        rows = (self.row(setting, condition) for setting in self.settings)
        return tuple(row for row in rows if row.report is not None)

    def measure(self, name: str) -> Measure:
        """A measure of this kind of scenario."""
        return find(name, self.kind)

    def name(self, setting: Settings) -> str:
        """A setting in words, without what all compared ones have in common."""
        own = {key: _without(value, self.in_common.get(key, {})) for key, value in setting.items()}
        return labelled(own) or self.scenario.name

    @cached_property
    def in_common(self) -> dict[str, dict[str, Any]]:
        """By compared key the entries that all its values have, where each has others too: {pp: 8} of two schedules."""
        common = {}
        for key, values in self.scenario.compare.items():
            if len(values) > 1 and all(isinstance(value, Mapping) for value in values):
                first, *others = values
                shared = {k: v for k, v in first.items() if all(k in one and one[k] == v for one in others)}
                if all(len(value) > len(shared) for value in values):
                    common[key] = shared
        return common

    @cached_property
    def setting_text(self) -> str:
        """What all points have in common: job, machine, and what compared settings share."""
        axes = varied({**self.scenario.compare, **self.scenario.sweep})
        shared = labelled({key: value for key, value in self.in_common.items() if value})
        told = describe(self.scenario, axes)
        return f"{told.job}, {shared}; {told.machine}" if shared else told.text

    @cached_property
    def shown_condition(self) -> Settings:
        """The condition that a sentence speaks of: the largest at which two settings fit, else the last."""
        for condition in reversed(self.conditions):
            if sum(row.fits for row in self.under(condition)) >= min(2, len(self.settings)):
                return condition
        return self.conditions[-1]

    def further(self, settings: Settings) -> Report | None:
        """The report of a point that is none of the scenario's; None where it cannot be played, or not in time.

        Arrays are not carried, for they change no time.
        """
        key = key_of(settings)
        if key not in self._further:
            self._further[key] = self._play(settings)
        return self._further[key]

    def _play(self, settings: Settings) -> Report | None:
        try:
            point = point_of(self.scenario, settings).scenario
            if point.collective is not None:
                point = point.replaced(collective=point.collective.replaced(payload=False))
            weight = max(1.0, point.cluster.world_size / _RANKS)
            real = point.training is not None and point.training.numerics
            if real or len(self._further) * weight > MOST_FURTHER:
                return None
            return simulate(point, limit_memory=False, clusters=self._clusters).report.to_dict()
        except (SimulatorError, ValueError):
            return None

    def known(self, settings: Settings) -> Report | None:
        """The report of a point of the scenario, or else of a further one."""
        key = key_of(settings)
        return self._own[key].report if key in self._own else self.further(settings)

    @cached_property
    def _own(self) -> dict[str, Row]:
        return {key_of({**row.setting, **row.condition}): row for row in self.rows}

    @property
    def played_further(self) -> int:
        """How many further points were played."""
        return sum(report is not None for report in self._further.values())

    @cached_property
    def numeric_axes(self) -> tuple[str, ...]:
        """Swept keys whose values are whole numbers or sizes, in whatever order they are written."""
        return tuple(key for key in self.scenario.sweep if self._numbers(key) is not None)

    def numbers(self, key: str) -> tuple[int, ...]:
        """The values of a numeric axis, rising [count, or B]."""
        return self._numbers(key) or ()

    def _numbers(self, key: str) -> tuple[int, ...] | None:
        values = tuple(amount(value) for value in self.scenario.sweep[key])
        if any(value is None for value in values):
            return None
        numbers = tuple(sorted({value for value in values if value is not None}))
        return numbers if len(numbers) > 1 else None


def _without(value: Any, shared: Mapping[str, Any]) -> Any:
    return {k: v for k, v in value.items() if k not in shared} if shared else value


def amount(value: Any) -> int | None:
    """A whole number, or the bytes of a size; None for anything else.

    Examples
    --------
    >>> amount(8), amount("64 KiB"), amount("ring"), amount(True)
    (8, 65536, None, None)
    """
    from simulator.basics.units import parse_bytes

    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        return parse_bytes(value)
    except ValueError:
        return None


def written(key: str, number: int) -> Any:
    """A number as the scenario writes it: sizes with their unit."""
    return bytes_text(number) if key in _SIZES else number
