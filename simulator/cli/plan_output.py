"""Which texts does `simulator plan` print? Progress, the best settings, the training's cost, and infeasibility."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from simulator.basics.units import format_duration, format_memory, format_time
from simulator.basics.work_unit import rate_name, work_unit
from simulator.cli.console import print_table, print_text
from simulator.findings import gpu_numbers
from simulator.planner.cluster_sizes import ClusterSizeResult
from simulator.planner.explain import step_difference
from simulator.planner.infeasible import NO_WAY, Remedy, SettingMemoryNeed
from simulator.planner.plan_question import PlanQuestion
from simulator.planner.plan_report import exposed, kind_rows, not_listed, reasons, sensitivity_sentence, sentences
from simulator.planner.search import SearchResult
from simulator.planner.sensitivity import MachineChange
from simulator.report.tables.layout import Column, filled_columns

# Kinds of layout to print.
_MOST_KINDS: Final = 12
# Time between two progress lines in a file or pipe [s].
_EVERY: Final = 10.0


@dataclass(slots=True)
class SearchProgress:
    """Prints a search's progress: a changing line on a terminal, a line every ten seconds in a file or pipe."""

    quiet: bool
    places: int
    told: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)
    wide: int = 0

    def tell(self, result: SearchResult) -> None:
        """Print the search's progress on stderr if a new line is due."""
        if self.quiet:
            return
        text = progress_text(result, time.monotonic() - self.began, self.places)
        if sys.stderr.isatty():
            # A folded line could not be overwritten.
            text = text[: shutil.get_terminal_size().columns - 1]
            typer.echo(f"\r{text:<{self.wide}}", nl=False, err=True)
            # Padding to the previous length erases a longer line.
            self.wide = len(text)
        # A file or pipe keeps every line; ten seconds keep it short.
        elif time.monotonic() > self.told + _EVERY:
            typer.echo(text, err=True)
            self.told = time.monotonic()

    def end(self) -> None:
        """End the progress line shown on the terminal."""
        if self.wide:
            typer.echo("", err=True)


def progress_text(result: SearchResult, elapsed: float, places: int) -> str:
    """Return a search's progress as a line: settings examined and left, the time left, and the best setting so far.

    Parameters
    ----------
    elapsed : float
        Time since the search began [s].
    places : int
        Number of best settings to find.
    """
    # Settings that do not fit have no step time.
    lead = f"best {format_time(result.best[0].step_time)}" if result.best else "no setting fits yet"
    if result.certain and not result.ended:
        first = "first place" if result.certain == 1 else f"places 1 to {result.certain}"
        lead += f", {first} certain, the next places are still searched"
    ruled_out = f"{result.do_not_fit:,} do not fit, {result.left:,} of {result.considered:,} left"
    return f"{len(result.played):,} simulated, {ruled_out}{_time_left(result, elapsed, places)}; {lead}"


def _time_left(result: SearchResult, elapsed: float, places: int) -> str:
    """Return the estimated time left in brackets, at the mean time for each simulated setting so far."""
    if result.ended or not result.played:
        return ""
    missing, mean = places - len(result.best), elapsed / len(result.played)
    # A missing place takes at least a simulation. With every place taken, each setting that is left takes at most one.
    if missing > 0:
        return f" (at least {format_duration(min(missing, result.left) * mean)})"
    return f" (at most {format_duration(result.left * mean)})"


def print_plan(result: SearchResult, question: PlanQuestion) -> None:
    """Print a plan's answer, the best settings as a table, and the numbers of excluded settings by reason."""
    if result.best:
        for sentence in sentences(result, question.budget, question.plan.deadline):
            print_text(sentence)
        _print_best(result)
    _print_kinds(result)
    excluded = reasons(result)
    print_text(
        f"\n{result.considered:,} settings considered, {len(result.played):,} simulated."
        f"{' Settings not simulated, by reason:' if excluded else ''}"
    )
    for reason, count in excluded.items():
        print_text(f"  {count:,} {reason}", indent="    ")


