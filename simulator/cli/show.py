"""`simulator show`: a picture of a topology, and its links in words."""

from __future__ import annotations

from pathlib import Path

import typer

from simulator.basics.units import format_bandwidth, format_time
from simulator.cli.console import print_text
from simulator.cluster.build import TopologyFacts, build, facts
from simulator.cluster.cluster import Cluster
from simulator.errors import ScenarioError

_DEFAULT_RANKS = 8
_SUFFIXES = (".png", ".svg", ".pdf")


def show(topology: str, world_size: int | None, out: Path | None) -> None:
    """Draw a topology and list its kinds of links."""
    known = facts(topology)
    ranks = world_size or usual_ranks(known)
    target = out or Path(f"{known.name}.png")
    if target.suffix not in _SUFFIXES:
        raise ScenarioError(f"--out: got {target}; must end with one of {', '.join(_SUFFIXES)}")
    cluster = build(topology, ranks)
    from simulator.report.plots.topology import figure

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure(cluster).savefig(target, dpi=150)
    except OSError as error:
        raise ScenarioError(f"--out: {target}: cannot be written: {error.strerror or error}") from error
    print_text(f"{known.name}: {ranks} ranks of {cluster.gpus[0].name}, {in_words(cluster)}", indent="  ")
    for (src, dst, bandwidth, latency), count in _kinds(cluster).items():
        typer.echo(f"  {count:>6} x {src} -> {dst}: {format_bandwidth(bandwidth)}, {format_time(latency)}")
    typer.echo(f"picture: {target}")


def usual_ranks(known: TopologyFacts) -> int:
    """Ranks with which a topology is drawn: two full nodes, or 16 GPUs without nodes, at most what it has."""
    return min(known.max_ranks or 10**9, 2 * (known.node_size or _DEFAULT_RANKS))


def in_words(cluster: Cluster) -> str:
    """How many vertices of each kind there are."""
    counts: dict[str, int] = {}
    for _, facts_ in cluster.graph.nodes(data=True):
        counts[facts_["kind"]] = counts.get(facts_["kind"], 0) + 1
    return ", ".join(
        f"{count} {kind}{'s' if count > 1 and kind != 'switch' else 'es' if count > 1 else ''}"
        for kind, count in counts.items()
    )


def _kinds(cluster: Cluster) -> dict[tuple[str, str, float, float], int]:
    """Directed links by the kinds of their ends, bandwidth and latency."""
    counts: dict[tuple[str, str, float, float], int] = {}
    kinds = {vertex: facts_["kind"] for vertex, facts_ in cluster.graph.nodes(data=True)}
    for src, dst, edge in cluster.graph.edges(data=True):
        key = (kinds[src], kinds[dst], float(edge["bandwidth"]), float(edge["latency"]))
        counts[key] = counts.get(key, 0) + 1
    return counts
