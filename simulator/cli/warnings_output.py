"""Prints a scenario's warnings on stderr, a line for each; the exit code does not change."""

from __future__ import annotations

from collections.abc import Iterable

import typer


def print_warnings(lines: Iterable[str]) -> None:
    """Print every non-empty line on stderr as a warning."""
    for line in lines:
        if line:
            typer.echo(f"warning: {line}", err=True)
