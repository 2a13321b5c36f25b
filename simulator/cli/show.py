"""`simulator show`: a picture of a topology, and its links in words."""

from __future__ import annotations

from pathlib import Path

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_bandwidth, format_time
from simulator.cli.console import print_text
from simulator.cli.warnings_output import print_warnings
from simulator.cluster.build import TopologyFacts, build, facts
from simulator.cluster.cluster import Cluster
from simulator.cluster.gpu_file import load_gpu
from simulator.run.size import announced_topology

_DEFAULT_RANKS = 8
# A topology of at most so many GPUs is drawn with a rank on each.
_WHOLE_UP_TO = 64
_SUFFIXES = (".png", ".svg", ".pdf")


def show(topology: str, world_size: int | None, out: Path | None, gpu: str | None = None, *, svg: bool = False) -> None:
    """Draw a topology, with its own GPUs or others, and list its kinds of links."""
    known = facts(topology)
    ranks = world_size or usual_ranks(known)
    target = out or Path(f"{known.name}.png")
    if target.suffix not in _SUFFIXES:
        raise ScenarioError(f"--out: got {target}; must end with one of {', '.join(_SUFFIXES)}")
    if gpu is None and known.gpu is None:
        raise ScenarioError(f"--gpu: topology {known.name} names no GPU; write for example --gpu a100_sxm_80gb")
    print_warnings([announced_topology(topology, ranks)])
    cluster = build(topology, ranks, gpu=gpu if gpu is None else _chosen(gpu))
    from simulator.report.plots import style
    from simulator.report.plots.topology import figure

    pictures = list(dict.fromkeys([target, *([target.with_suffix(".svg")] if svg else [])]))
    drawn = figure(cluster)
    for picture in pictures:
        try:
            picture.parent.mkdir(parents=True, exist_ok=True)
            with style.applied():
                # An SVG says when it was drawn, unless it is told not to.
                plain = {"Date": None, "Creator": None} if picture.suffix == ".svg" else None
                drawn.savefig(picture, dpi=150, metadata=plain)
        except OSError as error:
            raise ScenarioError(f"--out: {picture}: cannot be written: {error.strerror or error}") from error
    print_text(f"{known.name}: {ranks} ranks of {cluster.gpus[0].name}, {in_words(cluster)}", indent="  ")
    for (src, dst, bandwidth, latency), count in _kinds(cluster).items():
        typer.echo(f"  {count:>6} x {src} -> {dst}: {format_bandwidth(bandwidth)}, {format_time(latency)}")
    for picture in pictures:
        typer.echo(f"picture: {picture}")


def _chosen(gpu: str) -> str:
    """The name or path of a GPU that can be read; what is wrong with it is a fault of the option, a line each."""
    try:
        load_gpu(gpu)
    except ScenarioError as error:
        lines = [f"--gpu: {line.removeprefix('gpu: ')}" for line in str(error).splitlines()]
        raise ScenarioError("\n".join(lines)) from error
    return gpu


def usual_ranks(known: TopologyFacts) -> int:
    """Return the number of ranks with which a topology is drawn: all GPUs of a small one, else two nodes or 16 GPUs."""
    if known.max_ranks is not None and known.max_ranks <= _WHOLE_UP_TO:
        return known.max_ranks
    return 2 * (known.node_size or _DEFAULT_RANKS)


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
