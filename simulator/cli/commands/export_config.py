"""Write a scenario as another program's configuration.

The output lists the parts of the step that the program's file does not say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.basics.errors import ScenarioError
from simulator.cli.console import print_table, print_text
from simulator.cli.options import NoPlugins, ScenarioName, Settings
from simulator.cli.settings import as_overrides
from simulator.report.tables.layout import text_columns


def command(
    source: ScenarioName,
    to: Annotated[str, typer.Option("--to", metavar="PROGRAM", help="Program: megatron or deepspeed.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write; train.sh or ds.json if omitted.")
    ] = None,
    settings: Settings = None,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.importing.export.exporter import PROGRAMS, export
    from simulator.scenario.load import load_scenario

    exported = export(load_scenario(source, as_overrides(settings or ())), to)
    target = out or Path(PROGRAMS[to])
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(exported.text)
    except FileExistsError:
        raise ScenarioError(f"{target}: the file exists already; choose another name with --out") from None
    except OSError as error:
        raise ScenarioError(f"{target}: cannot be written: {error.strerror or error}") from error
    if exported.differences:
        print_text("Not in the configuration")
        rows = [[part.part, _value(part.scenario), _value(part.configuration)] for part in exported.differences]
        print_table(text_columns("part of the step", "in the scenario", "after import"), rows, indent="  ")
    print_text(f"{target}: written")


def _value(value: Any) -> str:
    name = getattr(value, "name", None)
    return str(name if isinstance(name, str) else value)[:80]
