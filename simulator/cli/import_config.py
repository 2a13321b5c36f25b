"""`simulator import-config`: writes the configuration of an existing training as a scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.yaml_dialect import dump
from simulator.cli.console import print_table, print_text
from simulator.cluster.build import facts
from simulator.importing.importer import import_files
from simulator.importing.machine import MACHINE, NODE, Options
from simulator.importing.settings import Ignored, Imported, Reason
from simulator.report.tables.layout import text_columns
from simulator.sizing.machine import machine_of

# Longest value in the printed table.
_WIDEST: Final = 40


def write(
    files: Sequence[str], out: Path | None, asked: Mapping[str, Any], defined: Sequence[str], *, as_json: bool
) -> None:
    """Write the scenario of configuration files, and print what was understood, ignored and assumed.

    `asked` maps fields of `Options` to values; `defined` are variables of scripts, each as NAME=VALUE.

    Raises
    ------
    ScenarioError
        A fault in a file or an option, or the scenario's file exists.
    """
    target = out or Path(f"{Path(files[0].partition('.py:')[0]).stem}.yaml")
    if target.exists():
        raise ScenarioError(f"{target}: the file exists already; choose another name with --out, or remove the file")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", target.stem)[:100].lstrip(".-") or "imported"
    found = import_files(files, _options({**asked, "variables": _variables(defined)}), name, target.parent)
    try:
        # Mode "x" creates the file or fails, in one step.
        with target.open("x", encoding="utf-8") as file:
            file.write(found.text)
    except OSError as error:
        raise ScenarioError(f"{target}: cannot be written: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps(_data(found, target), indent=2))
    else:
        _print(found, target)


def _options(asked: Mapping[str, Any]) -> Options:
    """Return the command's options, with the machine that has the GPU, and the size of its nodes."""
    if asked.get("gpus") is not None and asked.get("nodes") is not None:
        raise ScenarioError("--nodes: excludes --gpus; give one of both")
    gpu = asked.get("gpu")
    known = None if gpu is None else registry.shipped("gpu", gpu)
    machine = MACHINE if known is None else machine_of(known)
    node_size = facts(asked.get("topology") or machine).node_size
    return Options(**asked, machine=machine, gpus_per_node=node_size or NODE)


def _variables(defined: Sequence[str]) -> dict[str, str]:
    """Return the variables in texts NAME=VALUE, by name."""
    pairs = [text.partition("=") for text in defined]
    wrong = next((text for text, (name, equals, _) in zip(defined, pairs, strict=True) if not name or not equals), None)
    if wrong is not None:
        raise ScenarioError(f"--define: got {wrong!r}; must be NAME=VALUE, such as TP=8")
    return {name: value for name, _, value in pairs}


def _data(found: Imported, target: Path) -> dict[str, Any]:
    """Return the result of an import as plain data for --json."""
    return {
        "scenario": str(target),
        "formats": dict(found.formats),
        "understood": [
            {"key": one.key, "value": one.value, "settings": [
                {"key": setting.key, "file": setting.source, "line": setting.line} for setting in one.settings
            ]}
            for one in found.understood
        ],
        "ignored": [
            {"key": one.setting.key, "file": one.setting.source, "line": one.setting.line, "reason": one.reason.value,
             "why": one.why}
            for one in found.ignored
        ],
        "missing": [{"key": one.key, "assumed": one.assumed, "why": one.why} for one in found.missing],
        "warnings": list(found.warnings),
    }  # fmt: skip


def _print(found: Imported, target: Path) -> None:
    for file, name in found.formats.items():
        print_text(f"{file}: read as {name}")
    rows = [[one.key, _value(one.value), one.origin, one.place] for one in found.understood]
    _section("Understood", ("scenario key", "value", "setting", "place"), rows)
    rows = [[one.key, _value(one.assumed), one.why] for one in found.missing]
    _section("Missing in the files, and assumed", ("scenario key", "value", "reason"), rows)
    for reason in (Reason.NOT_MODELLED, Reason.CONDITIONAL, Reason.UNKNOWN):
        several = _reasons(found.ignored_for(reason))
        _section(f"Not in the scenario: {reason.value}", ("setting", "place", *several[0]), several[1])
    idle = list(dict.fromkeys(one.setting.key for one in found.ignored_for(Reason.NO_MEANING)))
    if idle:
        print_text(f"\nWithout effect on a step ({len(idle)}): {', '.join(idle)}")
    for line in found.warnings:
        print_text(f"note: {line}", stderr=True)
    print_text(f"\n{target}: written; next: `simulator check {target}`, then `simulator run {target}`")


def _reasons(ignored: Sequence[Ignored]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the heading and the rows of ignored settings, with a column of reasons if any has one."""
    if not any(one.why for one in ignored):
        return (), [[one.setting.key, one.setting.name_and_line] for one in ignored]
    return ("in the simulation",), [[one.setting.key, one.setting.name_and_line, one.why] for one in ignored]


def _section(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_text(f"\n{title}")
        print_table(text_columns(*headings), rows, indent="  ")


def _value(value: Any) -> str:
    text = dump(value, one_line=True)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
