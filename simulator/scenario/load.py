"""Reads and checks a scenario: from a shipped name, a path or a dict to a frozen, valid Scenario.

A bad file raises ScenarioError only, with every fault at once: a line for each fault, in file order.

    load_scenario      name or path -> Document          dict -> Document
    parse_scenario     1. overrides.apply                put --set into the data
                       2. _shape, axes.faults            each key and each axis alone
                       3. without_faults                 remove wrong values
                       4. _conflicts                     rules between keys, for every point
                       5. document.refuse                raise if anything was found
                       6. build_records.completed        fill in defaults
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from simulator.basics import registry, yaml_dialect
from simulator.basics.document import Document, Fault, Key
from simulator.basics.document import load as load_document
from simulator.basics.errors import ScenarioError
from simulator.basics.plain_data import at
from simulator.basics.reading import shown
from simulator.basics.sections import flat, overlap, varied
from simulator.scenario import (
    answer_rules,
    axes,
    build_records,
    cluster_rules,
    collective_rules,
    error_messages,
    overrides,
    own_parts,
    plot_names,
)
from simulator.scenario.partial_settings import InvalidSettingError, matching, no_such_point
from simulator.scenario.partial_validation import PartialScenario, without_faults
from simulator.scenario.records import KINDS, Point, Scenario, adapter
from simulator.scenario.resolve import resolved
from simulator.scenario.rule_violation import RuleViolation
from simulator.scenario.unused_keys import UnusedKeys

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts
    from simulator.scenario.training_rules import TrainingFiles

# Sweeps mostly repeat a fault in every point. After this many different faults, further points are not checked.
_MOST_CONFLICTS: Final = 20
# Most levels in nested data from Python. A dict may contain itself, and the copy would otherwise never end.
_DEEPEST: Final = 40
# Most characters shown of an axis value in a message.
_LONGEST: Final = 60


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Mapping[str, str] | None = None) -> Scenario:
    """Read and check a scenario from a name, path or dict, and return it as a frozen record.

    Parameters
    ----------
    source : str or Path or mapping
        Name of a shipped scenario, path to a file, or the same keys as a dict.
    overrides : mapping of str to str, optional
        Dotted key to YAML text, like --set: {"collective.size": "1 MiB", "cluster.world_size": "2, 4"}; several values
        make an axis.

    Raises
    ------
    ScenarioError
        A line for each fault: place, key, the value found, the allowed values.
    UnknownNameError
        No shipped scenario has this name.

    Examples
    --------
    >>> demo = load_scenario("ring_vs_parameter_server", {"cluster.world_size": "4"})
    >>> demo.cluster.world_size, list(demo.sweep)
    (4, ['collective.size'])
    """
    if isinstance(source, Mapping):
        return parse_scenario(Document("<dict>", _plain(source, ())), Path(), overrides)
    path = registry.find("scenario", str(source))
    # Messages name a shipped file by its path, because the user typed only a name; other files as the user typed them.
    shipped = str(source) in registry.names("scenario")
    document = load_document(path, source=_near(path) if shipped else str(source), keep_faults=True)
    return parse_scenario(document, path.parent, overrides)


def check_scenario(data: Mapping[str, Any], source: str, base: Path) -> Scenario:
    """Return the checked scenario from Python data instead of a file.

    `source` names the data in faults; relative paths start from `base`.
    """
    return parse_scenario(Document(source, _plain(data, ())), base)


def parse_scenario(document: Document, base: Path, changes: Mapping[str, str] | None = None) -> Scenario:
    """Return the checked scenario from a document; `base` is the folder for relative paths.

    Parameters
    ----------
    document : Document
        Data with the place of every key.
    base : Path
        Folder for relative paths.
    changes : mapping of str to str, optional
        Overrides, dotted key to YAML text.
    """
    registry.refuse_other_kind(document, "scenario")
    document, applied, unset = overrides.apply(document, changes or {})
    if not isinstance(document.data, dict):
        message = f"got {shown(document.data)}; must be a mapping, such as '{error_messages.example(())}'"
        document.refuse([document.fault((), message)])
    shape, faults = _shape(document)
    unused = UnusedKeys()
    # An override with invalid YAML makes its key unknown. A value in the file is then no longer the value meant.
    unknown = [fault.key for fault in unset if at(document.data, fault.key or ("",)) is not None]
    if shape is not None and not faults and not unknown:
        partial: PartialScenario | None = PartialScenario(document.data, shape)
    else:
        partial = without_faults(document.data, [*(fault.key for fault in faults), *unknown])
    faults += _kind(document)
    if partial is not None:
        faults += _conflicts(document, partial, base, unused)
    # For a duplicate key, only the text's fault is reported: nobody knows the intended value, and checking either value
    # would be a guess. Faults at keys with a broken override are dropped for the same reason.
    of_text = {fault.key for fault in document.faults}
    of_data = (fault for fault in faults if fault.key not in of_text and fault.key not in unknown)
    of_options = (replace(fault, key=()) for fault in unset)
    document.refuse([*overrides.renamed([*document.faults, *of_data], applied), *of_options])
    sound = cast(Scenario, shape)  # without a shape there is a fault, and `refuse` has raised
    noticed = [
        *_warnings(document, sound, unused),
        *_unanswered(document, sound),
        *_unknown_operations(document, sound, base),
    ]
    warnings = tuple(document.lines(overrides.renamed(noticed, applied)))
    scenario = build_records.completed(sound, document.question, document.source, base).replaced(warnings=warnings)
    # Checked last, because points can be multiplied out only for a valid scenario.
    document.refuse(overrides.renamed(_without_points(document, scenario), applied))
    return scenario


def _without_points(document: Document, scenario: Scenario) -> Iterator[Fault]:
    """Yield a fault for each entry of `plots.points` without a matching point."""
    listed = scenario.plotted.points
    for place, settings in enumerate(listed if isinstance(listed, list) else ()):
        try:
            if not matching(points(scenario), settings):
                yield document.fault(("plots", "points", place), no_such_point(scenario, settings))
        except InvalidSettingError as error:
            at: Key = ("plots", "points", place, error.key)
            yield from error_messages.faults(error.reasons, document, at, tuple(error.key.split(".")))


def points(scenario: Scenario) -> tuple[Point, ...]:
    """Return the points of a scenario: every combination of axis values, `compare` outermost, keys in file order.

    Raises
    ------
    ScenarioError
        The scenario is a plan and has no points.

    Examples
    --------
    >>> demo = load_scenario("ring_vs_parameter_server")
    >>> len(points(demo)), points(demo)[0].settings["collective.algorithm"]
    (54, 'ring')
    """
    _check_plays(scenario)
    data = axes.PointData(resolved(scenario), scenario.base)
    return tuple(_point(scenario, data, settings) for settings in axes.combinations(scenario.compare, scenario.sweep))


def check_single_point(scenario: Scenario) -> None:
    """Raise ScenarioError if a scenario has axes, or is a plan."""
    _check_plays(scenario)
    if scenario.compare or scenario.sweep:
        raise ScenarioError(
            f"{scenario.source}: has {'compare' if scenario.compare else 'sweep'}, and therefore several points; use "
            "simulator.sweep(scenario), or `simulator run`"
        )


def _check_plays(scenario: Scenario) -> None:
    if scenario.plan is not None:
        raise ScenarioError(
            f"{scenario.source}: is a plan and has no points; use simulator.plan(scenario), or `simulator plan`"
        )


def point_of(scenario: Scenario, settings: Mapping[str, Any]) -> Point:
    """Return the point with these settings, even outside the axes; rules between keys are not checked.

    Raises
    ------
    ValueError
        A key cannot have its value.
    """
    return _point(scenario, axes.PointData(resolved(scenario), scenario.base), settings)


def _point(scenario: Scenario, data: axes.PointData, settings: Mapping[str, Any]) -> Point:
    shape = Scenario.model_validate(data.of(settings))
    return Point(settings, build_records.completed(shape, scenario.question, scenario.source, scenario.base))


def check_name(name: str) -> None:
    """Raise ScenarioError if `name` cannot be the name of a scenario (value of the key `name` in a file)."""
    try:
        adapter("name").validate_python(name)
    except ValidationError as error:
        document = Document("name", name)
        document.refuse(error_messages.faults(error, document))


def _shape(document: Document) -> tuple[Scenario | None, list[Fault]]:
    """Check each key and each axis alone; return the validated scenario (None if a key is wrong) and every fault."""
    faults: list[Fault] = []
    shape: Scenario | None = None
    try:
        shape = Scenario.model_validate(document.data)
    except ValidationError as error:
        faults += error_messages.faults(error, document)
    # Axes are plain lists for pydantic; `axes` checks their values, also after faults elsewhere in the file.
    faults += axes.faults(document)
    return shape, faults


def _kind(document: Document) -> Iterator[Fault]:
    """Yield a fault unless the document has exactly one of the keys `collective` and `training`."""
    kinds = [kind for kind in KINDS if kind in document.data]
    if len(kinds) == 2:
        message = "excludes collective, because a scenario simulates one of the two; remove one"
        yield document.fault(("training",), message, of_key=True)
    elif not kinds:
        collective, training = error_messages.example(("collective",)), error_messages.example(("training",))
        message = f"missing; write for example '{collective}' or '{training}'"
        yield document.fault(("collective",), message, of_key=True)


def _warnings(document: Document, shape: Scenario, unused: UnusedKeys) -> Iterator[Fault]:
    """Yield a warning for each key that changes no number in any point, at the key or at the axis that sets it."""
    # Example: `sweep: {collective: [{algorithm: ring}, {servers.count: 4}]}` gives
    # axis_of = {"collective": "sweep"} and
    # set_by = {"collective.algorithm": "collective", "collective.servers.count": "collective"}.
    axis_of = {key: kind for kind in axes.KINDS for key in getattr(shape, kind)}
    set_by = {name: axis for axis, kind in axis_of.items() for name in varied({axis: getattr(shape, kind)[axis]})}
    for key, why in unused.reasons_by_key().items():
        dotted = ".".join(map(str, key))
        # The dots keep "collective.size" apart from "collective.sizes".
        axis = next((axis for name, axis in set_by.items() if f"{dotted}.".startswith(f"{name}.")), None)
        message = f"has no effect here: {why}"
        if axis is None:
            yield document.fault(key, message, of_key=True)
        else:
            # An axis with another name sets the key together with further keys: name the key in the message.
            yield document.fault(
                (axis_of[axis], axis), message if axis == dotted else f"{dotted} {message}", of_key=True
            )


def _unanswered(document: Document, shape: Scenario) -> Iterator[Fault]:
    """Yield a warning for a question that no finding answers, at the axis of the question."""
    for rule in answer_rules.without_threshold(shape, shape.question or document.question):
        yield document.fault(rule.key, rule.message, of_key=True)


def _unknown_operations(document: Document, shape: Scenario, base: Path) -> Iterator[Fault]:
    """Yield a warning if the model, a traced module, has operations without a cost of their own."""
    if shape.training is None:
        return
    from simulator.model.layer_list import LayerList
    from simulator.model.load import load_model

    model = load_model(shape.training.model, shape.training.seq_len, base)
    if isinstance(model, LayerList) and model.unknown:
        message = (
            f"{model.name} has operations with no cost of their own, which count by the bytes that they read and "
            f"write: {', '.join(model.unknown)}"
        )
        yield document.fault(("training", "model"), message, of_key=True)


def _conflicts(document: Document, partial: PartialScenario, base: Path, unused: UnusedKeys) -> Iterator[Fault]:
    """Yield a fault for each rule broken in any point; report each point's keys with an effect to `unused`."""
    shape, read_facts, files = partial.shape, cluster_rules.facts_reader(base), None
    # Rules are imported for what a scenario has: those of training know every part of a step.
    if shape.training is not None:
        from simulator.scenario.training_rules import training_files

        files = training_files(base)
    # A dict and not a list: most points repeat the same faults, and the dict keeps the first of each, in order.
    faults: dict[Fault, None] = {
        _located(document, shape, conflict, {}): None
        # Rules about answer and plan look at the whole scenario, with its axes, and are checked once.
        for conflict in (
            *answer_rules.conflicts(shape),
            *_conflicts_of_plan(shape, base),
            *own_parts.unusable_reporting(shape, base),
        )
        if not partial.doubts(conflict)
    }
    data = axes.PointData(partial.data, base)
    for settings in axes.combinations(shape.compare, shape.sweep):
        try:
            point = Scenario.model_validate(data.of(settings)) if settings else shape
        # The axis lies below a missing mapping; the missing mapping is reported elsewhere.
        except ValidationError:
            continue
        for conflict in _broken(point, read_facts, files, base):
            if not partial.doubts(conflict):
                faults[_located(document, shape, conflict, settings)] = None
        unused.add_point(point, _facts(read_facts, point), base)
        if len(faults) >= _MOST_CONFLICTS:
            break
    yield from faults


