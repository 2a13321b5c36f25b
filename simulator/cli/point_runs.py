"""Simulates a scenario's points for `run` and `sweep`: run directory, journal, answer, pictures, printed results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import typer

from simulator.basics.errors import ScenarioError, SimulatorError
from simulator.cli.interruption import INTERRUPTIONS, continuing_command, exit_code, heed_no_more, word
from simulator.cli.link_names import check_link_names
from simulator.cli.options import RunOptions
from simulator.cli.progress import phase, progress
from simulator.cli.results_output import print_results, print_traces
from simulator.cli.settings import as_full, as_ranks
from simulator.cli.warnings_output import print_assumed_framework, print_warnings
from simulator.findings.answer import Answer, answer
from simulator.findings.comparison import Comparison
from simulator.results import run_directory
from simulator.results.drawn import DrawnPictures
from simulator.results.page.page import keeps_views
from simulator.run.checks import check_ranks, warnings_of
from simulator.run.outcome import PointOutcome
from simulator.run.size_estimate import announced
from simulator.scenario.load import points
from simulator.scenario.records import Scenario
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.journal import open_journal, read_journal_of
from simulator.sweeps.outcome import NumberedPoint
from simulator.sweeps.sweep import Backend, play_points


def simulate(scenario: Scenario, options: RunOptions, backend: Backend, began: float, *, resume: bool) -> None:
    """Simulate a checked scenario, write its run directory, and print the results.

    `began` is the time at which reading began, by `time.perf_counter`; `resume` continues the run in --out.
    """
    ranks, full = as_ranks(options.ranks), as_full(options.table)
    print_warnings(warnings_of(scenario))
    # A scenario with `plan` has no points; `run` then does the same as `simulator plan`.
    if scenario.plan is not None:
        _plan(scenario, options, backend, resume=resume)
        return
    print_assumed_framework(scenario)
    numbered = list(enumerate(points(scenario)))
    with _naming_the_scenario(scenario, is_single=len(numbered) == 1):
        print_warnings([announced(point.scenario for _, point in numbered)])
    check_link_names(scenario.source, [point for _, point in numbered])
    for _, point in numbered:
        check_ranks(point.scenario, ranks or ())
    # Everything that can be refused has been refused before a directory exists.
    folder = _folder(scenario, numbered, options, ranks, resume=resume)
    # The journal stays open, and locked, until every result is written: no second process can use the directory.
    with open_journal(folder) as note:
        with _cleaning_up(folder, numbered, resume=resume):
            # Views are stored only for the page; very large sweeps have none.
            view = not options.no_report and keeps_views(len(numbered))
            keeper = ArtifactWriter(folder, len(numbered) == 1, options.transfers, options.trace, ranks, view)
            ordered = _played(scenario, folder, numbered, note, backend, keeper)
        # The answer may need further points: a threshold is searched for between two values of an axis.
        compared = Comparison(scenario, ordered)
        with (
            phase(f"{scenario.name}: computing the answer"),
            _heeding_interruption(
                lambda: f"while the answer was computed; to continue, use `{continuing_command(sys.argv[1:], folder)}`"
            ),
        ):
            answered = answer(compared)
        wall_time = time.perf_counter() - began
        with phase(f"{scenario.name}: writing the report"):
            page = not options.no_report
            run_directory.finish(folder, compared, answered, wall_time, parquet=options.parquet, page=page)
    # stdout holds the JSON document and nothing else.
    if options.as_json:
        typer.echo(run_directory.report_text(ordered, answered), nl=False)
    else:
        pictures = _pictures(folder, scenario, ordered, answered, svg=options.svg)
        print_results(compared, answered, folder, pictures, full=full)
        if options.trace:
            print_traces(folder, [outcome.index for outcome in ordered if outcome.error is None])
    # Results of the remaining points are complete; the exit code still says that something failed.
    if any(outcome.error for outcome in ordered):
        _print_failures(ordered)
        raise typer.Exit(1)


def _plan(scenario: Scenario, options: RunOptions, backend: Backend, *, resume: bool) -> None:
    """Search for the fastest settings of a scenario with `plan`, like `simulator plan`."""
    from simulator.cli.plan_search import Output, plan
    from simulator.planner.plan_question import plan_question

    # Options about points have no meaning for a plan.
    of_points = {
        "--transfers": options.transfers, "--trace": options.trace, "--ranks": options.ranks is not None,
        "--parquet": options.parquet, "--svg": options.svg, "--table": options.table == "full",
        "--no-report": options.no_report,
    }  # fmt: skip
    option = next((name for name, value in of_points.items() if value), None)
    if option is not None:
        raise ScenarioError(f"{option}: is an option for points, but {scenario.source} is a plan; omit the option")
    if resume and options.out is None:
        raise ScenarioError("--resume: needs the directory of the interrupted run; give --out DIR")
    # A resumed plan continues in its own directory.
    folder = options.out if resume else run_directory.create(scenario.name, options.out)
    plan(plan_question(scenario), backend, Output(folder, options.as_json, resume))


def _print_failures(outcomes: Sequence[PointOutcome]) -> None:
    """Print on stderr a line for each different error: the number of points with this error, and the first point."""
    by_error: dict[str, list[PointOutcome]] = {}
    for outcome in outcomes:
        if outcome.error:
            by_error.setdefault(outcome.error, []).append(outcome)
    for error, failed in by_error.items():
        first = ", ".join(f"{key}={value}" for key, value in failed[0].settings.items())
        typer.echo(f"{len(failed)} of {len(outcomes)} points failed, the first with {first}: {error}", err=True)


def _folder(
    scenario: Scenario,
    numbered: Sequence[NumberedPoint],
    options: RunOptions,
    ranks: Sequence[int] | None,
    *,
    resume: bool,
) -> Path:
    if resume and options.out is None:
        raise ScenarioError("--resume: needs the directory of the interrupted run; give --out DIR")
    # Stored in begun.json. `going_on` compares it later: a resumed run must not mix two simulators or two inputs.
    begun = run_directory.begun_with(
        (p for _, p in numbered),
        transfers=options.transfers,
        trace=options.trace,
        ranks=None if ranks is None else list(ranks),
    )
    if resume and options.out is not None:
        run_directory.going_on(options.out, scenario, begun)
        return options.out
    folder = run_directory.create(scenario.name, options.out)
    try:
        run_directory.begin(folder, scenario, begun)
    # Also after Ctrl-C: a directory without scenario.yaml could not be resumed.
    except BaseException:
        run_directory.discard(folder)
        raise
    return folder


@contextmanager
def _cleaning_up(folder: Path, numbered: Sequence[NumberedPoint], *, resume: bool) -> Iterator[None]:
    """If the simulation in the `with` block ends early, keep finished points for --resume, else remove the folder."""
    try:
        yield
    except INTERRUPTIONS as error:
        # A second Ctrl-C must not interrupt the cleaning up.
        heed_no_more()
        advice = _keep_or_discard(folder, numbered, resume=resume)
        typer.echo(f"{word(error)}: {advice or 'no point had ended, therefore no results are kept'}", err=True)
        raise typer.Exit(exit_code(error)) from None
    except Exception:
        advice = _keep_or_discard(folder, numbered, resume=resume)
        if advice:
            typer.echo(advice, err=True)
        raise


def _keep_or_discard(folder: Path, numbered: Sequence[NumberedPoint], *, resume: bool) -> str:
    """Return a text on how to resume an unfinished run; if no point has ended, remove the directory and return ""."""
    done = len(read_journal_of(folder, numbered))
    # A resumed run's directory existed before this command, and stays.
    if not done and not resume:
        run_directory.discard(folder)
        return ""
    return (
        f"{done} of {len(numbered)} points are in {folder}; to continue, use "
        f"`{continuing_command(sys.argv[1:], folder)}`"
    )


def _played(
    scenario: Scenario,
    folder: Path,
    numbered: Sequence[NumberedPoint],
    note: Callable[[PointOutcome], None],
    backend: Backend,
    keeper: ArtifactWriter,
) -> list[PointOutcome]:
    outcomes_by_index = read_journal_of(folder, numbered)
    # With --resume, only points without a line in the journal.
    missing = [(index, point) for index, point in numbered if index not in outcomes_by_index]
    # The error of a single point is the error of the run. Among many points, an error is a result.
    is_single = len(numbered) == 1
    with (
        progress(len(numbered), done=len(outcomes_by_index), what=scenario.name) as step,
        _naming_the_scenario(scenario, is_single=is_single),
        # Closing the generator ends its workers at once, also after an exception.
        closing(play_points(missing, backend, keeper, strict=is_single)) as outcomes,
    ):
        for outcome in outcomes:
            # Written before the point counts as done, so that a kill at any moment loses no counted point.
            note(outcome)
            outcomes_by_index[outcome.index] = outcome
            step()
    return [outcomes_by_index[index] for index, _ in numbered]


@contextmanager
def _naming_the_scenario(scenario: Scenario, *, is_single: bool) -> Iterator[None]:
    """Prepend the scenario's name to an error raised in the `with` block, if `is_single` (it has one point)."""
    try:
        yield
    except SimulatorError as error:
        # Errors that name the scenario or an option already are left unchanged.
        if is_single and not str(error).startswith((scenario.source, "--")):
            error.args = (f"{scenario.source}: {error}", *error.args[1:])
        raise


@contextmanager
def _heeding_interruption(when: Callable[[], str]) -> Iterator[None]:
    """On an interruption inside the `with` block, print which work was interrupted, and exit with its code."""
    try:
        yield
    except INTERRUPTIONS as error:
        heed_no_more()
        typer.echo(f"{word(error)} {when()}", err=True)
        raise typer.Exit(exit_code(error)) from None


def _pictures(
    folder: Path, scenario: Scenario, outcomes: list[PointOutcome], answered: Answer, *, svg: bool
) -> DrawnPictures:
    # Without pictures, matplotlib is never imported.
    if not scenario.plotted.kinds:
        return DrawnPictures()
    from simulator.results.pictures import draw

    with _heeding_interruption(lambda: f"while drawing; the results are in {folder}"):
        findings = answered.to_dict()["findings"]
        with phase(f"{scenario.name}: drawing the pictures"):
            return draw(folder, scenario, outcomes, svg=svg, spoken=answered.spoken, findings=findings)
