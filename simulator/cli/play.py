"""`simulator run` and `simulator sweep`: play all points, show progress, leave a directory, end with one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from simulator import run_directory
from simulator.cli.settings import as_axes, as_overrides
from simulator.errors import ScenarioError
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Point, Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweep import Outcome, play_points

# Columns of a table that goes to a file or a pipe, which nobody reads in a window of 80.
_FILE_WIDTH = 150


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How to play, and what to leave."""

    out: Path | None = None
    as_json: bool = False
    engine: str | None = None
    transfers: bool = False
    trace: bool = False
    jobs: int = 1
    resume: bool = False
    axes: bool = False


def play(source: str, settings: Sequence[str], options: PlayOptions) -> None:
    """Play a scenario and tell about it."""
    began = time.perf_counter()
    texts = [*settings, *([f"engine={options.engine}"] if options.engine else [])]
    scenario = load_scenario(source, as_axes(texts) if options.axes else as_overrides(texts))
    folder, known = _folder(scenario, options)
    numbered = list(enumerate(points(scenario)))
    outcomes = known | _play_missing(scenario, folder, numbered, known, options)
    ordered = [outcomes[index] for index, _ in numbered]
    run_directory.finish(folder, scenario, ordered, time.perf_counter() - began)
    pictures = _pictures(folder, scenario, ordered)
    _tell(scenario, ordered, folder, pictures, as_json=options.as_json)
    if any(outcome.error for outcome in ordered):
        failed = [outcome for outcome in ordered if outcome.error]
        typer.echo(f"{len(failed)} of {len(ordered)} points failed; the first: {failed[0].error}", err=True)
        raise typer.Exit(1)


def _folder(scenario: Scenario, options: PlayOptions) -> tuple[Path, dict[int, Outcome]]:
    if not options.resume:
        folder = run_directory.create(scenario.name, options.out)
        run_directory.begin(folder, scenario)
        return folder, {}
    if options.out is None:
        raise ScenarioError("--resume: goes on with the directory that --out names; give --out DIR")
    left = options.out / "scenario.yaml"
    if not left.is_file():
        raise ScenarioError(f"--resume: {options.out} holds no scenario.yaml, so there is nothing to go on with")
    if left.read_text(encoding="utf-8") != to_yaml(scenario):
        raise ScenarioError(
            f"--resume: {left} is another scenario than this one; repeat its options, or give another --out"
        )
    if (options.out / "report.json").is_file():
        raise ScenarioError(f"--resume: the run in {options.out} has ended; nothing is missing")
    return options.out, run_directory.noted(options.out)


def _play_missing(
    scenario: Scenario, folder: Path, numbered: list[tuple[int, Point]], known: dict[int, Outcome], options: PlayOptions
) -> dict[int, Outcome]:
    missing = [(index, point) for index, point in numbered if index not in known]
    keeper = run_directory.Keeper(folder, len(numbered) == 1, options.transfers, options.trace)
    found: dict[int, Outcome] = {}
    try:
        with progress(len(numbered), done=len(known), what=scenario.name) as step:
            for outcome in play_points(missing, options.jobs, keeper):
                run_directory.note_outcome(folder, outcome)
                found[outcome.index] = outcome
                step()
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted: {len(known) + len(found)} of {len(numbered)} points are in {folder}; go on with "
            f"`simulator sweep ... --resume --out {folder}` and the same options",
            err=True,
        )
        raise typer.Exit(130) from None
    return found


@contextmanager
def progress(total: int, done: int = 0, what: str = "") -> Iterator[Any]:
    """One bar on stderr; calling what it gives moves it on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as bars:
        task = bars.add_task(what, total=total, completed=done)
        yield lambda: bars.advance(task)


def _pictures(folder: Path, scenario: Scenario, outcomes: list[Outcome]) -> list[Path]:
    if not scenario.plots:
        return []
    from simulator.pictures import draw

    return draw(folder, scenario, outcomes)


def _tell(scenario: Scenario, outcomes: list[Outcome], folder: Path, pictures: list[Path], *, as_json: bool) -> None:
    if as_json:
        typer.echo(run_directory.report_text(outcomes), nl=False)
        return
    from rich.console import Console

    from simulator.pictures import conclusion
    from simulator.report.table import collective_table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    told = [outcome.to_dict() for outcome in outcomes]
    console.print(collective_table(scenario.question or scenario.name, told, console.width))
    typer.echo(f"results: {folder}")
    for picture in pictures:
        typer.echo(f"picture: {picture}")
    typer.echo(conclusion(scenario, outcomes))
