"""Load a scenario: a shipped name, a path or a dict in, a frozen and valid Scenario out.

Rule: every fault of a file is told at once, one line each, in the file's order; nothing but ScenarioError comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from simulator.basics import document, registry, yaml_dialect
from simulator.basics.document import Document, Fault, Key
from simulator.errors import ScenarioError
from simulator.scenario import (
    axes,
    cluster_rules,
    collective_rules,
    making,
    overrides,
    training_rules,
    wording,
)
from simulator.scenario.conflict import Conflict
from simulator.scenario.mending import Mended, mended
from simulator.scenario.reading import shown
from simulator.scenario.records import Point, Scenario
from simulator.scenario.resolve import resolved
from simulator.scenario.shape import KINDS, ScenarioShape, adapter
from simulator.scenario.unused import Unused

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts

_MOST_COMBINATIONS_TOLD: Final = 20
_DEEPEST: Final = 40
_LONGEST: Final = 60


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Mapping[str, str] | None = None) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    source : str or Path or mapping
        The name of a shipped scenario, the path of a file, or the same keys as a dict.
    overrides : mapping of str to str, optional
        Dotted key to YAML text, as in --set: {"collective.size": "1 MiB", "sweep.cluster.world_size": "[2, 4]"}.

    Returns
    -------
    Scenario

    Raises
    ------
    ScenarioError
        One line for each fault: place, key, what was got, what is allowed.
    UnknownNameError
        No shipped scenario of that name.

    Examples
    --------
    >>> demo = load_scenario("ring_vs_parameter_server", {"cluster.world_size": "4"})
    >>> demo.cluster.world_size, list(demo.sweep)
    (4, ['collective.size'])
    """
    if isinstance(source, Mapping):
        return parse_scenario(Document("<dict>", _plain(source, ())), Path(), overrides)
    path = registry.find("scenario", str(source))
    shipped = str(source) in registry.names("scenario")
    read = document.load(path, source=_near(path) if shipped else str(source), keep_faults=True)
    return parse_scenario(read, path.parent, overrides)


def check_scenario(data: Mapping[str, Any], source: str, base: Path) -> Scenario:
    """Check data from Python that stands for a file: `source` is how it is told, relative paths start from `base`."""
    return parse_scenario(Document(source, _plain(data, ())), base)


def parse_scenario(read: Document, base: Path, wanted: Mapping[str, str] | None = None) -> Scenario:
    """Check a document that was read; `base` is the folder that relative paths start from."""
    read, done = overrides.apply(read, wanted or {})
    if not isinstance(read.data, dict):
        told = f"got {shown(read.data)}; must be a mapping, such as '{wording.example(())}'"
        read.refuse([read.fault((), told)])
    shape, found = _shape(read)
    unused = Unused()
    valid = Mended(read.data, shape) if shape is not None and not found else mended(read.data, (f.key for f in found))
    found += _kind(read)
    if valid is not None:
        found += _conflicts(read, valid, base, unused)
    of_text = {fault.key for fault in read.faults}
    read.refuse(overrides.renamed([*read.faults, *(fault for fault in found if fault.key not in of_text)], done))
    sound = cast(ScenarioShape, shape)
    warnings = read.told(overrides.renamed(_in_vain(read, sound, unused), done))
    return replace(making.scenario(sound, read.question, read.source, base), warnings=warnings)


def points(scenario: Scenario) -> tuple[Point, ...]:
    """Multiply compare and sweep out, compare outermost, in the file's order.

    Examples
    --------
    >>> demo = load_scenario("ring_vs_parameter_server")
    >>> len(points(demo)), points(demo)[0].settings["collective.algorithm"]
    (54, 'ring')
    """
    data = resolved(scenario)
    found = []
    for settings in axes.combinations(scenario.compare, scenario.sweep):
        shape = ScenarioShape.model_validate(axes.applied(data, settings))
        found.append(Point(settings, making.scenario(shape, scenario.question, scenario.source, scenario.base)))
    return tuple(found)


def check_name(name: str) -> None:
    """Refuse a name of a scenario that its file would be refused for."""
    try:
        adapter("name").validate_python(name)
    except ValidationError as error:
        read = Document("name", name)
        read.refuse(wording.faults(error, read))


def _shape(read: Document) -> tuple[ScenarioShape | None, list[Fault]]:
    """What each key says by itself, and all that is wrong with it; None where that cannot be read."""
    found: list[Fault] = []
    shape: ScenarioShape | None = None
    try:
        shape = ScenarioShape.model_validate(read.data)
    except ValidationError as error:
        found += wording.faults(error, read)
    found += axes.faults(read)
    return shape, found


