"""Prints a scenario's warnings: one line each on stderr; the exit code stays what it is."""

from __future__ import annotations

from collections.abc import Iterable

import typer


def print_warnings(lines: Iterable[str]) -> None:
    """Print each line that is not empty."""
    for line in lines:
        if line:
            typer.echo(f"warning: {line}", err=True)