def print_sizes(tried: Sequence[ClusterSizeResult]) -> None:
    """Print the plan's results for several numbers of GPUs, if any."""
    if tried:
        numbers = [size.to_dict() for size in tried]
        print_text(f"\n{gpu_numbers.sentence(numbers)}")
        heads, rows = filled_columns(*gpu_numbers.table(numbers))
        # The last column is text and may be folded.
        print_table([*map(Column, heads[:-1]), Column(heads[-1], left=True, folds=True)], rows)


def print_sensitivity(changed: Sequence[MachineChange]) -> None:
    """Print a sentence for each changed machine, on its effect on the plan."""
    if changed:
        typer.echo("")
    for machine in changed:
        print_text(sensitivity_sentence(machine))


def _print_best(result: SearchResult) -> None:
    rate = rate_name(work_unit(candidate.report for candidate in result.best))
    heads = ("", "step", "80 % interval", f"{rate}/GPU", "MFU", "memory", "exposed", "bubble")
    columns = [*(Column(head) for head in heads), Column("setting", left=True, folds=True)]
    columns.append(Column("main difference", left=True, folds=True))
    rows = []
    # `step_difference` explains each setting against the best.
    for number, candidate in enumerate(result.best, 1):
        report = candidate.report
        rows.append(
            [
                str(number),
                format_time(candidate.step_time),
                _interval(report),
                f"{report['tokens_per_s_per_gpu']:,.0f}",
                f"{100 * report['mfu']:.1f} %",
                format_memory(report["peak_memory_bytes"]),
                exposed(report),
                f"{100 * report['bubble_time_s'] / candidate.step_time:.1f} %",
                candidate.setting.text,
                step_difference(result.best[0], candidate).text,
            ]
        )
    typer.echo("")
    print_table(*filled_columns(columns, rows))
    missing = not_listed(result)
    if missing:
        print_text(missing)


def _print_kinds(result: SearchResult) -> None:
    """Print the fastest setting of each kind of layout, if there are several kinds."""
    rows = kind_rows(result)
    if len(rows) > 1:
        typer.echo("\nFastest setting of each kind of layout (at least: lower bound, not simulated)")
        columns = [Column("kind", left=True), Column("step"), Column("setting", left=True, folds=True)]
        print_table(columns, [list(row) for row in rows[:_MOST_KINDS]])


def _interval(report: Mapping[str, Any]) -> str:
    """Format the 80 % prediction interval of a report's step time; "" if unknown."""
    ends = [report["intervals"].get(f"step_time_s_80_{end}") for end in ("low", "high")]
    # Without measurements for such runs there is no interval.
    return "" if None in ends else " to ".join(format_time(end) for end in ends)


def print_impossible(question: PlanQuestion, possible: Sequence[str]) -> None:
    """Print that no setting exists for these numbers of GPUs and sequences, and name nearby numbers with a setting."""
    gpus = question.base.cluster.world_size
    others = f" Possible: {', '.join(possible)}." if possible else ""
    print_text(
        f"No setting of {question.model} is possible on {gpus:,} GPUs with {question.sequences:,} sequences per "
        f"step; the reasons follow.{others}"
    )


def print_nearest(question: PlanQuestion, need: SettingMemoryNeed, ways: Iterable[Remedy]) -> Iterator[Remedy]:
    """Print the setting nearest to fitting in memory, then each remedy as soon as it is found; yield the remedies."""
    print_text(
        f"No setting of {question.model} fits on {question.base.cluster.world_size:,} GPUs. The setting with the "
        f"smallest need takes {format_memory(need.nbytes)} of {format_memory(need.capacity)}: {need.setting.text}. "
        "Changes that make a setting fit:"
    )
    # `ways` is lazy, and every remedy takes a search: print each immediately.
    any_way = False
    for way in ways:
        print_text(f"  {way.text}", indent="    ")
        any_way = True
        yield way
    if not any_way:
        print_text(f"  {NO_WAY}", indent="    ")
