"""Repeat a run, and report whether results are equal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import MOST_DATA, read_bytes
from simulator.cli.options import NoPlugins, Trace
from simulator.cli.progress import progress

if TYPE_CHECKING:
    from simulator.run.outcome import PointOutcome
    from simulator.scenario.records import Point, Scenario
    from simulator.sweeps.artifacts import ArtifactWriter


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Directory for the results; discarded if omitted.")
    ] = None,
    trace: Trace = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.findings.answer import answer
    from simulator.findings.comparison import Comparison
    from simulator.results import run_directory
    from simulator.results.page.page import keeps_views
    from simulator.scenario.load import points
    from simulator.sweeps.artifacts import ArtifactWriter

    if trace and out is None:
        raise ScenarioError("--trace: needs --out DIR, because results are discarded without --out")
    scenario = run_directory.load(folder)
    numbered = list(enumerate(points(scenario)))
    # Without --out, the new run serves only for the comparison.
    with tempfile.TemporaryDirectory() as scratch:
        target = run_directory.create(scenario.name, out) if out else Path(scratch)
        try:
            view = keeps_views(len(numbered))
            keeper = ArtifactWriter(target, len(numbered) == 1, trace=trace, view=view) if out else None
            outcomes = _played(scenario, numbered, target, keeper)
        # Also after Ctrl-C: an incomplete directory is of no use.
        except BaseException:
            run_directory.discard(target)
            raise
    answered = answer(Comparison(scenario, outcomes))
    # Equal bytes, because reports do not depend on time, machine or number of processes.
    if run_directory.report_text(outcomes, answered).encode() == read_bytes(folder / "report.json", most=MOST_DATA):
        typer.echo(f"{folder}: repeated; the report is identical")
        return
    typer.echo(f"{folder}: repeated; the report differs; `rerun --out DIR` and `diff` show the differences", err=True)
    raise typer.Exit(1)


def _played(
    scenario: Scenario, numbered: list[tuple[int, Point]], target: Path, keeper: ArtifactWriter | None
) -> list[PointOutcome]:
    from simulator.findings.answer import answer
    from simulator.findings.comparison import Comparison
    from simulator.results import run_directory
    from simulator.sweeps.sweep import play_points

    run_directory.begin(target, scenario)
    outcomes = []
    with progress(len(numbered), what=scenario.name) as step:
        # In this process: the original run's number of processes does not matter.
        for outcome in play_points(numbered, 1, keeper):
            outcomes.append(outcome)
            step()
    compared = Comparison(scenario, outcomes)
    run_directory.finish(target, compared, answer(compared), 0.0, page=keeper is not None)
    return outcomes
