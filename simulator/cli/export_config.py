"""`simulator export-config`: writes a scenario's training step as another program's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.basics.errors import ScenarioError
from simulator.cli.console import print_table, print_text
from simulator.exporting.exporter import PROGRAMS, export
from simulator.report.tables.layout import text_columns
from simulator.scenario.load import load_scenario


def write(source: str, program: str, out: Path | None, overrides: Mapping[str, str]) -> None:
    """Write a scenario's step for a program, and print the parts that the program's file does not say.

    Raises
    ------
    ScenarioError
        The scenario is invalid or no single training step, the program is unknown, or the file exists.
    """
    exported = export(load_scenario(source, overrides), program)
    target = out or Path(PROGRAMS[program])
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(exported.text)
    except FileExistsError:
        raise ScenarioError(f"{target}: the file exists already; choose another name with --out") from None
    except OSError as error:
        raise ScenarioError(f"{target}: cannot be written: {error.strerror or error}") from error
    if exported.differences:
        print_text("Not in the configuration")
        rows = [[one.part, _value(one.scenario), _value(one.configuration)] for one in exported.differences]
        print_table(text_columns("part of the step", "in the scenario", "after import"), rows, indent="  ")
    print_text(f"{target}: written")


def _value(value: Any) -> str:
    name = getattr(value, "name", None)
    return str(name if isinstance(name, str) else value)[:80]
