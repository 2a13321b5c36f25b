"""Prints a scenario's warnings on stderr, a line for each; the exit code does not change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from simulator.scenario.records import Scenario


def print_warnings(lines: Iterable[str]) -> None:
    """Print every non-empty line on stderr as a warning."""
    for line in lines:
        if line:
            typer.echo(f"warning: {line}", err=True)


def print_assumed_framework(scenario: Scenario) -> None:
    """Print on stderr the framework that a training step has by default; nothing if the scenario names one.

    Frameworks differ by 10 % and more in time. A run's page has the same fact under Trust.
    """
    from simulator.findings.caveats import assumed_framework

    if name := assumed_framework(scenario):
        typer.echo(
            f"note: training.framework is not given; kernels and memory are those of {name}, the default", err=True
        )