def _conflicts_of_plan(shape: Scenario, base: Path) -> Iterator[RuleViolation]:
    if shape.plan is not None:
        from simulator.scenario import plan_rules

        yield from plan_rules.conflicts(shape, base)


def _facts(read_facts: cluster_rules.FactsReader, shape: Scenario) -> TopologyFacts | None:
    try:
        return read_facts(shape.cluster.topology)
    # An unusable topology is reported by `_broken`; without facts, fewer rules are checked.
    except ScenarioError:
        return None


def _broken(
    shape: Scenario, read_facts: cluster_rules.FactsReader, files: TrainingFiles | None, base: Path
) -> Iterator[RuleViolation]:
    facts = None
    try:
        facts = read_facts(shape.cluster.topology)
    except ScenarioError as error:
        yield from cluster_rules.unusable(error, "topology")
    yield from cluster_rules.conflicts(shape.cluster, facts, base)
    if shape.collective is not None:
        yield from collective_rules.conflicts(shape.collective, shape.cluster, facts, base)
    if shape.training is not None and files is not None:
        from simulator.scenario import training_rules

        yield from training_rules.conflicts(shape.training, shape.cluster, facts, files, base)
    possible = plot_names.names_of(shape.kind)
    listed: Key = ("plots",) if isinstance(shape.plots, tuple) else ("plots", "kinds")
    for i, plot in enumerate(shape.plotted.kinds or ()):
        # Plots outside the package may exist for both kinds.
        if plot not in possible and plot in plot_names.names():
            yield RuleViolation(
                (*listed, i), f"got {plot!r}; plots of {KINDS[shape.kind]} are {', '.join(possible)}", ("plots",)
            )


