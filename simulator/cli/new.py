"""`simulator new`: writes a scenario file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from simulator.basics.errors import ScenarioError
from simulator.scenario.load import check_name
from simulator.scenario.template import template


def write(name: str, question: str, kind: Literal["collective", "training"] = "collective") -> None:
    """Write a new scenario to NAME.yaml in the working directory; refuse to overwrite an existing file."""
    # `simulator new demo` and `simulator new demo.yaml` mean the same file.
    name = name.removesuffix(".yaml")
    check_name(name)
    path = Path(f"{name}.yaml")
    try:
        # Mode "x" creates the file or fails, in one step.
        with path.open("x", encoding="utf-8") as file:
            file.write(template(name, question, kind))
    except FileExistsError:
        raise ScenarioError(f"{path}: the file exists already; choose another name, or remove the file") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written: {error.strerror or error}") from error
    typer.echo(f"{path}: written; next: `simulator check {path}`, then `simulator run {path}`")
