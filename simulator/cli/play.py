"""`simulator run` and `simulator sweep`: play all points, show progress, leave a directory, end with one sentence."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from simulator import run_directory
from simulator.cli.settings import as_axes, as_overrides, as_typed
from simulator.errors import ScenarioError, SimulatorError
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Point, Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeping import Outcome, play_alone, play_points

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
    scenario = _loaded(source, settings, options)
    numbered = list(enumerate(points(scenario)))
    folder, known = _folder(scenario, options)
    with _left_clean(folder, numbered, options):
        ordered = _played(scenario, folder, numbered, known, options)
    run_directory.finish(folder, scenario, ordered, time.perf_counter() - began)
    pictures = _pictures(folder, scenario, ordered)
    _tell(scenario, ordered, folder, pictures, as_json=options.as_json)
    if any(outcome.error for outcome in ordered):
        _tell_failures(ordered)
        raise typer.Exit(1)


def _tell_failures(outcomes: Sequence[Outcome]) -> None:
    """One line for each different error: which point was first, and how many had it."""
    by_error: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.error:
            by_error.setdefault(outcome.error, []).append(outcome)
    for error, failed in by_error.items():
        first = ", ".join(f"{key}={value}" for key, value in failed[0].settings.items())
        typer.echo(f"{len(failed)} of {len(outcomes)} points failed, the first with {first}: {error}", err=True)


def _loaded(source: str, settings: Sequence[str], options: PlayOptions) -> Scenario:
    texts = [*settings, *([f"engine={options.engine}"] if options.engine else [])]
    if not options.axes:
        return load_scenario(source, as_overrides(texts))
    try:
        return load_scenario(source, as_axes(texts))
    except ScenarioError as error:
        raise ScenarioError(as_typed(str(error), texts)) from error


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


@contextmanager
def _left_clean(folder: Path, numbered: list[tuple[int, Point]], options: PlayOptions) -> Iterator[None]:
    """What is left when playing ends early: finished points to go on with, or nothing at all."""
    try:
        yield
    except KeyboardInterrupt:
        done = len(run_directory.noted(folder))
        if done or options.resume:
            told = (
                f"interrupted: {done} of {len(numbered)} points are in {folder}; go on with "
                f"`simulator sweep ... --resume --out {folder}` and the same options"
            )
        else:
            run_directory.discard(folder)
            told = "interrupted: no point had ended, so nothing is left"
        typer.echo(told, err=True)
        raise typer.Exit(130) from None
    except SimulatorError:
        if not run_directory.noted(folder) and not options.resume:
            run_directory.discard(folder)
        raise


def _played(
    scenario: Scenario, folder: Path, numbered: list[tuple[int, Point]], known: dict[int, Outcome], options: PlayOptions
) -> list[Outcome]:
    missing = [(index, point) for index, point in numbered if index not in known]
    keeper = run_directory.Keeper(folder, len(numbered) == 1, options.transfers, options.trace)
    found = dict(known)
    with progress(len(numbered), done=len(known), what=scenario.name) as step:
        # The error of a single point is the error of the run; among many it is one of the results.
        alone = len(numbered) == 1
        outcomes = _alone(numbered[0], keeper) if alone else play_points(missing, options.jobs, keeper)
        with closing(outcomes):
            for outcome in outcomes:
                run_directory.note_outcome(folder, outcome)
                found[outcome.index] = outcome
                step()
    return [found[index] for index, _ in numbered]


def _alone(numbered: tuple[int, Point], keeper: run_directory.Keeper) -> Generator[Outcome]:
    index, point = numbered
    try:
        yield play_alone(index, point, keeper)
    except SimulatorError as error:
        source = point.scenario.source
        if not str(error).startswith(source):
            error.args = (f"{source}: {error}", *error.args[1:])
        raise


@contextmanager
def progress(total: int, done: int = 0, what: str = "") -> Iterator[Any]:
    """One bar on stderr; calling what it gives moves it on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # In a file or a pipe the bar of a single point would only ever say that it has ended.
    with Progress(*columns, console=console, disable=total == 1 and not console.is_terminal) as bars:
        task = bars.add_task(what, total=total, completed=done)
        yield lambda: bars.advance(task)


def _pictures(folder: Path, scenario: Scenario, outcomes: list[Outcome]) -> list[Path]:
    if not scenario.plots:
        return []
    from simulator.pictures import draw

    try:
        return draw(folder, scenario, outcomes)
    except KeyboardInterrupt:
        typer.echo(f"interrupted while drawing; the results are in {folder}", err=True)
        raise typer.Exit(130) from None


def _tell(scenario: Scenario, outcomes: list[Outcome], folder: Path, pictures: list[Path], *, as_json: bool) -> None:
    if as_json:
        typer.echo(run_directory.report_text(outcomes), nl=False)
        return
    from rich.console import Console

    from simulator.pictures import conclusion
    from simulator.report.table import points_table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    told = [outcome.to_dict() for outcome in outcomes]
    console.print(points_table(scenario.question or scenario.name, told, console.width))
    typer.echo(f"results: {folder}")
    for picture in pictures:
        typer.echo(f"picture: {picture}")
    typer.echo(conclusion(scenario, outcomes))
