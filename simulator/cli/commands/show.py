"""Draw a topology, and print its link bandwidths."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.basics.natural_order import natural
from simulator.basics.units import format_bandwidth, format_time
from simulator.cli.completion import names_of
from simulator.cli.console import print_text
from simulator.cli.options import NoPlugins, OtherGpu, Svg
from simulator.cli.warnings_output import print_warnings
from simulator.cluster.build import TopologyFacts, build, facts
from simulator.cluster.cluster import Cluster
from simulator.cluster.gpu_file import load_gpu

_DEFAULT_RANKS = 8
# Topologies with at most this many GPUs are drawn with a rank on each GPU.
_WHOLE_UP_TO = 64
_SUFFIXES = (".png", ".svg", ".pdf")


def command(
    topology: Annotated[
        str,
        typer.Argument(
            help="Name, or path of a topology or graph file.",
            metavar="TOPOLOGY",
            autocompletion=names_of("topology"),
        ),
    ],
    world_size: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Number of ranks; two full nodes if omitted.")
    ] = None,
    gpu: OtherGpu = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture to write; TOPOLOGY.png if omitted.")] = None,
    svg: Svg = False,
    links: Annotated[
        bool,
        typer.Option("--links", help="Print the name of every link, for `cluster.link_factors`, instead of a picture."),
    ] = False,
    channels: Annotated[
        bool,
        typer.Option("--channels", help="Print the rings that collectives take through a node, instead of a picture."),
    ] = False,
    no_plugins: NoPlugins = False,
) -> None:
    texts = {"--links": links, "--channels": channels}
    for text in (name for name, chosen in texts.items() if chosen):
        excluded = {"--out": out, "--svg": svg, **texts}
        option = next((name for name, value in excluded.items() if value and name != text), None)
        if option:
            raise ScenarioError(f"{option}: excludes {text}, which prints and draws no picture; omit one option")
    if links:
        _print_links(_built(topology, world_size, gpu))
        return
    if channels:
        _print_channels(_built(topology, world_size, gpu))
        return
    machine = facts(topology)
    target = out or Path(f"{machine.name}.png")
    if target.suffix not in _SUFFIXES:
        raise ScenarioError(f"--out: got {target}; must end with one of {', '.join(_SUFFIXES)}")
    cluster = _built(topology, world_size, gpu)
    # matplotlib is imported only after every check.
    from simulator.report.plots import style
    from simulator.report.plots.topology import figure

    pictures = list(dict.fromkeys([target, *([target.with_suffix(".svg")] if svg else [])]))
    plot = figure(cluster)
    for picture in pictures:
        try:
            picture.parent.mkdir(parents=True, exist_ok=True)
            with style.applied():
                # matplotlib writes the date into an SVG by default; equal pictures would differ.
                plain = {"Date": None, "Creator": None} if picture.suffix == ".svg" else None
                plot.savefig(picture, dpi=150, metadata=plain)
        except OSError as error:
            raise ScenarioError(f"--out: {picture}: cannot be written: {error.strerror or error}") from error
    ranks = len(cluster.ranks)
    print_text(f"{machine.name}: {ranks} ranks of {cluster.gpus[0].name}, {in_words(cluster)}", indent="  ")
    for (src, dst, bandwidth, latency), count in _kinds(cluster).items():
        typer.echo(f"  {count:>6} x {src} -> {dst}: {format_bandwidth(bandwidth)}, {format_time(latency)}")
    for picture in pictures:
        typer.echo(f"picture: {picture}")


def _built(topology: str, world_size: int | None, gpu: str | None) -> Cluster:
    """Return a topology's cluster, with the usual number of ranks and the topology's own GPU if these are None."""
    from simulator.run.size_estimate import announced_topology

    machine = facts(topology)
    ranks = world_size or usual_ranks(machine)
    # A cluster cannot be built without a GPU.
    if gpu is None and machine.gpu is None:
        raise ScenarioError(f"--gpu: topology {machine.name} has no GPU; write for example --gpu a100_sxm_80gb")
    print_warnings([announced_topology(topology, ranks)])
    return build(topology, ranks, gpu=gpu if gpu is None else _chosen(gpu))


def _print_links(cluster: Cluster) -> None:
    """Print a line for each directed link: its name (as in `cluster.link_factors`), bandwidth and latency."""
    edges = cluster.graph.edges(data=True)
    rows = [
        (f"{src}->{dst}", format_bandwidth(edge["bandwidth"]), format_time(edge["latency"])) for src, dst, edge in edges
    ]
    rows.sort(key=lambda row: natural(row[0]))
    name, bandwidth, latency = (max((len(row[i]) for row in rows), default=0) for i in range(3))
    for link, rate, delay in rows:
        # A line for each link at any width of the terminal, for `grep`.
        typer.echo(f"{link:<{name}}  {rate:>{bandwidth}}  {delay:>{latency}}")


def _print_channels(cluster: Cluster) -> None:
    """Print the rings through the first node of a cluster: over the links of a mesh, or else one ring over all GPUs."""
    from simulator.collectives.channels import rings_over_links

    everyone = tuple(range(cluster.world_size))
    places = cluster.nodes or (everyone,)
    rings = rings_over_links(cluster, everyone, places)
    names = [cluster.ranks[rank] for rank in places[0]]
    if not rings:
        rate = min((cluster.route(a, b).bandwidth for a, b in pairwise([*names, names[0]]) if a != b), default=0.0)
        print_text(
            f"{cluster.name}: no links from GPU to GPU with several rings; one ring in the order of the GPUs, "
            f"{format_bandwidth(rate)} by rating"
        )
        rings = (tuple(range(len(names))),)
    else:
        ends = ", opened where data enters and leaves the node" if len(places) > 1 else ""
        print_text(f"{cluster.name}: {number_of(len(rings), 'ring')} over links of their own{ends}")
    for ring in rings:
        typer.echo("  " + " ".join(names[place] for place in ring))


def _chosen(gpu: str) -> str:
    """Return a GPU's name or path if readable; otherwise raise an error with each fault, at the option --gpu."""
    try:
        load_gpu(gpu)
    except ScenarioError as error:
        lines = [f"--gpu: {line.removeprefix('gpu: ')}" for line in str(error).splitlines()]
        raise ScenarioError("\n".join(lines)) from error
    return gpu


