"""Reads a file that asks what is left of days with failures: a scenario, how long it runs, and what fails.

Example:

    # How often should Llama 3 405B save?
    scenario: llama3_405b
    days: 30 d
    save: synchronous
    compare: {interval: [10 min, 1 h, 6 h]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, ValidationError

from simulator.basics import reading, registry, yaml_dialect
from simulator.basics.counts import parse_days, parse_length
from simulator.basics.document import Document, Key, load
from simulator.basics.errors import one_of
from simulator.basics.spec import Rank, Spec
from simulator.scenario.load import check_scenario, load_scenario
from simulator.scenario.plain_faults import plain_faults
from simulator.scenario.records import Scenario, Seed

# Longest run [days]; larger numbers are typing errors.
_MOST_DAYS: Final = 1e5
# Most values along the axis.
_MOST_VALUES: Final = 50
_DAY: Final = 86400.0


def _length(value: Any) -> float:
    tokens = parse_length(value) if isinstance(value, str) else value
    return float(reading.number(positive=True, most=1e18).reader(tokens))


def _days(value: Any) -> float:
    days = parse_days(value) if isinstance(value, str) else value
    return float(reading.number(positive=True, most=_MOST_DAYS).reader(days))


def _days_or_duration(value: Any) -> float:
    """Return a time in seconds, written in days ("2 d") or as a duration ("4 h")."""
    if isinstance(value, str) and value.strip().endswith(("d", "w")):
        return _days(value) * _DAY
    return float(reading.duration().reader(value))


def _failures(value: Any) -> float:
    """Return the failures of a node, which are written for 1,000 nodes."""
    return float(reading.number(positive=False, most=1e4).reader(value)) / 1000.0


Days = Annotated[float, reading.ValueReader(_days, dict)]
DaysOrDuration = Annotated[float, reading.ValueReader(_days_or_duration, dict)]
Duration = Annotated[float, reading.duration()]
Save = Literal["asynchronous", "synchronous"]


class RunOfDays(Spec):
    """A run of days: its length, what fails, and how it saves (keys of a file of days)."""

    days: Days | None = None  # length [days]; None if `tokens` ends the run
    # Work of the whole training, in tokens without padding, or samples
    tokens: Annotated[float, reading.ValueReader(_length, dict)] | None = None
    # Failures for each node and day that stop the job [1/day]; None: from `mtbf`, or without it as often as usual
    failures: Annotated[float, reading.ValueReader(_failures, dict)] | None = None
    mtbf: DaysOrDuration | None = None  # mean time between failures of the whole job on all of its nodes [s]
    # Whether the step goes on while a checkpoint travels from host memory to the storage
    save: Annotated[Save, reading.choice(get_args(Save))] = "asynchronous"
    interval: Duration | None = None  # work between saves [s]; None for the best
    # Rate of the storage for all GPUs together [B/s]; None for the rate of the scenario's storage, or without one
    # 160 MB/s for each GPU
    storage: Annotated[float, reading.rate()] | None = None
    # As in `Recovery` [s]
    detection: Duration = 30.0
    watchdog: Duration = 600.0
    restart: Duration = 300.0
    spares: Rank | None = None
    repair: DaysOrDuration = _DAY
    seed: Seed = 0


class DaysSpec(RunOfDays):
    """A file of days (its keys)."""

    scenario: str | dict[str, Any]
    settings: dict[str, Any] = Field(default={}, alias="set")
    compare: dict[str, list[Any]] = Field(default={})


# Keys that may be compared.
COMPARED: Final = tuple(name for name in RunOfDays.model_fields if name not in ("days", "tokens", "seed"))


@dataclass(frozen=True, slots=True)
class DaysFile:
    """A question about days with failures, as a file says it."""

    source: str  # name of the file
    question: str  # first comment of the file
    scenario: Scenario  # the training
    run: RunOfDays  # length, failures and saves
    along: str | None = None  # key that is compared; None if none is
    values: tuple[tuple[str, Any], ...] = ()  # its values, as written and as read


def is_days_file(data: Any) -> bool:
    """Return True if a document's data is a file of days.

    >>> is_days_file({"scenario": "job.yaml"}), is_days_file({"name": "job", "training": {}})
    (True, False)
    """
    return isinstance(data, dict) and "scenario" in data and "jobs" not in data


def load_days(source: str | Path, overrides: Mapping[str, str]) -> DaysFile:
    """Return the question of a file of days, or of a scenario, which alone says nothing of days.

    `overrides` change keys of the scenario, as --set does.

    Raises
    ------
    ScenarioError
        A line for each fault.
    """
    path = _path(str(source))
    document = None if path is None else load(path, source=str(source))
    if path is None or document is None or not is_days_file(document.data):
        return DaysFile(str(source), "", load_scenario(source, overrides), RunOfDays())
    # A key without a value has its default.
    data = {
        key: value for key, value in document.data.items() if value is not None or key not in RunOfDays.model_fields
    }
    try:
        spec = DaysSpec.model_validate(data)
    except ValidationError as error:
        document.refuse(plain_faults(document, error, lambda _: DaysSpec))
        raise  # without a fault above
    along, values = _axis(document, spec)
    scenario = _scenario(document, spec, path.parent, overrides)
    return DaysFile(document.source, document.question, scenario, spec, along, values)


def _path(source: str) -> Path | None:
    """Return the path of a shipped file of days, or of an existing file; None for other names."""
    if source in registry.names("days"):
        return registry.find("days", source)
    return Path(source) if registry.is_file(Path(source)) else None


def _axis(document: Document, spec: DaysSpec) -> tuple[str | None, tuple[tuple[str, Any], ...]]:
    """Return the compared key and its values, each as written and as read."""
    if not spec.compare:
        return None, ()
    where: Key = ("compare",)
    if len(spec.compare) > 1:
        document.refuse([document.fault(where, f"has {len(spec.compare)} keys; compare the values of one")])
    ((name, values),) = spec.compare.items()
    if name not in COMPARED:
        document.refuse([document.fault((*where, name), f"unknown key; {one_of(COMPARED, name)}", of_key=True)])
    if not 1 <= len(values) <= _MOST_VALUES:
        message = f"got {len(values)} values; must be 1 to {_MOST_VALUES}"
        document.refuse([document.fault((*where, name), message)])
    faults, read = [], []
    for place, value in enumerate(values):
        try:
            parsed = DaysSpec.model_validate({"scenario": "x", name: value})
        except ValidationError as error:
            message = next(iter(plain_faults(document, error, lambda _: DaysSpec))).message
            faults.append(document.fault((*where, name, place), message))
        else:
            read.append((str(value), getattr(parsed, name)))
    document.refuse(faults)
    return name, tuple(read)


def _scenario(document: Document, spec: DaysSpec, base: Path, overrides: Mapping[str, str]) -> Scenario:
    """Return the training of a file of days, with the file's changes and then the command's."""
    changes = {key: yaml_dialect.dump(value, one_line=True) for key, value in spec.settings.items()} | dict(overrides)
    if isinstance(spec.scenario, str):
        path = base / spec.scenario
        return load_scenario(path if registry.is_file(path) else spec.scenario, changes)
    # A scenario in the file needs no name.
    data, source = {"name": Path(document.source).stem} | spec.scenario, f"{document.source}: scenario"
    if changes:
        from simulator.scenario.load import parse_scenario

        return parse_scenario(Document(source, data), base, changes)
    return check_scenario(data, source, base)
