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
from simulator.cli import import_lists
from simulator.cli.console import print_text
from simulator.cluster.build import facts
from simulator.cluster.chassis import machine_of
from simulator.importing.importer import import_files
from simulator.importing.machine import MACHINE, NODE, Options
from simulator.importing.settings import Imported

_WORDS: Final = import_lists.Words("scenario key", "the scenario", "a step", "in the simulation")


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
    lists = import_lists.data("key", found.understood, found.missing, found.ignored)
    return {"scenario": str(target), "formats": dict(found.formats), **lists, "warnings": list(found.warnings)}


def _print(found: Imported, target: Path) -> None:
    import_lists.show(_WORDS, found.formats, found.understood, found.missing, found.ignored, found.warnings)
    print_text(f"\n{target}: written; next: `simulator check {target}`, then `simulator run {target}`")
