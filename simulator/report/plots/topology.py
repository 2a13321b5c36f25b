"""What does a cluster look like: its GPUs, switches, cards and hosts, and the bandwidth of the links between them?

Rule: the graph that is drawn is the one that is routed; both directions of a cable are one line, thicker for more
bandwidth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_bandwidth, format_time
from simulator.report.plots import style
from simulator.report.plots.layout import Place, places, selected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.cluster.cluster import Cluster

_MOST_VERTICES: Final = 200
_NAMED_UP_TO: Final = 40
_LABELLED_EDGES_UP_TO: Final = 24
_MOST_CLASSES: Final = 8
_WIDEST: Final = 18.0  # [inch]
# Shape and colour by kind, so that either alone tells them apart.
_LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu": ("s", style.BLUE),
    "nic": ("D", style.YELLOW),
    "switch": ("o", style.ORANGE),
    "host": ("^", style.GREEN),
    "server": ("P", style.VERMILION),
}
_PLURAL: Final = {"gpu": "GPU", "nic": "NIC", "switch": "switche"}

# Bandwidth one way and back [B/s], latency [s], kinds of both ends.
_Class = tuple[float, float, float, str]


def figure(cluster: Cluster) -> Figure:
    """Draw a cluster; of one with more than about 200 vertices the first nodes, and a note.

    Parameters
    ----------
    cluster : Cluster
    """
    import networkx as nx

    chosen, nodes = selected(cluster, _MOST_VERTICES)
    part = cluster.graph.subgraph([vertex for vertex in cluster.graph if vertex in chosen])
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(part)
    graph.add_edges_from(part.edges)
    kinds = {vertex: str(part.nodes[vertex]["kind"]) for vertex in part}
    at = places(graph, kinds, [vertex for vertex in cluster.ranks if vertex in chosen] + _unused(cluster, kinds))
    with style.applied():
        fig = style.new_figure(*_size(at))
        axes = fig.subplots()
        classes = _edges(axes, cluster, at, list(graph.edges))
        _vertices(axes, cluster, kinds, at)
        axes.set_axis_off()
        axes.margins(0.06)
        if not _tiered(at):
            axes.set_aspect("equal")
            axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
        style.set_title(fig, finding(cluster))
        note = _left_out(cluster, len(chosen), nodes)
        _legend(fig, Counter(kinds.values()), classes, note, cluster.gpus[0].name)
    return fig


def finding(cluster: Cluster) -> str:
    """Say what a cluster consists of and what its links carry."""
    counts = Counter(str(kind) for _, kind in cluster.graph.nodes(data="kind"))
    parts = [_counted(counts[kind], kind) for kind in (*_LOOKS, *sorted(set(counts) - set(_LOOKS))) if counts[kind]]
    if len(cluster.nodes) > 1:
        parts[0] += f" in {len(cluster.nodes)} nodes"
    rates = sorted({float(facts["bandwidth"]) for _, _, facts in cluster.graph.edges(data=True)})
    if not rates:
        links = "no links"
    elif len(rates) == 1:
        links = f"every link {format_bandwidth(rates[0])} each way"
    else:
        links = f"links of {format_bandwidth(rates[0])} to {format_bandwidth(rates[-1])} each way"
    return f"{cluster.name}: {', '.join(parts)}; {links}"


def _counted(count: int, kind: str) -> str:
    singular = {"gpu": "GPU", "nic": "NIC"}.get(kind, kind)
    return f"{count} {singular}" if count == 1 else f"{count} {_PLURAL.get(kind, kind)}s"


def _unused(cluster: Cluster, kinds: Mapping[str, str]) -> list[str]:
    """GPUs that no rank uses."""
    ranks = set(cluster.ranks)
    return [vertex for vertex, kind in kinds.items() if kind == "gpu" and vertex not in ranks]


def _size(at: Mapping[str, Place]) -> tuple[float, float]:
    if _tiered(at):
        tiers = Counter(y for _, y in at.values())
        return min(_WIDEST, max(8.0, 0.45 * max(tiers.values()))), 2.4 + 1.25 * len(tiers)
    side = min(12.0, max(6.0, 1.2 * math.sqrt(len(at))))
    return side, side + (1.0 if len(at) > 3 else -2.0)


def _tiered(at: Mapping[str, Place]) -> bool:
    """Whether vertices stand in tiers, not round a table or in a cloud."""
    return any(abs(x) > 1.0 or abs(y) > 1.0 for x, y in at.values())


def _edges(
    axes: Axes, cluster: Cluster, at: Mapping[str, Place], edges: Sequence[tuple[str, str]]
) -> dict[_Class, str]:
    from matplotlib.collections import LineCollection

    tiered = _tiered(at)
    classes = {edge: _class(cluster, *edge) for edge in edges}
    counts = Counter(classes.values())
    order = sorted(counts, key=lambda c: (-c[0], c[2], c[3]))
    # Yellow lines are hard to see on white.
    palette = [style.GREY] if len(order) == 1 else [colour for colour in style.PALETTE if colour != style.YELLOW]
    looks = {c: palette[i % len(palette)] for i, c in enumerate(order)}
    for c in order:
        lines = [_path_between(at[a], at[b], tiered) for a, b in edges if classes[a, b] == c]
        axes.add_collection(LineCollection(lines, colors=looks[c], linewidths=_width(c, order), zorder=1))
    if len(edges) <= _LABELLED_EDGES_UP_TO:
        for number, ((a, b), c) in enumerate(classes.items()):
            # Between tiers lines lie close: their labels stand by turns nearer to one end and to the other.
            share = (0.38, 0.62)[number % 2] if tiered else 0.5
            x, y = (p + share * (q - p) for p, q in zip(*sorted((at[a], at[b])), strict=True))
            axes.text(x, y, _rate(c), fontsize=8.0, ha="center", va="center", zorder=2,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
    return {c: looks[c] for c in order[:_MOST_CLASSES]}


def _path_between(a: Place, b: Place, tiered: bool) -> list[Place]:
    """A straight line; within a tier an arc, so that it does not run through those between."""
    (x0, y0), (x1, y1) = sorted((a, b))
    if not tiered or y0 != y1 or x1 - x0 <= 1.0:
        return [a, b]
    depth = min(0.75, 0.11 * (x1 - x0)) * (1 if y0 > 0 else -1)
    steps = [i / 24 for i in range(25)]
    return [(x0 + s * (x1 - x0), y0 + depth * math.sin(math.pi * s)) for s in steps]


def _class(cluster: Cluster, a: str, b: str) -> _Class:
    there, back = cluster.graph.get_edge_data(a, b), cluster.graph.get_edge_data(b, a)
    rates = sorted((float(edge["bandwidth"]) if edge else 0.0 for edge in (there, back)), reverse=True)
    ends = sorted((str(cluster.graph.nodes[a]["kind"]), str(cluster.graph.nodes[b]["kind"])), key=_rank_of_kind)
    return rates[0], rates[1], float((there or back)["latency"]), "–".join(ends)


def _rank_of_kind(kind: str) -> tuple[int, str]:
    known = list(_LOOKS)
    return (known.index(kind) if kind in known else len(known)), kind


def _rate(c: _Class) -> str:
    if c[0] == c[1]:
        return format_bandwidth(c[0])
    return f"{format_bandwidth(c[0])} / {format_bandwidth(c[1])}" if c[1] else f"{format_bandwidth(c[0])} one way"


def _width(c: _Class, order: Sequence[_Class]) -> float:
    """Width of a line in points: 1 for the narrowest link, 4 for the widest, by logarithm."""
    low, high = min(o[0] for o in order), max(o[0] for o in order)
    return 1.4 if low == high else 1.0 + 3.0 * math.log(c[0] / low) / math.log(high / low)


def _vertices(axes: Axes, cluster: Cluster, kinds: Mapping[str, str], at: Mapping[str, Place]) -> None:
    rank = {vertex: str(number) for number, vertex in enumerate(cluster.ranks)}
    for kind in dict.fromkeys(kinds.values()):
        marker, colour = _LOOKS.get(kind, ("h", style.PURPLE))
        members = [vertex for vertex in at if kinds[vertex] == kind]
        axes.scatter([at[v][0] for v in members], [at[v][1] for v in members], marker=marker, s=230, zorder=3,
                     color=colour, edgecolors="#404040", linewidths=0.6)  # fmt: skip
    # Every other name of a tier stands lower, so that long ones do not run into each other.
    lower = {vertex: i % 2 for tier in _tiers(at) for i, vertex in enumerate(tier)} if _tiered(at) else {}
    for vertex, (x, y) in at.items():
        if vertex in rank:
            axes.text(x, y, rank[vertex], fontsize=8.0, color="white", ha="center", va="center", zorder=4,
                      fontweight="bold")  # fmt: skip
        elif len(at) <= _NAMED_UP_TO:
            axes.annotate(vertex, (x, y), xytext=(0, -10 - 11 * lower.get(vertex, 0)), textcoords="offset points",
                          fontsize=8.0, ha="center", va="top", zorder=4,
                          bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6})  # fmt: skip


def _tiers(at: Mapping[str, Place]) -> list[list[str]]:
    tiers: dict[float, list[str]] = {}
    for vertex in sorted(at, key=lambda vertex: at[vertex][0]):
        tiers.setdefault(at[vertex][1], []).append(vertex)
    return list(tiers.values())


def _left_out(cluster: Cluster, drawn: int, nodes: int) -> str:
    total = len(cluster.graph)
    if drawn == total:
        return ""
    if not nodes:
        return f"{drawn} of {total} vertices are drawn: those nearest to rank 0"
    return f"{drawn} of {total} vertices are drawn: the first {nodes} of {len(cluster.nodes)} nodes and what joins them"


def _legend(fig: Figure, counts: Mapping[str, int], classes: Mapping[_Class, str], note: str, gpu: str) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for kind in sorted(counts, key=_rank_of_kind):
        marker, colour = _LOOKS.get(kind, ("h", style.PURPLE))
        name = f"{gpu} (its rank)" if kind == "gpu" else {"nic": "NIC"}.get(kind, kind)
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker=marker,
                color=colour,
                markersize=9,
                label=name,
                markeredgecolor="#404040",
                markeredgewidth=0.6,
            )
        )
    order = list(classes)
    for c, colour in classes.items():
        label = f"{c[3]}: {_rate(c)}, {format_time(c[2]) if c[2] else '0 s'}"
        handles.append(Line2D([], [], color=colour, linewidth=_width(c, order), label=label))
    columns = max(1, min(len(handles), int(fig.get_figwidth() / 2.6)))
    fig.legend(handles=handles, loc="outside lower left", ncols=columns, title=note or None, alignment="left")
