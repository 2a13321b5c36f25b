"""Write a machine's description as a topology.

Read are NCCL's topology and graph XML, the matrix of nvidia-smi topo -m, Slurm's topology.conf and topology.yaml
and the output of scontrol show topology, networks as GML, ASTRA-sim's network and system files, and topologies of ns-3
and SimAI. The output lists what was read, what was assumed, and what is not in the topology. Two files are written: the
topology and its graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simulator.basics import units
from simulator.basics.errors import ScenarioError, one_of
from simulator.cli import import_lists
from simulator.cli.completion import names_of
from simulator.cli.console import print_text
from simulator.cli.options import AsJson, NoPlugins, OtherGpu
from simulator.importing.machines.machine_importer import ImportedMachine, import_machine
from simulator.importing.machines.options import MachineOptions

_WORDS: Final = import_lists.Words("part", "the topology", "the topology", "in the topology")
_BANDWIDTHS: Final = ("link_bandwidth", "pcie_bandwidth", "socket_bandwidth", "nic_bandwidth")
_INSIDE: Final = ("nvswitch", "full_mesh", "pcie")


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Descriptions of one machine: NCCL's topology and graph XML, nvidia-smi's topo -m, Slurm's "
            "topology.conf or topology.yaml or scontrol's answer, GML, or a network of ASTRA-sim, ns-3 or SimAI.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--output", "--out", metavar="FILE", help="Topology to write; FILE's name .yaml if omitted."),
    ] = None,
    gpu: OtherGpu = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Number of equal nodes, on a rail network.")
    ] = None,
    inside: Annotated[
        str | None, typer.Option(metavar="KIND", help="Links between GPUs: nvswitch, full_mesh or pcie.")
    ] = None,
    link_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of one NVLink or xGMI link, one direction: '25 GB/s'.")
    ] = None,
    pcie_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of every PCIe link, one direction.")
    ] = None,
    socket_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth between two NUMA nodes, one direction.")
    ] = None,
    nic_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of a network card, one direction: '400 Gb/s'.")
    ] = None,
    oversubscription: Annotated[
        float | None, typer.Option(min=1.0, max=1e6, help="Bandwidth down divided by bandwidth up, at a leaf switch.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Topology with the inside of a node, for Slurm.",
            autocompletion=names_of("topology"),
        ),
    ] = None,
    node_list: Annotated[
        str | None, typer.Option(metavar="HOSTLIST", help="Nodes to import, for Slurm: 'gpu[001-004]'.")
    ] = None,
    level_bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL=RATE",
            help="Bandwidth up from each switch of a level, for Slurm; leaf switches are level 1. Repeatable.",
        ),
    ] = None,
    nvlink_blocks: Annotated[
        bool,
        typer.Option("--nvlink-blocks", help="Each block of Slurm is one NVLink domain: one --node."),
    ] = False,
    section: Annotated[
        str | None, typer.Option(metavar="NAME", help="Topology of a topology.yaml; the default one if omitted.")
    ] = None,
    card: Annotated[
        list[str] | None,
        typer.Option(metavar="BUSID", help="PCI address of a network card, if the file has no classes. Repeatable."),
    ] = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    values = {
        "gpu": gpu, "nodes": nodes, "inside": inside, "link_bandwidth": link_bandwidth,
        "pcie_bandwidth": pcie_bandwidth, "socket_bandwidth": socket_bandwidth, "nic_bandwidth": nic_bandwidth,
        "oversubscription": oversubscription, "node": node, "node_list": node_list, "level_bandwidth": level_bandwidth,
        "nvlink_blocks": nvlink_blocks, "section": section, "cards": card or None,
    }  # fmt: skip
    target = out or Path(f"{Path(files[0]).stem}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"--output: got {str(target)!r}; must end with .yaml")
    graph = target.with_suffix(".graph.json")
    for path in (target, graph):
        if path.exists():
            raise ScenarioError(
                f"{path}: the file exists already; choose another name with --output, or remove the file"
            )
    machine = import_machine(files, _options(values), graph.name)
    for path, text in ((graph, machine.graph), (target, machine.topology)):
        try:
            # Mode "x" creates the file or fails, in one step.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be written: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps(_data(machine, target, graph), indent=2))
    else:
        _print(machine, target, graph)


def _options(values: Mapping[str, Any]) -> MachineOptions:
    """Return the command's options with quantities in SI units."""
    options = {name: value for name, value in values.items() if value is not None}
    for name in _BANDWIDTHS:
        if name in options:
            options[name] = _bandwidth(options[name], f"--{name.replace('_', '-')}")
    if "inside" in options and options["inside"] not in _INSIDE:
        raise ScenarioError(f"--inside: got {options['inside']!r}; {one_of(_INSIDE, options['inside'])}")
    if "level_bandwidth" in options:
        options["level_bandwidth"] = dict(_level(text) for text in options["level_bandwidth"])
    if "cards" in options:
        options["cards"] = tuple(card.lower() for card in options["cards"] if card.lower() != "none")
    return MachineOptions(**options)


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


def _data(machine: ImportedMachine, target: Path, graph: Path) -> dict[str, Any]:
    """Return the result of an import as plain data for --json."""
    notes = machine.notes
    lists = import_lists.data("part", notes.understood, notes.missing, notes.ignored)
    files = {"topology": str(target), "graph": str(graph), "formats": dict(machine.formats)}
    return {**files, **lists, "warnings": list(notes.warnings)}


def _print(machine: ImportedMachine, target: Path, graph: Path) -> None:
    notes = machine.notes
    import_lists.show(_WORDS, machine.formats, notes.understood, notes.missing, notes.ignored, notes.warnings)
    print_text(f"\n{target} and {graph}: written; next: `simulator check {target}`, then `simulator show {target}`")
