"""`simulator schema`: the JSON schema of scenario files."""

from __future__ import annotations

import json

import typer

from simulator.scenario.schema import schema


def show() -> None:
    """Print it."""
    typer.echo(json.dumps(schema(), indent=2))
