"""`simulator check my_topology.yaml`: is a topology file valid, and which machine does it describe?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from simulator.basics import document
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_json
from simulator.cli.commands.show import in_words, usual_ranks
from simulator.cli.console import print_text
from simulator.cluster.build import build, facts

# Top-level keys of a topology file; a scenario has none.
_KEYS = ("builder", "graph", "nodes")


def is_topology(source: str) -> bool:
    """Return True if a path is a topology file: a graph from another program, or YAML with a topology's keys.

    >>> is_topology("dgx_h100")  # a shipped name is no file
    False
    """
    path = Path(source)
    if path.suffix == ".graphml":
        return path.is_file()
    if path.suffix not in (".json", ".yaml", ".yml") or not path.is_file():
        return False
    try:
        data = read_json(path) if path.suffix == ".json" else document.load(path).data
    except ScenarioError:
        # The file is then read as a scenario, and its faults are reported.
        return False
    return isinstance(data, Mapping) and any(key in data for key in _KEYS) and "cluster" not in data


def check_topology(source: str, settings: Sequence[str]) -> None:
    """Print a topology file's allowed number of ranks, GPU and parts.

    Raises
    ------
    ScenarioError
        The file has faults (a line for each), or settings were given.
    """
    if settings:
        raise ScenarioError("--set: a topology file has no settings; change the file")
    topology = facts(source)
    ranks = usual_ranks(topology)
    cluster = build(source, ranks)
    typer.echo(f"{source}: valid")
    most = "any number of ranks" if topology.max_ranks is None else f"at most {topology.max_ranks} ranks"
    nodes = f"; nodes of {topology.node_size} GPUs" if topology.node_size else ""
    print_text(f"ranks:   {most}{nodes}", indent=" " * 9)
    typer.echo(f"GPU:     {cluster.gpus[0].name}")
    print_text(f"{ranks} ranks: {in_words(cluster)}, {cluster.graph.number_of_edges()} directed links", indent="  ")