def _located(document: Document, shape: Scenario, conflict: RuleViolation, settings: Mapping[str, Any]) -> Fault:
    """Return a rule violation as a fault: at its own key, or at the last axis that sets a key involved in the rule.

    Example: `shard_size: 3` in the file, `sweep: {cluster.world_size: [6, 8]}`. The rule breaks only in the second
    point. The fault is reported at `sweep.cluster.world_size`, with the text "with cluster.world_size 8: ...".
    """
    # Axes whose setting changes a key that the rule looked at.
    axis_of = {key: kind for kind in axes.KINDS for key in getattr(shape, kind)}
    involved = [
        a for a in settings if any(overlap(key, i) for key in flat({a: settings[a]}) for i in conflict.involved)
    ]
    if not involved:
        # A default or missing key has no place in the text; the fault is reported at the mapping around it.
        return document.fault(
            conflict.key, conflict.message, of_key=conflict.of_key or conflict.key not in document.values
        )
    last = involved[-1]
    # The value alone is wrong, without any other key: report the value's place in the axis list.
    if conflict.involved == (last,) and conflict.key == tuple(last.split(".")):
        at = document.data[axis_of[last]][last].index(settings[last])
        return document.fault((axis_of[last], last, at), conflict.message)
    settings_text = ", ".join(f"{a} {_brief(settings[a])}" for a in involved)
    dotted = ".".join(map(str, conflict.key))
    where: Key = (axis_of[last], last)
    return document.fault(where, f"with {settings_text}: {dotted}: {conflict.message}", of_key=True)


def _brief(value: Any) -> str:
    """Return a value as YAML text on a single line, shortened."""
    text = yaml_dialect.dump(value, one_line=True)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _near(path: Path) -> str:
    """Format a path, relative to the working directory if below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _plain(value: Any, key: Key) -> Any:
    """Return a copy of Python data as plain dicts and lists; `key` is the data's path, for errors."""
    if len(key) > _DEEPEST:
        raise ScenarioError(f"<dict>: {'.'.join(map(str, key[:3]))}: nested too deeply")
    if isinstance(value, Mapping):
        return {name: _plain(inner, (*key, name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*key, i)) for i, inner in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    # numpy scalars, from a range or a table column, become Python numbers. numpy is not imported for this.
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
