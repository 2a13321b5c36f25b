"""Print the JSON schema of scenario or topology files."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from simulator.basics.errors import UnknownNameError
from simulator.cli.options import NoPlugins

KINDS = ("scenario", "topology")


def command(
    kind: Annotated[str, typer.Argument(help="Kind of files: scenario or topology.", metavar="KIND")] = "scenario",
    no_plugins: NoPlugins = False,
) -> None:
    typer.echo(json.dumps(_schema(kind), indent=2))


def _schema(kind: str) -> object:
    # Imported late: building either schema imports pydantic.
    if kind == "scenario":
        from simulator.scenario.schema import schema

        return schema()
    if kind == "topology":
        from simulator.cluster.topology_schema import schema

        return schema()
    raise UnknownNameError("schema", kind, KINDS)
