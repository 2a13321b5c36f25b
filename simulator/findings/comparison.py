"""Which points of a scenario are compared with each other? Settings side by side, under a condition each.

Values under `compare` are settings, values under `sweep` are conditions. For `compare: {strategy: [ddp, zero3]}` and
`sweep: {world_size: [2, 8]}`:

                   ddp        zero3         settings; the first is the baseline
    2 GPUs         1.0 s      0.9 s         conditions: settings are compared within a row
    8 GPUs         1.3 s      1.1 s

A finding may ask for further points between the scenario's; these are simulated on demand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from simulator.basics.errors import SimulatorError
from simulator.basics.sections import varied
from simulator.basics.units import parse_bytes
from simulator.basics.work_unit import useful_unit, work_unit
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
# Further points of up to 64 ranks that a scenario's findings may simulate; a search takes about five for each of two
# settings. Larger points count as several, to avoid waiting for minutes: with 16,384 ranks none is simulated.
MOST_FURTHER: Final = 200
_RANKS: Final = 64
# Keys written with a unit of bytes.
_SIZES: Final = (
    "collective.size", "collective.fusion.buckets", "collective.fusion.buffer", "training.sharding.bucket_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A point with its report."""

    index: int  # number of the point
    # `setting`, `condition`: Values of the `compare` and `sweep` axes.
    setting: Settings
    condition: Settings
    point: Scenario  # the point's scenario, without axes
    report: Report | None  # None if the point failed

    @property
    def fits(self) -> bool:
        """Return True if the point was simulated and fits in memory."""
        # Collectives have no memory to fit in, hence the default.
        return self.report is not None and bool(self.report.get("fits", True))


def key_of(settings: Settings) -> str:
    """Return a text for a mapping of dotted keys to values; equal mappings have equal texts."""
    return json.dumps(_with_text_keys(settings), sort_keys=True, default=str)


def _with_text_keys(value: Any) -> Any:
    """Return a value whose mappings have texts as keys: keys of a histogram are numbers and texts such as "4k"."""
    if isinstance(value, Mapping):
        return {str(key): _with_text_keys(inner) for key, inner in value.items()}
    return value


