"""Draw another picture of a finished run.

A picture of a single point's details needs a new simulation of this point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.basics.counts import number_of
from simulator.basics.document import Document, parse
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import located
from simulator.basics.input_files import MOST_DATA, read_json
from simulator.cli.options import NoPlugins, Svg
from simulator.records.setting_text import label
from simulator.results.drawn import Undrawn

if TYPE_CHECKING:
    from simulator.run.outcome import PointOutcome
    from simulator.scenario.records import Scenario


def command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    kind: Annotated[
        str, typer.Option("--kind", metavar="NAME", help="Kind of picture: timeline, memory, ...; see `list plots`.")
    ],
    point: Annotated[
        list[str] | None,
        typer.Option("--point", metavar="KEY=VALUE", help="Setting of the point to draw. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="PNG file to write; in RUN/plots if omitted.")
    ] = None,
    svg: Svg = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.results import run_directory
    from simulator.scenario.load import points
    from simulator.scenario.records import PlotsSpec

    scenario, kind = run_directory.load(folder), located(kind)
    outcomes, spoken, findings = _report(folder / "report.json", len(points(scenario)))
    # Every check comes before matplotlib is imported.
    selected = _wanted(scenario, point or ())
    _check_kind(scenario, kind, single=bool(selected))
    # `model_construct` skips validation: kind and settings were checked above.
    request = scenario.replaced(plots=PlotsSpec.model_construct(kinds=(kind,), points=[selected] if selected else None))
    from simulator.report.plots import style
    from simulator.results.pictures import figures, undrawn_text
    from simulator.results.plotted_points import MOST_DRAWN, plotted_points

    point_choice = plotted_points(request, outcomes, spoken)
    # A figure may be impossible for a point, for example without memory; the reason is printed.
    pictures, missing = [], []
    for name, figure in figures(request, outcomes, point_choice, findings):
        if isinstance(figure, Undrawn):
            missing.append(undrawn_text(name, figure))
        else:
            pictures.append((name, figure))
    if not pictures:
        why = f" ({missing[0]})" if missing else ""
        raise ScenarioError(
            f"--kind {kind}: the results of {_said(point or ())} contain no data for this kind{why}; try another kind"
        )
    # Without --out, new pictures join the run's pictures.
    for name, figure in _named(pictures, out):
        target = out.parent if out is not None else folder / "plots"
        try:
            typer.echo(f"picture: {style.save(figure, target, name, svg=svg)}")
        except OSError as error:
            raise ScenarioError(f"--out: {target}: cannot be written: {error.strerror or error}") from error
    # Settings may match many points; more pictures than this would hide the answer.
    beyond = Undrawn(f"one command draws at most {MOST_DRAWN} points; select other points with a further --point")
    for line in (*missing, *(undrawn_text(f"{kind}{name}", beyond) for name in point_choice.beyond)):
        typer.echo(line, err=True)


def _said(settings: Sequence[str]) -> str:
    return ", ".join(settings) or "this run"


def _named(plots: list[tuple[str, Any]], out: Path | None) -> list[tuple[str, Any]]:
    """Return (file name, figure) pairs; the path `out` names the file of a single figure."""
    if out is None:
        return plots
    if out.suffix != ".png":
        raise ScenarioError(f"--out: got {out}; must end with .png (--svg also writes an SVG file)")
    if len(plots) > 1:
        names = ", ".join(name for name, _ in plots)
        raise ScenarioError(
            f"--out: got one file for {len(plots)} pictures ({names}); select a single picture with --point, or omit "
            "--out"
        )
    return [(out.stem, plots[0][1])]


def _check_kind(scenario: Scenario, kind: str, *, single: bool) -> None:
    from simulator.report.plots import catalog
    from simulator.report.plots.plot import ComparisonPlot

    of_scenario = "collective" if scenario.training is None else "training"
    (plot,) = catalog.named(of_scenario, (kind,), scenario.base, "--kind").values()
    # Comparison plots show every point anyway.
    if single and isinstance(plot, ComparisonPlot):
        raise ScenarioError(f"--point: {kind} shows all points together; omit --point, or name another kind")


def _wanted(scenario: Scenario, settings: Sequence[str]) -> dict[str, Any]:
    """Return the settings in the --point options as {key: value}; raise ScenarioError if no point has them."""
    from simulator.scenario import error_messages
    from simulator.scenario.load import points
    from simulator.scenario.partial_settings import InvalidSettingError, full_key, matching, no_such_point

    selection: dict[str, Any] = {}
    every = points(scenario)
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--point {text}: must be KEY=VALUE, such as --point cluster.world_size=8")
        try:
            full = full_key(scenario, key.strip())
            # Texts of the printed table, such as "parameter_server (1 server)".
            printed = {
                label(full, of_point.settings[full]): of_point.settings[full]
                for of_point in every
                if full in of_point.settings
            }
            is_printed = value.strip() in printed
            selection[full] = printed[value.strip()] if is_printed else parse(value, f"--point {text}").data
        # A ScenarioError is a ValueError too; its text names the option already.
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(f"--point {text}: {error}") from error
    try:
        matches = matching(every, selection)
    except InvalidSettingError as error:
        (first, *_) = error_messages.faults(error.reasons, Document("", None), (), tuple(error.key.split(".")))
        raise ScenarioError(f"--point {error.key}: {first.message}") from error
    if not matches:
        raise ScenarioError(f"--point: {no_such_point(scenario, selection)}")
    return selection


def _report(path: Path, count: int) -> tuple[list[PointOutcome], list[int] | None, list[Any]]:
    """Return from a report.json the outcomes, the points named in the answer (None if not stored), and the findings.

    Raise ScenarioError unless it has `count` points, as the scenario beside it.
    """
    from simulator.run.outcome import read_outcome

    try:
        read = read_json(path, most=MOST_DATA)
        outcomes = [read_outcome(place, point) for place, point in enumerate(read["points"])]
        answer = read.get("answer", {})
        spoken, findings = answer.get("points"), answer.get("findings", [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # A file too large to read has its own message.
        if isinstance(error, ScenarioError) and error.__cause__ is None:
            raise
        raise ScenarioError(f"{path}: not the report of a run; give a directory written by `simulator run`") from error
    # Both files come from the same run; different counts mean that one was changed.
    if len(outcomes) != count:
        raise ScenarioError(f"{path}: has {number_of(len(outcomes), 'point')}, but scenario.yaml beside it has {count}")
    # A report may lack the answer's points.
    valid = isinstance(spoken, list) and all(isinstance(index, int) and 0 <= index < count for index in spoken)
    return outcomes, spoken if valid else None, findings if valid else []
