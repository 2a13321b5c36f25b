"""`simulator schema`: prints the JSON schema of scenario files or topology files."""

from __future__ import annotations

import json

import typer

from simulator.basics.errors import UnknownNameError

KINDS = ("scenario", "topology")


def show(kind: str) -> None:
    """Print the JSON schema of a kind of files, scenario or topology."""
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
