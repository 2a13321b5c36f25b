"""`simulator plan`: finds the fastest settings for a training, prints them, and writes the best as a scenario file."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_time
from simulator.cli.interruption import INTERRUPTIONS, continuing_command, exit_code, hear, word
from simulator.cli.plan_output import (
    SearchProgress,
    print_impossible,
    print_nearest,
    print_plan,
    print_sensitivity,
    print_sizes,
)
from simulator.cli.warnings_output import print_assumed_framework, print_warnings
from simulator.findings.budget import amount_text
from simulator.planner.cluster_sizes import ClusterSizeResult, sizes
from simulator.planner.contradictions import refuse_contradictions
from simulator.planner.infeasible import Remedy, least_memory, possible_numbers, remedies
from simulator.planner.plan_question import PlanQuestion
from simulator.planner.plan_report import document, impossible_document, nearest_document
from simulator.planner.search import SearchResult, search
from simulator.planner.sensitivity import MachineChange, sensitivity
from simulator.planner.setting import scenario_of
from simulator.planner.space import Choices
from simulator.results import run_directory
from simulator.results.page.plan_page import FILE, plan_page
from simulator.scenario.resolve import to_yaml
from simulator.sweeps.sweep import Backend

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Output:
    """Destination of a plan."""

    out: Path | None = None  # folder for best.yaml, plan.json and report.html
    as_json: bool = False  # whether to print plan.json instead of tables
    resume: bool = False  # whether to continue an interrupted plan in `out`


def plan(question: PlanQuestion, backend: Backend, output: Output) -> None:
    """Search for the fastest settings, print them, and write best.yaml, plan.json and report.html if requested."""
    print_warnings(question.announced())
    # A constraint on the framework names at least one.
    if not any(constraint.name == "framework" for constraint in question.said):
        print_assumed_framework(question.base)
    # Before a directory is created: contradictory constraints leave no setting to search.
    refuse_contradictions(question)
    choices, outcomes = question.choices(), _kept(output, backend)
    try:
        _plan(question, choices, replace(backend, cache=backend.cache or outcomes), output, outcomes)
    finally:
        # An empty folder would look like a plan.
        if output.out is not None and not any(output.out.iterdir()):
            run_directory.discard(output.out)


def _plan(question: PlanQuestion, choices: Choices, backend: Backend, output: Output, outcomes: Path | None) -> None:
    base, sequences = question.base, question.sequences
    # `search` yields its result so far after every point; the last result counts, also after an interruption.
    result, ended, show = None, None, SearchProgress(output.as_json, question.plan.best)
    tried, changed = list[ClusterSizeResult](), list[MachineChange]()
    try:
        for result in search(base, sequences, choices, best=question.plan.best, backend=backend):
            show.tell(result)
        show.end()
        if result is not None:
            # Further numbers of GPUs, then further machines; each is another plan and may take as long as the first.
            tried.extend(_told(sizes(result, question, backend), _size_text))
            changed.extend(_told(sensitivity(result, backend) if question.plan.sensitivity else (), _change_text))
    except INTERRUPTIONS as error:
        # A further signal raises again; until then, the best settings so far are printed.
        hear(error)
        ended = error
        show.end()
    # Interrupted before the first setting was simulated: there is nothing to print.
    if result is None or (ended is not None and not result.best):
        typer.echo(f"{word(ended)}; no setting was simulated", err=True)
        raise typer.Exit(exit_code(ended))
    # The same data for JSON, for the page, and for plan.json.
    data = document(result, question.budget, question.plan.deadline, tried)
    # Nothing fits: say what is missing, and what would help.
    if not result.best:
        try:
            _add_nearest(data, question, choices, quiet=output.as_json)
        except INTERRUPTIONS as error:
            ended = error
    data |= {"sensitivity": [machine.to_dict() for machine in changed]}
    if output.out is not None:
        _write(result, question, data, output.out)
    # stdout holds the JSON document and nothing else.
    if output.as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        print_plan(result, question)
        print_sizes(tried)
        print_sensitivity(changed)
        if output.out is not None:
            typer.echo(f"report: {output.out / FILE}")
    # An interrupted plan still prints its best settings, and exits with the signal's code.
    if ended is not None:
        again = "" if output.out is None else continuing_command(sys.argv[1:], output.out)
        more = "" if outcomes is None else f"; to continue, use `{again}`"
        so_far = "the search has ended, but further plans have not" if result.ended else "the best"
        typer.echo(f"{word(ended)}: {so_far} of {len(result.played)} simulated settings{more}", err=True)
        raise typer.Exit(exit_code(ended))
    # The search has ended, and its outcomes serve no further purpose.
    if outcomes is not None:
        shutil.rmtree(outcomes, ignore_errors=True)
    # A script sees from the exit code that nothing fits.
    if not result.best:
        raise typer.Exit(1)


def _add_nearest(data: dict[str, Any], question: PlanQuestion, choices: Choices, *, quiet: bool) -> None:
    """Add the setting nearest to fitting in memory to `data`, and print it; an interruption keeps partial results."""
    # None means: no setting exists at all, with any amount of memory.
    need = least_memory(choices, question.base, question.sequences)
    if need is None:
        possible = possible_numbers(choices, question.base, question.sequences)
        data.update(impossible_document(possible))
        if not quiet:
            print_impossible(question, possible)
        return
    remedies_found, ways = remedies(choices, question.base, question.sequences, need), list[Remedy]()
    try:
        for way in remedies_found if quiet else print_nearest(question, need, remedies_found):
            ways.append(way)
    # Also after Ctrl-C: remedies found so far are kept.
    finally:
        data.update(nearest_document(need, ways))


def _kept(output: Output, backend: Backend) -> Path | None:
    """Return the folder that keeps outcomes until the search has ended; None without `out`, or with a cache."""
    if output.out is None:
        if output.resume:
            raise ScenarioError("--resume: needs the directory of the interrupted plan; give --out DIR")
        return None
    # With --cache, the cache keeps the outcomes.
    folder = output.out / "outcomes" if backend.cache is None else None
    if output.resume and folder is not None and not folder.is_dir():
        raise ScenarioError(f"--resume: {output.out} holds no interrupted plan; omit --resume")
    if not output.resume:
        run_directory.create("plan", output.out)
    return folder


def _told(results: Iterable[T], text: Callable[[T], str]) -> Iterator[T]:
    """Yield each item after printing the item's text on stderr."""
    for result in results:
        # On stderr, because stdout may hold JSON.
        typer.echo(text(result), err=True)
        yield result


def _size_text(size: ClusterSizeResult) -> str:
    step = size.missing if size.best is None else f"{format_time(size.best.step_time)} per step"
    days = f", {amount_text(size.takes['days'])} days" if size.takes else ""
    return f"{size.gpus:,} GPU{'' if size.gpus == 1 else 's'}: {step}{days}"


def _change_text(machine: MachineChange) -> str:
    return f"{machine.change}: {format_time(machine.best.step_time)} per step"


def _write(result: SearchResult, question: PlanQuestion, data: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "plan.json", json.dumps(data, indent=2) + "\n")
    # Without a fitting setting there is no scenario to write.
    written = ""
    if result.best:
        best = scenario_of(result.base, result.best[0].setting).replaced(
            name="best",
            question="The fastest setting of the plan." if result.ended else "The fastest setting of a stopped plan.",
            budget=question.budget,
        )
        written = to_yaml(best)
        write_atomically(folder / "best.yaml", written)
    page = plan_page(data, question.text, written)
    write_atomically(folder / FILE, page)
