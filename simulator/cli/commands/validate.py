"""Simulate what was measured, and print the errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.calibration.table import Table
from simulator.cli.console import print_text, width
from simulator.cli.interruption import INTERRUPTIONS, exit_code, heed_no_more, word
from simulator.cli.options import AsJson, NoPlugins
from simulator.cli.progress import progress

if TYPE_CHECKING:
    from simulator.calibration.training_runs.playing import PlayedRow
    from simulator.calibration.training_runs.rows import MeasuredRow

_KEPT: Final = Path("runs/validation.jsonl")


def command(
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Table: foundry, vtrain, nanotron_cut, ...; all tables if omitted."),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="CSV file with your own measured runs; docs/validation.md lists the columns."
        ),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Simulate measured kernels instead of training steps: matmul, experts, attention, norms, or a CSV "
            "file with the columns of one of these tables.",
        ),
    ] = None,
    collectives: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Simulate measured collectives instead of training steps: a CSV file with the columns topology or "
            "gpu, nodes, ranks, op, size_bytes and time_us.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --kernels: CSV file to write, each kernel beside its prediction."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, metavar="K", help="Simulate only every K-th row.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    kept: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps simulated rows, so that the same command continues after an interruption; "
            "runs/validation.jsonl if omitted without --csv.",
        ),
    ] = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    of_steps = {"--source": source, "--csv": own, "--kept": kept}
    if collectives is not None:
        _excluded({**of_steps, "--kernels": kernels, "--out": out}, "--collectives", "collectives")
        from simulator.cli.measured_errors import show_collective_errors

        show_collective_errors(collectives, every, as_json=as_json)
        return
    if kernels is not None:
        _excluded(of_steps, "--kernels", "kernels")
        from simulator.cli.measured_errors import show_kernel_errors

        show_kernel_errors(kernels, every, out, as_json=as_json)
        return
    if out is not None:
        raise ScenarioError("--out: needs --kernels, whose predictions it writes")
    from simulator.calibration.training_runs import validation_tables
    from simulator.calibration.training_runs.cache import play_on
    from simulator.calibration.training_runs.cut_rows import all_measured
    from simulator.calibration.training_runs.playing import frameworks
    from simulator.calibration.training_runs.summary import by_source
    from simulator.calibration.training_runs.user_rows import user_rows

    if own is not None and source is not None:
        raise ScenarioError("--source: excludes --csv, which simulates only the runs of a file; omit one option")
    # A user's rows are a source of their own, and are never mixed with the shipped rows.
    rows = all_measured(source, every) if own is None else user_rows(own)[::every]
    if kept is None and own is None:
        kept = _KEPT
    try:
        with progress(len(rows), what="validation", counted="measured rows simulated") as advance:
            outcomes = play_on(rows, frameworks(), jobs, advance, kept)
    except INTERRUPTIONS as error:
        if kept is None or not kept.is_file():
            raise
        heed_no_more()
        typer.echo(f"{word(error)}: simulated rows are kept in {kept}; the same command simulates the rest", err=True)
        raise typer.Exit(exit_code(error)) from None
    if as_json:
        typer.echo(json.dumps(_document(outcomes), indent=2))
        return
    parts = [validation_tables.sources(by_source(outcomes)), *_whole(outcomes)]
    # None if there is nothing to compare: no source measured a training in several layouts.
    choice_table = validation_tables.of_choices(outcomes)
    parts += [choice_table] if choice_table is not None else []
    wide = width()
    print_text(f"{_counts(outcomes)}\n")
    typer.echo("\n\n".join(part.text(wide) for part in parts))
    # Every measured run fitted into memory, therefore a simulated run should fit too.
    fits = [outcome.fits for outcome in outcomes if outcome.row.memory_simulated]
    if not fits:
        print_text("\nmemory of these rows is not simulated")
        return
    print_text(
        f"\n{sum(fits)} of {len(fits)} rows fit into memory in the simulation; all rows fit into memory in the "
        "measurement"
    )


def _excluded(options: Mapping[str, object], other: str, what: str) -> None:
    """Raise ScenarioError if an option has a value that another option excludes, which simulates `what`."""
    for option, value in options.items():
        if value is not None:
            raise ScenarioError(f"{option}: excludes {other}, which simulates {what} and no steps; omit one option")


def _counts(outcomes: Sequence[PlayedRow]) -> str:
    """Return a text on how many measured rows were simulated, and how many of these were really timed."""
    timed = sum(outcome.row.timed for outcome in outcomes)
    composed = len(outcomes) - timed
    parts = (
        f": {timed:,} timed, {composed:,} composed by their source from profiled pieces" if composed else ", all timed"
    )
    return f"{number_of(len(outcomes), 'row')} simulated{parts}"


def _whole(outcomes: Sequence[PlayedRow]) -> list[Table]:
    """Return the tables for measured rows from training.csv: models not partitioned over ranks."""
    from simulator.calibration.training_runs import validation_tables
    from simulator.calibration.training_runs.rows import measured

    # The rows of training.csv have their own table names.
    names = {row.table for row in measured()}
    uncut = [outcome for outcome in outcomes if outcome.row.table in names]
    if not uncut:
        return [validation_tables.worst_steps(outcomes)]
    memory = [validation_tables.memory(uncut, name) for name in dict.fromkeys(outcome.row.table for outcome in uncut)]
    return [
        validation_tables.groups(uncut),
        *(table for table in memory if table is not None),
        validation_tables.worst_rows(uncut),
    ]


def _row_document(row: MeasuredRow) -> dict[str, Any]:
    dtypes = {name: getattr(row.precision, name) for name in ("params", "grads", "reduce", "matmul", "scaling")}
    # Records of pydantic are no dataclasses, and are written by their own means.
    fields = asdict(replace(row, scenario=None, spec=None))
    fields |= {"scenario": row.scenario and row.scenario.name, "spec": row.spec and row.spec.model_dump(mode="json")}
    del fields["precision"]
    return fields | dtypes | {"parallelism": row.parallelism.model_dump(mode="json")}


def _document(outcomes: Sequence[PlayedRow]) -> dict[str, Any]:
    from simulator.calibration.training_runs.ranking import choices
    from simulator.calibration.training_runs.summary import by_group, by_source, worst

    # Only the worst rows have a likely reason.
    reasons = {outcome.row.source + outcome.row.name: why for outcome, why in worst(outcomes)}
    points = [
        {
            "row": _row_document(outcome.row),
            "group": outcome.row.group,
            "step_time_s": outcome.step_time,
            "tokens_per_s": outcome.tokens_per_s,
            "error": outcome.error,
            "time_error": outcome.time_error,
            "peak_memory_bytes": outcome.peak,
            "memory_error": outcome.memory_error,
            "fits": outcome.fits,
            "reason": reasons.get(outcome.row.source + outcome.row.name),
        }
        for outcome in outcomes
    ]
    return {
        "sources": [asdict(source) for source in by_source(outcomes)],
        "groups": [asdict(group) for group in by_group(outcomes)],
        "choices": [asdict(choice) for choice in choices(outcomes)],
        "rows": points,
    }
