"""Check own parts, such as a schedule.

Parts are collective algorithms, pipeline schedules, sharding strategies, topology builders, optimizers, plots,
findings and framework files. The records in the file tell its parts, and each part is checked with the laws of its
kind, which the shipped parts keep too. The exit code is 1 if a part breaks a law.
"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import NoPlugins


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Python file with an own part, or a framework file (YAML).")
    ],
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.testing.plugin_check import check_plugin

    checks = check_plugin(file)
    for line in (line for checked in checks for line in checked.lines()):
        typer.echo(line)
    if not all(checked.holds for checked in checks):
        raise typer.Exit(1)
