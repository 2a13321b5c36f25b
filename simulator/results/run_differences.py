"""Which scenario keys, points and figures differ between two runs?

Points are matched first: two points are the same point if they agree in every key that either run varies. If a run does
not vary such a key, the key has the value in the run's scenario: a single point with 8 GPUs matches the point with 8
GPUs in a sweep over 4, 8 and 16.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, log
from pathlib import Path
from typing import Any, Final

from simulator.basics import document, yaml_dialect
from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import MOST_DATA, read_json
from simulator.basics.sections import SECTIONS, flat
from simulator.results.figure_text import is_number
from simulator.run.outcome import PointOutcome, read_outcome
from simulator.scenario.axes import KINDS, put, value_of
from simulator.scenario.records import adapter, axis_keys, fields
from simulator.sweeps.outcome_table import row

_NOTHING: Final = {"engine": None, "report": None}
# The main measures of a training step and of a collective.
_MAIN: Final = ("step_time_s", "tokens_per_s", "exposed_comm_time_s", "peak_memory_bytes", "time_s", "busbw")
# Fields that follow from other fields, and counters of the simulator.
_DERIVED: Final = ("intervals", "because", "constants", "closed_form_collectives", "played_collectives")
_REPORT: Final = "report.json"
# Maximum characters of a key's value, and maximum number of values from a list, on a line.
_LONGEST: Final = 200
_MOST_VALUES: Final = 12
# Relative difference below which figures are equal: sums over thousands of times, in different order, differ by less.
_ROUNDING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """Points from a run's report, and the data of the run's scenario."""

    folder: Path  # directory with the report
    outcomes: tuple[PointOutcome, ...]  # outcome of each point
    # Keys in scenario.yaml; None for a report given by file name, without a scenario beside the report.
    scenario: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A key or a figure with its value in each run; None for a missing value."""

    key: str
    first: Any
    second: Any

    @property
    def field(self) -> str:
        """Field of the report, without the key in the field: "peak_memory_by_category"."""
        return self.key.partition(".")[0]

    @property
    def derived(self) -> bool:
        """Return True for a field that follows from other fields, and for a counter of the simulator."""
        return self.field in _DERIVED

    @property
    def size(self) -> float:
        """Size of the change: |log(second / first)|, which is equal for a doubling and a halving.

        Infinite from or to 0 or a missing value; -1 if a value is no number, because such changes have no size.
        """
        values = [0 if value is None else value for value in (self.first, self.second)]
        if not all(is_number(value) for value in values):
            return -1.0
        ratio = values[1] / values[0] if values[0] else 0.0
        # Rounded, because equal ratios of figures that follow from each other differ in their last digits.
        return round(abs(log(ratio)), 9) if ratio > 0 else inf


@dataclass(frozen=True, slots=True)
class CommonPoint:
    """A point that both runs have."""

    settings: Mapping[str, Any]  # every key that either run varies
    places: tuple[int, int]  # number of the point in each run
    # Figures that differ: main measures, then other figures, each with the largest relative change first; derived
    # figures are last.
    changes: tuple[ValueChange, ...]
    # The point's report in each run; None if the point failed.
    reports: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (None, None)


@dataclass(frozen=True, slots=True)
class RunDifferences:
    """Differences between two runs."""

    # Scenario keys that differ; None if a run has no scenario.
    keys: tuple[ValueChange, ...] | None
    common: tuple[CommonPoint, ...]  # common points, in the first run's order
    # Settings of the points that are only in the first run, and only in the second run.
    only: tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]

    @property
    def figures(self) -> int:
        """Number of differing figures (numbers of the reports) in the common points."""
        return sum(len(point.changes) for point in self.common)

    @property
    def nothing(self) -> bool:
        """Return True if the two runs have the same scenario keys, points and figures."""
        return not (self.keys or self.figures or any(self.only))

    def sentences(self, names: tuple[str, str]) -> tuple[str, ...]:
        """Return sentences on how many figures differ in the common points, and how many points are in only one run.

        >>> RunDifferences((), (CommonPoint({}, (0, 0), ()),), (({"seed": 1},), ())).sentences(("A", "B"))
        ('1 common point is equal.', '1 point is only in A.')
        """
        common = number_of(len(self.common), "common point")
        figures = f"{self.figures:,} figures differ" if self.figures > 1 else "1 figure differs"
        equal = f"{common} {'is' if len(self.common) == 1 else 'are'} equal."
        texts = [f"{figures} in {common}." if self.figures else equal]
        if not self.common:
            texts = ["The runs have no common point; no figure can be compared."]
        for name, extra in zip(names, self.only, strict=True):
            texts += [f"{len(extra):,} point{' is' if len(extra) == 1 else 's are'} only in {name}."] if extra else []
        return tuple(texts)


def read_run(run: Path) -> ReportedRun:
    """Return the points and the scenario of a run, from its directory or from a report given by file name.

    Raises
    ------
    ScenarioError
        There is no report, or scenario.yaml cannot be read.
    """
    path = run if run.is_file() else run / _REPORT
    try:
        points = read_json(path, most=MOST_DATA)["points"]
        outcomes = tuple(read_outcome(number, _NOTHING | point) for number, point in enumerate(points))
    except (ValueError, KeyError, TypeError) as error:
        # A ScenarioError without a cause already names the fault: the file is too large to be read.
        if isinstance(error, ScenarioError) and error.__cause__ is None:
            raise
        fault = f"{path}: is not the report of a run" if path.exists() else f"{run}: is not the directory of a run"
        raise ScenarioError(f"{fault}; give the directory that `simulator run` printed") from error
    scenario = path.parent / "scenario.yaml"
    # A report with another name may have been copied next to any scenario.
    if path.name != _REPORT or not scenario.is_file():
        return ReportedRun(path.parent, outcomes)
    data = document.load(scenario).data
    if not isinstance(data, Mapping):
        raise ScenarioError(
            f"{scenario}: is not the scenario of a run; give the directory that `simulator run` printed"
        )
    return ReportedRun(path.parent, outcomes, data)


