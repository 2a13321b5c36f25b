"""Which parts of a training are code from outside this package, and where is the code?

A scenario keeps the path of a file as written. Rules and the planner of a step ask catalogs for a part by its name
alone, therefore they get a training whose paths are absolute.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics.catalog import Catalog
from simulator.basics.document import Key
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import is_python_file, require_record
from simulator.basics.foreign_code import located as located_file
from simulator.scenario import plot_names
from simulator.scenario.answer_spec import FINDINGS
from simulator.scenario.records import Scenario
from simulator.scenario.rule_violation import RuleViolation

if TYPE_CHECKING:
    from simulator.step.training_spec import TrainingSpec


def part_catalogs() -> dict[tuple[str, str], Catalog[Any]]:
    """Return the keys of `training` that name a part (mapping, key), each with the catalog of the part."""
    # Imported late, because a collective has none of them.
    from simulator.step.optimizers.optimizer import OPTIMIZERS
    from simulator.step.pipelines.schedule import SCHEDULES
    from simulator.step.strategies.strategy import STRATEGIES

    return {
        ("parallelism", "schedule"): SCHEDULES,
        ("sharding", "strategy"): STRATEGIES,
        ("optimizer", "name"): OPTIMIZERS,
    }


def catalogs(kind: str) -> dict[str, Catalog[Any]]:
    """Return the dotted keys that name a part, each with the part's catalog; `kind` is "collective" or "training"."""
    # Imported late, because it imports every algorithm.
    from simulator.collectives.algorithm import ALGORITHMS

    by_key: dict[str, Catalog[Any]] = {f"{kind}.algorithm": ALGORITHMS}
    if kind == "training":
        by_key |= {".".join((kind, *key)): catalog for key, catalog in part_catalogs().items()}
    return by_key


def located(spec: TrainingSpec, base: Path | None = None) -> TrainingSpec:
    """Return a training in which every path of a part's file is absolute; `base` is the folder for relative paths."""
    for (section, key), name in _names(spec).items():
        if is_python_file(name):
            inner = getattr(spec, section).replaced(**{key: located_file(name, base)})
            spec = spec.replaced(**{section: inner})
    return spec


def files(spec: TrainingSpec) -> tuple[str, ...]:
    """Return the paths of the files of a training's parts, as written."""
    return tuple(name for name in _names(spec).values() if is_python_file(name))


def unusable(spec: TrainingSpec, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation for each part of a training that cannot be loaded; `base` is the scenario's folder."""
    for (section, key), name in _names(spec).items():
        dotted = f"training.{section}.{key}"
        try:
            part_catalogs()[section, key].find(name, base)
        except ScenarioError as error:
            yield RuleViolation(tuple(dotted.split(".")), str(error), (dotted,))


def reporting(shape: Scenario) -> Iterator[tuple[Key, str, str, str]]:
    """Yield (key, name, constant, class) for each plot and finding of a scenario that is no shipped one.

    Their catalogs are in upper packages, because a report needs no plot and no finding to be simulated.
    """
    listed: Key = ("plots",) if isinstance(shape.plots, tuple) else ("plots", "kinds")
    for place, name in enumerate(shape.plotted.kinds or ()):
        if name not in plot_names.names():
            yield (*listed, place), name, "PLOT", "Plot"
    for place, entry in enumerate(shape.answer):
        if entry.finding not in FINDINGS:
            yield ("answer", place), entry.finding, "FINDING", "Finding"


def unusable_reporting(shape: Scenario, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation for each own plot and finding of a scenario that cannot be loaded."""
    for key, name, constant, kind in reporting(shape):
        try:
            require_record(name, constant, kind, base)
        except ScenarioError as error:
            yield RuleViolation(key, str(error), (str(key[0]),))


def usable(key: str, name: Any, base: Path) -> Any:
    """Return the value of a dotted key, with the absolute path of a part's file; other values unchanged.

    Raises
    ------
    ScenarioError
        The part cannot be loaded.
    """
    catalog = catalogs("training").get(key)
    if catalog is None:
        return name
    catalog.find(name, base)
    return located_file(name, base)


def runs_code(key: str, name: Any) -> bool:
    """Return True if code from outside this package runs to find the part that a dotted key names."""
    catalog = catalogs("training").get(key)
    return catalog is not None and isinstance(name, str) and catalog.runs_code(name)


def _names(spec: TrainingSpec) -> dict[tuple[str, str], str]:
    return {(section, key): getattr(getattr(spec, section), key) for section, key in part_catalogs()}
