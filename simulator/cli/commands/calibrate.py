"""Fit a framework to your own measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_time
from simulator.calibration.table import Table
from simulator.cli.console import print_text, width
from simulator.cli.options import NoPlugins
from simulator.cli.progress import progress
from simulator.findings.text import join_list

if TYPE_CHECKING:
    from simulator.calibration.training_runs.own_framework import OwnFramework
    from simulator.calibration.training_runs.rows import MeasuredRow

# Fewer runs than this cannot separate slow kernels from a slow network.
_ENOUGH: Final = 3


def command(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS.csv", help="Your measured runs, a line each; docs/validation.md lists the columns."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Framework file to write, such as my_framework.yaml.")],
    topology: Annotated[
        str | None, typer.Option(metavar="NAME", help="Topology of the lines without a topology of their own.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of processes; more than one pays for runs that take seconds each.")
    ] = 1,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.calibration.training_runs.own_framework import calibrated, steps_simulated
    from simulator.calibration.training_runs.playing import frameworks
    from simulator.calibration.training_runs.user_rows import user_rows

    if out.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"--out: got {out}; must end in .yaml")
    if out.exists():
        raise ScenarioError(f"--out: {out} exists already; choose another name, or remove the file")
    rows, shipped = user_rows(runs, topology), frameworks()
    name = rows[0].framework
    with progress(
        steps_simulated(len(rows)), what=f"calibrating to {runs.name}", counted="trial steps simulated"
    ) as advance:
        fit = calibrated(rows, shipped[name], jobs, advance)
    typer.echo(_table(rows, fit).text(width()))
    print_text(f"\n{_constants(fit)}")
    for text in remarks(rows, fit):
        print_text(text)
    try:
        # Mode "x" never overwrites a file that appeared meanwhile.
        with out.open("x", encoding="utf-8") as file:
            file.write(_text(fit, name, runs))
    except OSError as error:
        raise ScenarioError(f"--out: {out} cannot be written: {error.strerror or error}") from error
    print_text(f"{out}: written; next: write `framework: ./{out.name}` under `training` in a scenario beside it")


def _table(rows: tuple[MeasuredRow, ...], fit: OwnFramework) -> Table:
    """Return a table of the runs: measured step time, and the predictions' errors before and after the calibration."""
    # Errors are ln(measured / predicted); tables show predicted / measured - 1 of the step time.
    columns = [[f"{expm1(-error):+.1%}" for error in errors] for errors in (fit.before, fit.after, fit.without)]
    columns[2] = columns[2] or ["-"] * len(rows)
    lines = [
        (row.name, format_time(row.step_time), *(column[place] for column in columns)) for place, row in enumerate(rows)
    ]
    head = ("run", "measured", "before", "after", "from the others")
    return Table("error of the step time (predicted / measured - 1)", head, tuple(lines))


def _constants(fit: OwnFramework) -> str:
    """Return a sentence with the fitted constants."""
    framework = fit.framework
    return (
        f"Kernels take {framework.kernel_time:.3f} times and transfers {framework.network_time:.3f} times as long as "
        f"with the shipped constants; the host issues a kernel in {format_time(framework.host.issue)}."
    )


def remarks(rows: tuple[MeasuredRow, ...], fit: OwnFramework) -> list[str]:
    """Return sentences on runs that the calibration cannot explain, and on too few runs or numbers of GPUs."""
    from simulator.calibration.training_runs.own_framework import UNEXPLAINED

    sentences = [
        f"Lines {join_list([f'{row.line}' for row in equal])} have the same settings and different times, "
        f"{join_list([format_time(row.step_time) for row in equal])}. Correct or remove the wrong line, and calibrate "
        "again."
        for equal in _contradictions(rows)
    ]
    far = [row.name for row, error in zip(rows, fit.after, strict=True) if abs(expm1(-error)) > UNEXPLAINED]
    # Contradicting lines leave every constant near the shipped value, therefore they explain the other errors as well.
    if far and not sentences:
        sentences.append(
            f"Unexplained, more than {UNEXPLAINED:.0%} off after the calibration: {'; '.join(far)}. Check the settings "
            "in these lines, and whether the run was disturbed."
        )
    if len(rows) < _ENOUGH:
        sentences.append(
            f"{number_of(len(rows), 'run')} cannot separate slow kernels from a slow network; {_ENOUGH} runs of "
            "different sizes can."
        )
    elif len(sizes := {row.gpus for row in rows}) == 1:
        gpus = min(sizes)
        sentences.append(
            "All runs have a single GPU, and tell nothing about the network."
            if gpus == 1
            else f"All runs have {gpus:,} GPUs: runs with one number of GPUs cannot separate slow kernels from a slow "
            "network; add a run with another number."
        )
    return sentences


def _contradictions(rows: Sequence[MeasuredRow]) -> list[list[MeasuredRow]]:
    """Return groups of runs with equal settings whose step times differ by more than an explained run may."""
    from simulator.calibration.training_runs.own_framework import UNEXPLAINED

    groups: list[list[MeasuredRow]] = []
    for row in rows:
        group = next((equal for equal in groups if row.is_repeat(equal[0])), None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    times = [[row.step_time for row in group] for group in groups]
    return [
        group
        for group, step_times in zip(groups, times, strict=True)
        if max(step_times) > (1 + UNEXPLAINED) * min(step_times)
    ]


def _text(fit: OwnFramework, name: str, runs: Path) -> str:
    """Return the text of the framework file."""
    framework, source = fit.framework, f"calibrated to {number_of(len(fit.after), 'run')} of {runs.name}"
    constants = (
        ("kernel_time", f"{framework.kernel_time:.4f}"),
        ("network_time", f"{framework.network_time:.4f}"),
        ("host:\n  issue", f"{framework.host.issue:.4g}"),
    )
    lines = [
        f"# {name}'s constants, calibrated to measured runs: {runs.name}. Written by `simulator calibrate`.",
        f"based_on: {name}",
        *(f'{key}: {{value: {value}, source: "{source}"}}' for key, value in constants),
        "# ln(measured / predicted) of each run's step time, predicted by a calibration to the other runs",
        f"calibration: {{runs: {len(fit.after)}, errors: [{', '.join(f'{error:.4f}' for error in fit.without)}]}}",
    ]
    return "\n".join(lines) + "\n"
