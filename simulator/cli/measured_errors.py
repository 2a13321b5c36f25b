"""What do `simulator validate --kernels` and `--collectives` print and write?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.counts import number_of
from simulator.basics.csv_text import csv_text
from simulator.basics.errors import ScenarioError
from simulator.cli.console import print_text, width
from simulator.cli.progress import progress


def show_kernel_errors(table: str, every: int, out: Path | None, *, as_json: bool) -> None:
    """Simulate every `every`-th measured kernel of a table, print the errors, and write the predictions to `out`."""
    from simulator.calibration.kernel_errors import error_table, predicted, prediction_rows, summaries
    from simulator.calibration.kernel_rows import kernel_rows

    if out is not None:
        _check(out, table)
    rows = kernel_rows(table)[::every]
    with progress(len(rows), what="validation", counted="kernels simulated", lasting=False) as advance:
        predictions = predicted(rows, advance)
    errors = summaries(predictions)
    if out is not None:
        lines = prediction_rows(predictions)
        try:
            write_atomically(out, csv_text([lines[0], *(line.values() for line in lines)]))
        except OSError as error:
            raise ScenarioError(f"--out: {out} cannot be written: {error.strerror or error}") from error
    if as_json:
        document = {
            "table": rows[0].family,
            "groups": [asdict(each) for each in errors],
            "rows": prediction_rows(predictions),
        }
        typer.echo(json.dumps(document, indent=2))
        return
    middle = median(abs(prediction.error) for prediction in predictions)
    print_text(f"{number_of(len(rows), 'kernel')} simulated, median error {middle:.1%}\n")
    typer.echo(error_table(rows[0].family, errors).text(width()))
    if out is not None:
        print_text(f"\n{out}: written, each measured kernel beside its prediction")


def show_collective_errors(path: Path, every: int, *, as_json: bool) -> None:
    """Simulate every `every`-th measured collective in a file, and print the errors."""
    from simulator.calibration.collective_rows import (
        collective_errors,
        collective_rows,
        errors_table,
        predicted,
        replaced,
    )

    rows = collective_rows(path)[::every]
    for line in replaced(rows):
        typer.echo(f"note: {line}", err=True)
    with progress(len(rows), what="validation", counted="collectives simulated", lasting=False) as advance:
        outcomes = predicted(rows, advance)
    errors = collective_errors(outcomes)
    if as_json:
        document = {"groups": [asdict(group) for group in errors], "rows": [outcome.document() for outcome in outcomes]}
        typer.echo(json.dumps(document, indent=2))
        return
    middle = median(abs(outcome.error) for outcome in outcomes)
    print_text(f"{number_of(len(rows), 'collective')} simulated, median error {middle:.1%}\n")
    typer.echo(errors_table(errors).text(width()))


def _check(out: Path, table: str) -> None:
    """Raise ScenarioError if the predictions cannot be written to a file, or would replace the measurements."""
    if out.suffix != ".csv":
        raise ScenarioError(f"--out: got {out}; must end in .csv")
    if out.exists() and Path(table).exists() and out.samefile(table):
        raise ScenarioError(f"--out: got {out}, the file of measurements; choose another name")
