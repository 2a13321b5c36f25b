"""Warnings as a command tells them: one line each on stderr, and the exit code stays what it is."""

from __future__ import annotations

from collections.abc import Iterable

import typer


def tell_warnings(lines: Iterable[str]) -> None:
    """Tell each once."""
    for line in lines:
        typer.echo(f"warning: {line}", err=True)