@dataclass(frozen=True)
class Comparison:
    """A scenario's points, with a way to simulate further points."""

    scenario: Scenario  # the scenario with its axes
    outcomes: Sequence[PointOutcome]  # outcomes in the order of the scenario's points
    _further: dict[str, Report | None] = field(default_factory=dict, init=False, repr=False)
    _clusters: Clusters = field(default_factory=Clusters, init=False, repr=False)

    @property
    def kind(self) -> str:
        """Kind of the scenario: "collective" or "training"."""
        return "collective" if self.scenario.training is None else "training"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A `Row` (settings, scenario, report) for each point."""
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
        """The compared settings in order, the baseline first."""
        by_key = {key_of(row.setting): row.setting for row in self.rows}
        if not self.scenario.baseline:
            return tuple(by_key.values())
        base = dict(self.scenario.baseline)
        # The baseline may name only a few keys: list the first agreeing setting before the rest.
        bases = [setting for setting in by_key.values() if all(setting.get(k) == v for k, v in base.items())]
        return tuple(bases[:1] + [setting for setting in by_key.values() if setting is not bases[0]]) if bases else ()

    @cached_property
    def conditions(self) -> tuple[Settings, ...]:
        """The swept conditions in order; a single empty condition without `sweep`."""
        return tuple({key_of(row.condition): row.condition for row in self.rows}.values())

    @cached_property
    def _table(self) -> dict[tuple[str, str], Row]:
        """Rows by setting and condition, both as texts from `key_of`."""
        return {(key_of(row.setting), key_of(row.condition)): row for row in self.rows}

    def row(self, setting: Settings, condition: Settings) -> Row:
        """Return the row of the point with this setting (compared values) and condition (swept values)."""
        return self._table[key_of(setting), key_of(condition)]

    def row_of(self, settings: Settings) -> Row:
        """Return the row of the point with these compared and swept values, given in a single mapping."""
        return self._own[key_of(settings)]

    def has(self, settings: Settings) -> bool:
        """Return True if the scenario has a point with these compared and swept values, given in a single mapping."""
        return key_of(settings) in self._own

    def under(self, condition: Settings) -> tuple[Row, ...]:
        """Return the rows of the simulated points under a condition (swept values), in the order of settings."""
        rows = (self.row(setting, condition) for setting in self.settings)
        return tuple(row for row in rows if row.report is not None)

    def measure(self, name: str) -> Measure:
        """Return the measure (step time, peak memory ...) with this name for the scenario's kind and unit of work."""
        return find(name, self.kind, self.work_unit)

    @cached_property
    def work_unit(self) -> str:
        """The unit in which speeds of all points are told: "token" or "sample"."""
        return work_unit(row.report for row in self.rows)

    @cached_property
    def useful_unit(self) -> str:
        """The unit in which the points' work is compared: `work_unit`, or tokens without padding."""
        return useful_unit(row.report for row in self.rows)

    def name(self, setting: Settings) -> str:
        """Return a setting (compared values) in words, without the entries shared by every compared setting."""
        distinct = {key: _without(value, self.in_common.get(key, {})) for key, value in setting.items()}
        return self.where(distinct) or labelled(distinct) or self.scenario.name

    def where(self, condition: Settings) -> str:
        """Return a condition (swept values) in words, without axes that have a single value."""
        return labelled({key: value for key, value in condition.items() if key not in self.single})

    @cached_property
    def single(self) -> dict[str, Any]:
        """Axes with a single value, which every point shares: {dotted key: value}."""
        axes = {**self.scenario.compare, **self.scenario.sweep}
        return {key: values[0] for key, values in axes.items() if len(values) == 1}

    def place(self, row: Row) -> str:
        """Return a point in words, with its setting and condition: "ddp (8 GPUs)"."""
        where = self.where(row.condition)
        if not row.setting:
            return where or labelled(row.condition)
        return f"{self.name(row.setting)} ({where})" if where else self.name(row.setting)

    @cached_property
    def in_common(self) -> dict[str, dict[str, Any]]:
        """Entries shared by every value of a compared key beside other entries: {pp: 8} for two schedules."""
        common = {}
        for key, values in self.scenario.compare.items():
            if len(values) > 1 and all(isinstance(value, Mapping) for value in values):
                first, *others = values
                shared = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}
                # A value with shared entries only would become nameless.
                if all(len(value) > len(shared) for value in values):
                    common[key] = shared
        return common

    @cached_property
    def setting_text(self) -> str:
        """Text on what is common to all points: job, machine, axes with a single value, entries that settings share."""
        axes = varied({**self.scenario.compare, **self.scenario.sweep})
        shared = labelled({**self.single, **{key: value for key, value in self.in_common.items() if value}})
        description = describe(self.scenario, axes)
        return f"{description.job}, {shared}; {description.machine}" if shared else description.text

    @cached_property
    def shown_condition(self) -> Settings:
        """The condition (swept values) that sentences describe: the last in which at least two settings fit, else the
        last in which one fits, else the last.
        """
        # `max` returns the first of equal conditions, hence the reversed order.
        return max(reversed(self.conditions), key=lambda case: min(2, sum(row.fits for row in self.under(case))))

    @cached_property
    def closest(self) -> Row:
        """The simulated point that lacks least memory; the first point that fits, if any fits."""
        runs = (row for row in self.rows if row.report is not None)
        return min(runs, key=lambda row: (row.report or {}).get("shortfall_bytes", 0))

    def further(self, settings: Settings) -> Report | None:
        """Simulate a point beyond the scenario's own and return the report; None after a failure or too long a time.

        Real arrays are left behind, because they change no time.
        """
        key = key_of(settings)
        if key not in self._further:
            self._further[key] = self._play(settings)
        return self._further[key]

    def _play(self, settings: Settings) -> Report | None:
        """Simulate a point beyond the scenario's own and return the report; None after a failure or at the limit."""
        try:
            point = point_of(self.scenario, settings).scenario
            if point.collective is not None:
                # A payload would be drawn and verified without changing any time.
                # Simulating takes longer with more ranks, so large points use up the limit faster.
                point = point.replaced(collective=point.collective.replaced(payload=False))
            weight = max(1.0, point.cluster.world_size / _RANKS)
            real = point.training is not None and point.training.numerics
            if real or len(self._further) * weight > MOST_FURTHER:
                return None
            return simulate(point, limit_memory=False, clusters=self._clusters).report.to_dict()
        except (SimulatorError, ValueError):
            return None

    def known(self, settings: Settings) -> Report | None:
        """Return the report of the point with these values, the scenario's own or a newly simulated point's."""
        return self.row_of(settings).report if self.has(settings) else self.further(settings)

    @cached_property
    def _own(self) -> dict[str, Row]:
        """The scenario's rows, by compared and swept values together (as text from `key_of`)."""
        return {key_of({**row.setting, **row.condition}): row for row in self.rows}

    @property
    def played_further(self) -> int:
        """Number of points simulated in addition to the scenario's own."""
        return sum(report is not None for report in self._further.values())

    @cached_property
    def numeric_axes(self) -> tuple[str, ...]:
        """Swept keys whose values are whole numbers or sizes, in any order."""
        # Only such axes have values in between, for searching thresholds.
        return tuple(key for key in self.scenario.sweep if self._numbers(key) is not None)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return the values of a numeric swept axis, rising [count, or B]; empty if the axis is not numeric."""
        return self._numbers(key) or ()

    def _numbers(self, key: str) -> tuple[int, ...] | None:
        """Return the rising values of a swept axis; None if the values are not numbers, or fewer than two differ."""
        values = tuple(amount(value) for value in self.scenario.sweep[key])
        if any(value is None for value in values):
            return None
        numbers = tuple(sorted({value for value in values if value is not None}))
        return numbers if len(numbers) > 1 else None


def _without(value: Any, shared: Mapping[str, Any]) -> Any:
    """Return a mapping without the entries common to every setting; return any other value unchanged."""
    return {k: v for k, v in value.items() if k not in shared} if shared else value


def amount(value: Any) -> int | None:
    """Return a whole number, or the bytes of a size; None for anything else.

    >>> amount(8), amount("64 KiB"), amount("ring"), amount(True)
    (8, 65536, None, None)
    """
    # In Python True is an int, yet no amount.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        return parse_bytes(value)
    except ValueError:
        return None


def written(key: str, number: int) -> Any:
    """Return a number as the scenario writes the key's values: bytes with their unit for sizes.

    >>> written("collective.size", 262144), written("cluster.world_size", 8)
    ('256 KiB', 8)
    """
    return bytes_text(number) if key in _SIZES else number