def differences(first: ReportedRun, second: ReportedRun) -> RunDifferences:
    """Return the differences between two runs: scenario keys, figures of common points, and points of only one run."""
    runs = (first, second)
    # Points are identified by the union of both runs' axes: they match even if only a single run varies a key.
    axes = tuple(dict.fromkeys(key for run in runs for outcome in run.outcomes for key in flat(outcome.settings)))
    a, b = (_by_identity(run, axes, runs) for run in runs)
    common = tuple(_common(a[key], b[key]) for key in a if key in b)
    only = tuple(outcome.settings for key, outcome in a.items() if key not in b)
    others = tuple(outcome.settings for key, outcome in b.items() if key not in a)
    # Scenario keys are compared only if both scenarios are known.
    keys = None
    if first.scenario is not None and second.scenario is not None:
        keys = _changes(_keys(first.scenario), _keys(second.scenario))
    return RunDifferences(keys, common, (only, others))


def key_text(value: Any) -> str:
    """Return the value of a scenario key as written in a scenario file, shortened.

    >>> key_text([2, 4, 8]), key_text({"strategy": "zero3"}), key_text(None)
    ('[2, 4, 8]', '{strategy: zero3}', 'not set')
    """
    if value is None:
        return "not set"
    if isinstance(value, list) and len(value) > _MOST_VALUES:
        # The text ends with "]", which is replaced by the number of omitted values.
        start = yaml_dialect.dump(value[:_MOST_VALUES], one_line=True)
        return f"{start[:-1]}, and {len(value) - _MOST_VALUES:,} more]"
    text = yaml_dialect.dump(value, one_line=True)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _by_identity(
    run: ReportedRun, axes: Sequence[str], runs: Sequence[ReportedRun]
) -> dict[tuple[str, int], PointOutcome]:
    """Return a run's outcomes by (settings on `axes`, occurrence): equal points in a run are numbered from 0."""
    outcomes: dict[tuple[str, int], PointOutcome] = {}
    # Several points may have equal settings in the common axes, for example with a size in other units.
    counts = Counter[str]()
    for outcome in run.outcomes:
        identity = _identity(run, outcome, axes, runs)
        outcomes[identity, counts[identity]] = outcome
        counts[identity] += 1
    return outcomes


def _identity(run: ReportedRun, outcome: PointOutcome, axes: Sequence[str], runs: Sequence[ReportedRun]) -> str:
    """Return a text that is equal for equal points of two runs: the point's value on each axis, in a normal form."""
    settings = flat(outcome.settings)
    data = dict(run.scenario or {})
    # The point's settings replace the scenario's values, as in the simulation.
    put(data, settings)
    # Without both scenarios, the value of a key that a run does not vary is unknown.
    keys = axes if all(other.scenario is not None for other in runs) else tuple(settings)
    # A value that the key cannot read (a size without a unit in an older report) is compared in its written form.
    values = {key: settings.get(key) if (value := _plain(key, data)) is None else value for key in keys}
    return json.dumps(values, sort_keys=True)


def _plain(key: str, data: Mapping[str, Any]) -> Any:
    """Return the value of a scenario key in a normal form; None for an unknown key or an unreadable value."""
    return adapter(key).dump_python(value_of(key, data), mode="json", warnings=False) if key in axis_keys() else None


def _common(first: PointOutcome, second: PointOutcome) -> CommonPoint:
    # Rows of the table contain settings too; settings differ by design, and are removed before the comparison.
    a, b = (row(PointOutcome(0, {}, outcome.engine, outcome.report, outcome.error)) for outcome in (first, second))
    settings, places = {**first.settings, **second.settings}, (first.index, second.index)
    changes = sorted(_changes(a, b), key=_importance)
    return CommonPoint(settings, places, tuple(changes), (first.report, second.report))


def _importance(change: ValueChange) -> tuple[int, float]:
    """Return a sort key: main measures, then other figures, each by the size of the change; then derived figures."""
    return (2, 0.0) if change.derived else (int(change.key not in _MAIN), -change.size)


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[ValueChange, ...]:
    return tuple(
        ValueChange(key, first.get(key), second.get(key))
        for key in dict.fromkeys([*first, *second])
        if not _same(first.get(key), second.get(key))
    )


def _keys(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario as {dotted key: value}; a swept or compared key has its list of values."""
    axes = {key: values for kind in KINDS for key, values in _mapping(scenario.get(kind)).items()}
    entries = dict(_leaves((), {key: value for key, value in scenario.items() if key not in KINDS}))
    # An axis replaces the keys below it. An axis over a whole section is an exception: some of its settings may leave
    # keys in the section to the scenario.
    inside = tuple(f"{axis}." for axis in axes if axis not in SECTIONS)
    return {key: value for key, value in entries.items() if not key.startswith(inside)} | axes


def _leaves(at: tuple[str, ...], data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) pairs from nested mappings, down to the deepest keys that a scenario has."""
    for name, value in data.items():
        key = (*at, str(name))
        # A mapping without known keys, such as a GPU in full, is a single value.
        if isinstance(value, Mapping) and fields(key):
            yield from _leaves(key, value)
        else:
            yield ".".join(key), value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _same(first: Any, second: Any) -> bool:
    """Return True if two figures are equal; floats are compared up to rounding of sums in another order."""
    if isinstance(first, float) and isinstance(second, float):
        return isclose(first, second, rel_tol=_ROUNDING)
    return bool(first == second)
