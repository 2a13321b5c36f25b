"""`simulator check my_topology.yaml`: is a topology file right, and what is the machine that it describes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from simulator.basics import document
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_json
from simulator.cli.console import print_text
from simulator.cli.show import in_words, usual_ranks
from simulator.cluster.build import build, facts

# A file with one of these at its top is no scenario.
_KEYS = ("builder", "graph", "nodes")


def is_topology(source: str) -> bool:
    """Whether a path is that of a topology: a graph of another program, or a YAML file with a topology's keys."""
    path = Path(source)
    if path.suffix == ".graphml":
        return path.is_file()
    if path.suffix not in (".json", ".yaml", ".yml") or not path.is_file():
        return False
    try:
        data = read_json(path) if path.suffix == ".json" else document.load(path).data
    except ScenarioError:
        return False  # it is then read as a scenario, which reports what is wrong with it
    return isinstance(data, Mapping) and any(key in data for key in _KEYS) and "cluster" not in data


def check_topology(source: str, settings: Sequence[str]) -> None:
    """Print how many ranks the topology takes, its GPU, and what it is made of.

    Raises
    ------
    ScenarioError
        One line for each fault of the file; settings, which a topology has none of.
    """
    if settings:
        raise ScenarioError("--set: a topology file has no settings; change the file")
    known = facts(source)
    ranks = usual_ranks(known)
    cluster = build(source, ranks)
    typer.echo(f"{source}: valid")
    most = "any number of ranks" if known.max_ranks is None else f"at most {known.max_ranks} ranks"
    nodes = f"; nodes of {known.node_size} GPUs" if known.node_size else ""
    print_text(f"ranks:   {most}{nodes}", indent=" " * 9)
    typer.echo(f"GPU:     {cluster.gpus[0].name}")
    print_text(f"{ranks} ranks: {in_words(cluster)}, {cluster.graph.number_of_edges()} directed links", indent="  ")