def usual_ranks(machine: TopologyFacts) -> int:
    """Return the number of ranks to draw: every GPU of a small topology, otherwise two nodes or 16 GPUs."""
    if machine.max_ranks is not None and machine.max_ranks <= _WHOLE_UP_TO:
        return machine.max_ranks
    return 2 * (machine.node_size or _DEFAULT_RANKS)


def in_words(cluster: Cluster) -> str:
    """Format the cluster's number of vertices per kind: "8 gpus, 1 switch"."""
    counts: dict[str, int] = {}
    for _, facts_ in cluster.graph.nodes(data=True):
        counts[facts_["kind"]] = counts.get(facts_["kind"], 0) + 1
    return ", ".join(
        f"{count} {kind}{'s' if count > 1 and kind != 'switch' else 'es' if count > 1 else ''}"
        for kind, count in counts.items()
    )


def _kinds(cluster: Cluster) -> dict[tuple[str, str, float, float], int]:
    """Return {(source kind, destination kind, bandwidth [B/s], latency [s]): number of directed links} of a cluster."""
    counts: dict[tuple[str, str, float, float], int] = {}
    kinds = {vertex: facts_["kind"] for vertex, facts_ in cluster.graph.nodes(data=True)}
    for src, dst, edge in cluster.graph.edges(data=True):
        key = (kinds[src], kinds[dst], float(edge["bandwidth"]), float(edge["latency"]))
        counts[key] = counts.get(key, 0) + 1
    return counts
