"""Write a scenario file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.basics.errors import ScenarioError
from simulator.cli.options import NoPlugins
from simulator.scenario.template import template


def command(
    name: Annotated[str, typer.Argument(help="Name of the scenario; the file is NAME.yaml.", metavar="NAME")],
    question: Annotated[str, typer.Option(help="Question that the scenario answers.")] = "What do we want to know?",
    training: Annotated[
        bool, typer.Option("--training", help="Write a training step instead of a collective.")
    ] = False,
    no_plugins: NoPlugins = False,
) -> None:
    # `simulator new demo` and `simulator new demo.yaml` mean the same file.
    from simulator.scenario.load import check_name

    name = name.removesuffix(".yaml")
    check_name(name)
    path = Path(f"{name}.yaml")
    try:
        # Mode "x" creates the file or fails, in one step.
        with path.open("x", encoding="utf-8") as file:
            file.write(template(name, question, "training" if training else "collective"))
    except FileExistsError:
        raise ScenarioError(f"{path}: the file exists already; choose another name, or remove the file") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written: {error.strerror or error}") from error
    typer.echo(f"{path}: written; next: `simulator check {path}`, then `simulator run {path}`")
