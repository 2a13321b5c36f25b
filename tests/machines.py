"""Descriptions of machines from other programs: sample files, and their imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.cluster.build import build, facts
from simulator.cluster.cluster import Cluster
from simulator.importing.machines.machine_importer import ImportedMachine, import_machine
from simulator.importing.machines.options import MachineOptions

SAMPLES = Path(__file__).parent / "golden" / "machines"


def sample(name: str) -> str:
    """The path of a sample, such as "slurm/topology.yaml"."""
    return str(SAMPLES / name)


def imported(*files: str, **options: Any) -> ImportedMachine:
    return import_machine(list(files), MachineOptions(**options), "machine.graph.json")


def cluster(folder: Path, found: ImportedMachine, ranks: int | None = None) -> Cluster:
    """The cluster of an import, through the files that the command writes."""
    (folder / "machine.graph.json").write_text(found.graph, encoding="utf-8")
    path = folder / "machine.yaml"
    path.write_text(found.topology, encoding="utf-8")
    return build(path, ranks or facts(path).max_ranks or 0)


def read(found: ImportedMachine) -> dict[str, Any]:
    """What was read from the files, by part."""
    return {one.key: one.value for one in found.notes.understood}


def assumed(found: ImportedMachine) -> dict[str, Any]:
    """What was assumed, by part."""
    return {one.key: one.assumed for one in found.notes.missing}


def kinds(cluster: Cluster) -> dict[str, int]:
    """The number of vertices of each kind."""
    found = [facts["kind"] for _, facts in cluster.graph.nodes(data=True)]
    return {kind: found.count(kind) for kind in dict.fromkeys(found)}


def path(cluster: Cluster, source: str, target: str) -> list[str]:
    """The vertices of a route."""
    router = cluster.router
    links = cluster.route(source, target).links
    return [source, *(router.vertices[router.targets[link]] for link in links)]


def rate(cluster: Cluster, source: str, target: str) -> float:
    """The bandwidth of a cable [B/s]."""
    return float(cluster.graph.edges[source, target]["bandwidth"])
