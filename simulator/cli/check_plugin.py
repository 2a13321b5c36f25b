"""`simulator check-plugin`: prints which laws the parts of a file keep."""

from __future__ import annotations

import typer

from simulator.testing.plugin_check import check_plugin


def show(path: str) -> None:
    """Check the parts of a file, and print a line for each law; exit with code 1 if a law is broken."""
    checks = check_plugin(path)
    for line in (line for checked in checks for line in checked.lines()):
        typer.echo(line)
    if not all(checked.holds for checked in checks):
        raise typer.Exit(1)
