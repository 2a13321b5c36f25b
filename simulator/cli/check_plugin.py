"""`simulator check-plugin`: prints which laws the parts of a file keep."""

from __future__ import annotations

import typer

from simulator.basics.foreign_code import is_python_file, refuse_if_forbidden
from simulator.cli.warnings_output import print_warnings
from simulator.testing.plugin_check import check_plugin


def show(path: str) -> None:
    """Check the parts of a file, and print a line for each law; exit with code 1 if a law is broken."""
    if is_python_file(path):
        refuse_if_forbidden(path)
        print_warnings([f"runs the code of {path}"])
    checks = check_plugin(path)
    for line in (line for checked in checks for line in checked.lines()):
        typer.echo(line)
    if not all(checked.holds for checked in checks):
        raise typer.Exit(1)