def _kind(read: Document) -> Iterator[Fault]:
    """A scenario is of a collective or of a training step, never of both."""
    there = [kind for kind in KINDS if kind in read.data]
    if len(there) == 2:
        told = "stands beside collective, but a scenario plays one of the two; remove one"
        yield read.fault(("training",), told, of_key=True)
    elif not there:
        told = f"missing; write for example '{wording.example(('collective',))}' or '{wording.example(('training',))}'"
        yield read.fault(("collective",), told, of_key=True)


def _in_vain(read: Document, shape: ScenarioShape, unused: Unused) -> Iterator[Fault]:
    """Each key without effect, told where it stands: at itself, or at the axis that brings it."""
    axis_of = {key: kind for kind in axes.KINDS for key in getattr(shape, kind)}
    for key, why in unused.told().items():
        dotted = ".".join(map(str, key))
        axis = next((axis for axis in axis_of if f"{dotted}.".startswith(f"{axis}.")), None)
        told = f"changes no number here: {why}"
        if axis is None:
            yield read.fault(key, told, of_key=True)
        else:
            yield read.fault((axis_of[axis], axis), told if axis == dotted else f"{dotted} {told}", of_key=True)


def _conflicts(read: Document, valid: Mended, base: Path, unused: Unused) -> Iterator[Fault]:
    shape, ask, ask_training = valid.shape, cluster_rules.facts_of(base), training_rules.asks_of(base)
    told: dict[Fault, None] = {}
    for settings in axes.combinations(shape.compare, shape.sweep):
        try:
            point = ScenarioShape.model_validate(axes.applied(valid.data, settings)) if settings else shape
        except ValidationError:  # an axis below what is not there, which is told as missing
            continue
        for conflict in _broken(point, ask, ask_training, base):
            if not valid.doubts(conflict):
                told[_told(read, shape, conflict, settings)] = None
        unused.look_at(point, _facts(ask, point))
        if len(told) >= _MOST_COMBINATIONS_TOLD:
            break
    yield from told


def _facts(ask: cluster_rules.AskFacts, shape: ScenarioShape) -> TopologyFacts | None:
    try:
        return ask(shape.cluster.topology)
    except ScenarioError:
        return None


def _broken(
    shape: ScenarioShape, ask: cluster_rules.AskFacts, ask_training: training_rules.Asks, base: Path
) -> Iterator[Conflict]:
    facts = None
    try:
        facts = ask(shape.cluster.topology)
    except ScenarioError as error:
        yield from cluster_rules.unusable(error, "topology")
    yield from cluster_rules.conflicts(shape.cluster, facts, base)
    if shape.collective is not None:
        yield from collective_rules.conflicts(shape.collective, shape.cluster, facts)
    if shape.training is not None:
        yield from training_rules.conflicts(shape.training, shape.cluster, facts, ask_training, base)
    drawn = making.plots_of(shape.kind)
    for i, plot in enumerate(shape.plots):
        if plot not in drawn:
            yield Conflict(
                ("plots", i), f"got {plot!r}; of {KINDS[shape.kind]} there are {', '.join(drawn)}", ("plots",)
            )


def _told(read: Document, shape: ScenarioShape, conflict: Conflict, settings: Mapping[str, Any]) -> Fault:
    """Tell a conflict at its own key, or at the axis without which it would not be."""
    axis_of = {key: kind for kind in axes.KINDS for key in getattr(shape, kind)}
    involved = [
        a for a in settings if any(f"{a}.".startswith(f"{i}.") or i.startswith(f"{a}.") for i in conflict.involved)
    ]
    if not involved:
        # What is not in the text (a default, or a key that is missing) is told at the key around it.
        return read.fault(conflict.key, conflict.message, of_key=conflict.of_key or conflict.key not in read.values)
    last = involved[-1]
    if conflict.involved == (last,) and conflict.key == tuple(last.split(".")):
        at = read.data[axis_of[last]][last].index(settings[last])
        return read.fault((axis_of[last], last, at), conflict.message)
    chosen = ", ".join(f"{a} {_brief(settings[a])}" for a in involved)
    dotted = ".".join(map(str, conflict.key))
    where: Key = (axis_of[last], last)
    return read.fault(where, f"with {chosen}: {dotted}: {conflict.message}", of_key=True)


def _brief(value: Any) -> str:
    """A value as it is written in a flow list."""
    text = yaml_dialect.dump(value, one_line=True)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _near(path: Path) -> str:
    """A path as seen from the working directory, where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _plain(value: Any, key: Key) -> Any:
    """Copy data from Python as plain data, so that nobody can change a scenario from behind."""
    if len(key) > _DEEPEST:
        raise ScenarioError(f"<dict>: {'.'.join(map(str, key[:3]))}: nested too deeply")
    if isinstance(value, Mapping):
        return {name: _plain(inner, (*key, name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*key, i)) for i, inner in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    # numpy's scalars, as a range or a table's column gives them, without importing numpy for it.
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
