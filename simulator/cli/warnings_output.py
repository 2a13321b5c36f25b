"""Prints a scenario's warnings on stderr, a line for each; the exit code does not change."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from simulator.basics.sections import varied
from simulator.scenario.records import Scenario


def print_warnings(lines: Iterable[str]) -> None:
    """Print every non-empty line on stderr as a warning."""
    for line in lines:
        if line:
            typer.echo(f"warning: {line}", err=True)


def print_assumed_framework(scenario: Scenario) -> None:
    """Print on stderr which framework's constants a training step has by default; nothing if the scenario names one."""
    training = scenario.training
    axes = varied({**scenario.compare, **scenario.sweep})
    if training is not None and "framework" not in training.model_fields_set and "training.framework" not in axes:
        name = training.framework
        typer.echo(
            f"note: training.framework is not given; the measured constants of {name} are assumed "
            "(`simulator list frameworks` lists others)",
            err=True,
        )
