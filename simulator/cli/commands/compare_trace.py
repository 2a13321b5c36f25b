"""Compare a profile of a real step with the simulated step.

The traces are read and never run. The output has the time by kind of kernel and collective, measured and simulated,
and the first differences in order and in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.basics.errors import ScenarioError
from simulator.cli.completion import names_of
from simulator.cli.options import AnswerOut, AsJson, NoPlugins, Settings
from simulator.cli.settings import as_overrides
from simulator.cli.warnings_output import print_warnings
from simulator.traces.kineto.comparison import compared
from simulator.traces.kineto.comparison_tables import difference_table, operation_table, time_table
from simulator.traces.kineto.measured_step import measured_step
from simulator.traces.kineto.profile_reader import KinetoTrace, read_trace

if TYPE_CHECKING:
    from simulator.scenario.records import Scenario


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="Scenario with a single point: shipped name or path; or the directory of a run.",
            metavar="SCENARIO",
            autocompletion=names_of("scenario"),
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces of PyTorch's profiler, one a rank: JSON, plain or gzipped."),
    ],
    step: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Take ProfilerStep#N; if omitted, the step of median duration."),
    ] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="R", help="Rank of each trace, in order; if omitted, as the traces say."),
    ] = None,
    settings: Settings = None,
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.cli.answer_output import give
    from simulator.results.answer_directory import claimed
    from simulator.results.presentation import Presentation
    from simulator.run.checks import warnings_of
    from simulator.run.simulate import simulate_point
    from simulator.scenario.load import points
    from simulator.traces.kineto.comparison_picture import pictures, timelines
    from simulator.traces.kineto.simulated_step import simulated_steps

    scenario = _scenario(source, as_overrides(settings or ()))
    if (count := len(points(scenario))) > 1:
        raise ScenarioError(
            f"{scenario.source}: has {count} points, and a trace is compared with one; choose values with --set"
        )
    traces = [read_trace(path) for path in files]
    ranks, notes = _ranks(traces, rank or (), scenario.cluster.world_size)
    measured = [measured_step(trace, rank, step) for trace, rank in zip(traces, ranks, strict=True)]
    with claimed(out):
        print_warnings([*warnings_of(scenario), *notes, *(note for trace in traces for note in trace.notes)])
        run = simulate_point(scenario, limit_memory=False, keep=ranks)
        paired = compared(measured, simulated_steps(run.plan.program, run.timeline, ranks))
        table = time_table(paired)
        numbers = ", ".join("whole trace" if number is None else f"ProfilerStep#{number}" for number in paired.numbers)
        subject = f"{scenario.name}: {', '.join(map(str, files))} ({numbers})"
        plots = pictures(paired) if out else ()
        tables = [table, difference_table(paired), operation_table(paired)]
        pairs = timelines(paired) if out else None
        answer = Presentation("", subject, paired.sentences, paired.to_dict(), tables, plots, pairs)
        # The page has the subject as its title.
        give(answer, [table], out, as_json=as_json, heading=f"{subject}.")


def _scenario(source: str, overrides: Mapping[str, str]) -> Scenario:
    """Return a scenario by name or path, or that of a run's directory."""
    from simulator.results import run_directory
    from simulator.scenario.load import load_scenario

    if not Path(source).is_dir():
        return load_scenario(source, overrides)
    if overrides:
        raise ScenarioError(f"--set: cannot change the run {source}; give the scenario's file instead of the directory")
    return run_directory.load(Path(source))


def _ranks(traces: Sequence[KinetoTrace], ranks_given: Sequence[int], world_size: int) -> tuple[list[int], list[str]]:
    """Return the rank of each trace, and notes on ranks that were assumed."""
    if ranks_given and len(ranks_given) != len(traces):
        raise ScenarioError(
            f"--rank: got {len(ranks_given)} ranks for {len(traces)} traces; give --rank for each, in order"
        )
    notes = [
        f"{trace.source}: is of a job with {trace.world_size} ranks, and the scenario has {world_size}"
        for trace in traces
        if trace.world_size not in (None, world_size)
    ]
    ranks = list(ranks_given)
    for place, trace in enumerate(traces if not ranks_given else ()):
        if trace.rank is None:
            notes.append(f"{trace.source}: names no rank; compared with rank {place}; --rank selects another")
        ranks.append(place if trace.rank is None else trace.rank)
    for trace, rank in zip(traces, ranks, strict=True):
        if rank >= world_size:
            raise ScenarioError(
                f"{trace.source}: is of rank {rank}, but the scenario has the ranks 0 .. {world_size - 1}; "
                "select another with --rank, or change cluster.world_size"
            )
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise ScenarioError(f"--rank: two traces are of rank {twice}; give each its rank with --rank")
    return ranks, notes
