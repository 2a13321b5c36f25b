"""`simulator import-machine`: writes the description of a machine from another program as a topology."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from simulator.basics import units
from simulator.basics.errors import ScenarioError, one_of
from simulator.cli import import_lists
from simulator.cli.console import print_text
from simulator.importing.machines.machine_importer import ImportedMachine, import_machine
from simulator.importing.machines.options import MachineOptions

_WORDS: Final = import_lists.Words("part", "the topology", "the topology", "in the topology")
_BANDWIDTHS: Final = ("link_bandwidth", "pcie_bandwidth", "socket_bandwidth", "nic_bandwidth")
_INSIDE: Final = ("nvswitch", "full_mesh", "pcie")


def write(files: Sequence[str], out: Path | None, asked: Mapping[str, Any], *, as_json: bool) -> None:
    """Write the topology of a machine's descriptions, and print what was read and assumed.

    `asked` maps fields of `MachineOptions` to values as written.

    Raises
    ------
    ScenarioError
        A fault in a file or an option, or one of the files to write exists.
    """
    target = out or Path(f"{Path(files[0]).stem}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"--output: got {str(target)!r}; must end with .yaml")
    graph = target.with_suffix(".graph.json")
    for path in (target, graph):
        if path.exists():
            raise ScenarioError(
                f"{path}: the file exists already; choose another name with --output, or remove the file"
            )
    found = import_machine(files, _options(asked), graph.name)
    for path, text in ((graph, found.graph), (target, found.topology)):
        try:
            # Mode "x" creates the file or fails, in one step.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be written: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps(_data(found, target, graph), indent=2))
    else:
        _print(found, target, graph)


def _options(asked: Mapping[str, Any]) -> MachineOptions:
    """Return the command's options with quantities in SI units."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name in _BANDWIDTHS:
        if name in given:
            given[name] = _bandwidth(given[name], f"--{name.replace('_', '-')}")
    if "inside" in given and given["inside"] not in _INSIDE:
        raise ScenarioError(f"--inside: got {given['inside']!r}; {one_of(_INSIDE, given['inside'])}")
    if "level_bandwidth" in given:
        given["level_bandwidth"] = dict(_level(text) for text in given["level_bandwidth"])
    if "cards" in given:
        given["cards"] = tuple(card.lower() for card in given["cards"] if card.lower() != "none")
    return MachineOptions(**given)


def _bandwidth(text: str, option: str) -> float:
    try:
        bandwidth = units.parse(text, "bandwidth")
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from error
    if bandwidth <= 0:
        raise ScenarioError(f"{option}: got {text!r}; must be more than 0")
    return bandwidth


def _level(text: str) -> tuple[int, float]:
    """Return the level and the bandwidth of a text such as "1=3200 Gb/s"."""
    level, equals, rate = text.partition("=")
    if not equals or not level.strip().isascii() or not level.strip().isdigit() or not 1 <= int(level[:9]) <= 9:
        raise ScenarioError(f"--level-bandwidth: got {text!r}; must be LEVEL=RATE, such as '1=3200 Gb/s'")
    return int(level), _bandwidth(rate.strip(), "--level-bandwidth")


def _data(found: ImportedMachine, target: Path, graph: Path) -> dict[str, Any]:
    """Return the result of an import as plain data for --json."""
    notes = found.notes
    lists = import_lists.data("part", notes.understood, notes.missing, notes.ignored)
    files = {"topology": str(target), "graph": str(graph), "formats": dict(found.formats)}
    return {**files, **lists, "warnings": list(notes.warnings)}


def _print(found: ImportedMachine, target: Path, graph: Path) -> None:
    notes = found.notes
    import_lists.show(_WORDS, found.formats, notes.understood, notes.missing, notes.ignored, notes.warnings)
    print_text(f"\n{target} and {graph}: written; next: `simulator check {target}`, then `simulator show {target}`")
