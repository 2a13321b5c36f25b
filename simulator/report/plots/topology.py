"""How does a cluster look? A drawing of GPUs, switches, cards and hosts, with the links' bandwidth.

The drawn graph is the routed graph. Both directions of a cable are a single line, thicker for more bandwidth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_bandwidth, format_time
from simulator.report.plots import style
from simulator.report.plots.blocks import Drawing
from simulator.report.plots.layout import Layout, Place, gpus_by_node, layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.cluster.cluster import Cluster

_LABELLED_EDGES_UP_TO: Final = 24
_MOST_CLASSES: Final = 8
# Maximum width of a figure [inch].
_WIDEST: Final = 18.0
# Width and height of a vertex in each shape [inch].
_UNITS: Final = {"grid": (0.42, 0.42), "levels": (0.62, 0.85)}
# Marker and colour by kind; either alone distinguishes the kinds.
_LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu": ("s", style.BLUE),
    "nic": ("D", style.YELLOW),
    "switch": ("o", style.ORANGE),
    "host": ("^", style.GREEN),
    "server": ("P", style.VERMILION),
}
_PLURAL: Final = {"gpu": "GPU", "nic": "NIC", "switch": "switche"}

# Bandwidth in both directions [B/s], latency [s], kinds of both ends.
_Class = tuple[float, float, float, str]


def figure(cluster: Cluster) -> Figure:
    """Return a drawing of a cluster's network, with a few equivalent parts drawn and the rest counted."""
    arranged = layout(cluster)
    at = arranged.drawing.at
    kinds = {vertex: str(cluster.graph.nodes[vertex]["kind"]) for vertex in at}
    edges = _drawn_edges(cluster, arranged)
    with style.applied():
        fig = style.new_figure(*_size(arranged))
        axes = fig.subplots()
        _boxes(axes, arranged.drawing)
        classes = _edges(axes, cluster, arranged, edges)
        _vertices(axes, cluster, kinds, arranged)
        axes.set_axis_off()
        _limits(axes, arranged)
        style.set_title(fig, finding(cluster))
        _legend(fig, Counter(kinds.values()), classes, arranged.note, cluster.gpus[0].name)
    return fig


def _drawn_edges(cluster: Cluster, arranged: Layout) -> list[tuple[str, str]]:
    """Return each cable whose ends are both drawn, once; for a torus, only cables between neighbours on the page."""
    import networkx as nx

    at = arranged.drawing.at
    edges = list(nx.Graph(cluster.graph.subgraph(at).edges).edges)
    if arranged.shape != "grid":
        return edges
    return [(a, b) for a, b in edges if abs(at[a][0] - at[b][0]) + abs(at[a][1] - at[b][1]) <= 1.0]


def _boxes(axes: Axes, drawing: Drawing) -> None:
    """Draw the boxes around blocks with their labels, and the counts of hidden parts, into the axes."""
    from matplotlib.patches import Rectangle

    for left, low, right, high, label in drawing.boxes:
        axes.add_patch(Rectangle((left, low), right - left, high - low, facecolor="none", edgecolor=style.LIGHT))
        if label:
            axes.annotate(label, (left, high), xytext=(3, 2), textcoords="offset points", fontsize=9.0)
    for place, text in drawing.counts:
        axes.text(*place, text, ha="center", va="center", fontsize=9.0, fontweight="bold")


def _limits(axes: Axes, arranged: Layout) -> None:
    """Set the limits of the axes to the extent of the arranged cluster."""
    if arranged.shape == "round":
        axes.set_aspect("equal")
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
        return
    left, low, right, high = _extent(arranged)
    axes.set(xlim=(left, right), ylim=(low, high))


def _extent(arranged: Layout) -> tuple[float, float, float, float]:
    """Return the left, low, right and high edge of a drawing, in widths and heights of a vertex."""
    drawing = arranged.drawing
    xs = [x for x, _ in drawing.at.values()] + [x for (x, _), _ in drawing.counts]
    ys = [y for _, y in drawing.at.values()]
    for left, low, right, high, _ in drawing.boxes:
        xs += [left, right]
        ys += [low, high + 0.25]
    return min(xs) - 0.8, min(ys) - 0.8, max(xs) + 0.8, max(ys) + 0.8


def finding(cluster: Cluster) -> str:
    """Return a sentence with a cluster's numbers of GPUs, switches, ..., and the links' bandwidth."""
    counts = Counter(str(kind) for _, kind in cluster.graph.nodes(data="kind"))
    parts = [_counted(counts[kind], kind) for kind in (*_LOOKS, *sorted(set(counts) - set(_LOOKS))) if counts[kind]]
    nodes = len(gpus_by_node(cluster))
    if nodes > 1:
        parts[0] += f" in {nodes} nodes"
    rates = sorted({float(facts["bandwidth"]) for _, _, facts in cluster.graph.edges(data=True)})
    if not rates:
        links = "no links"
    elif len(rates) == 1:
        links = f"every link {format_bandwidth(rates[0])} per direction"
    else:
        links = f"links of {format_bandwidth(rates[0])} to {format_bandwidth(rates[-1])} per direction"
    return f"{cluster.name}: {', '.join(parts)}; {links}"


def _counted(count: int, kind: str) -> str:
    """Format a number of vertices and the vertices' kind: '8 GPUs'."""
    singular = {"gpu": "GPU", "nic": "NIC"}.get(kind, kind)
    return f"{count} {singular}" if count == 1 else f"{count} {_PLURAL.get(kind, kind)}s"


def _size(arranged: Layout) -> tuple[float, float]:
    """Return width and height [inch] of the figure for a drawing."""
    if arranged.shape == "round":
        side = min(12.0, max(6.0, 1.2 * math.sqrt(len(arranged.drawing.at))))
        return side, side + (1.0 if len(arranged.drawing.at) > 3 else -2.0)
    left, low, right, high = _extent(arranged)
    wide, tall = _UNITS[arranged.shape]
    return min(_WIDEST, max(7.0, wide * (right - left))), 1.6 + tall * (high - low)


def _edges(axes: Axes, cluster: Cluster, arranged: Layout, edges: Sequence[tuple[str, str]]) -> dict[_Class, str]:
    """Draw the cables as lines, a colour per class (bandwidth, latency, ends); return the colour of each class."""
    from matplotlib.collections import LineCollection

    at = arranged.drawing.at
    classes = {edge: _class(cluster, *edge) for edge in edges}
    counts = Counter(classes.values())
    order = sorted(counts, key=lambda c: (-c[0], c[2], c[3]))
    # Yellow lines are hard to see on white.
    palette = [style.GREY] if len(order) == 1 else [colour for colour in style.PALETTE if colour != style.YELLOW]
    looks = {c: palette[i % len(palette)] for i, c in enumerate(order)}
    for c in order:
        lines = [_path_between(at[a], at[b], arranged.shape == "levels") for a, b in edges if classes[a, b] == c]
        if arranged.shape == "grid":
            lines += _stubs(cluster, at, c)
        axes.add_collection(LineCollection(lines, colors=looks[c], linewidths=_width(c, order), zorder=1))
    if arranged.shape == "round" and len(edges) <= _LABELLED_EDGES_UP_TO:
        for (a, b), c in classes.items():
            inner, outer = sorted((at[a], at[b]), key=lambda place: math.hypot(*place))
            # Where cables meet in the middle, their labels stand further out.
            share = 0.72 if math.hypot(*inner) < 0.1 else 0.5
            x, y = (p + share * (q - p) for p, q in zip(inner, outer, strict=True))
            axes.text(x, y, _rate(c), fontsize=8.0, ha="center", va="center", zorder=2,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
    return {c: looks[c] for c in order[:_MOST_CLASSES]}


def _stubs(cluster: Cluster, at: Mapping[str, Place], cable_class: _Class) -> list[list[Place]]:
    """Return short line pieces at the edges of a torus, for the wrap-around cables of a class."""
    stubs = []
    for a, b in cluster.graph.edges:
        (x0, y0), (x1, y1) = at[a], at[b]
        # Wrap-around cables stay within a row or a column; cables between layers do not.
        in_line = (y0 == y1) != (x0 == x1)
        far = abs(x0 - x1) + abs(y0 - y1)
        if in_line and far > 1.0 and float(far).is_integer() and _class(cluster, a, b) == cable_class:
            step = (-0.45 if x0 < x1 else 0.45 if x0 > x1 else 0.0, -0.45 if y0 < y1 else 0.45 if y0 > y1 else 0.0)
            stubs.append([(x0, y0), (x0 + step[0], y0 + step[1])])
    return stubs


def _path_between(a: Place, b: Place, tiered: bool) -> list[Place]:
    """Return the points of a line between two vertices: straight, or an arc between distant vertices of a row."""
    (x0, y0), (x1, y1) = sorted((a, b))
    if not tiered or y0 != y1 or x1 - x0 <= 1.0:
        return [a, b]
    depth = min(0.75, 0.11 * (x1 - x0)) * (1 if y0 > 0 else -1)
    steps = [i / 24 for i in range(25)]
    return [(x0 + s * (x1 - x0), y0 + depth * math.sin(math.pi * s)) for s in steps]


def _class(cluster: Cluster, a: str, b: str) -> _Class:
    """Return a cable's class: bandwidth in both directions [B/s], latency [s], and both ends' kinds."""
    forth, back = cluster.graph.get_edge_data(a, b), cluster.graph.get_edge_data(b, a)
    rates = sorted((float(edge["bandwidth"]) if edge else 0.0 for edge in (forth, back)), reverse=True)
    ends = sorted((str(cluster.graph.nodes[a]["kind"]), str(cluster.graph.nodes[b]["kind"])), key=_rank_of_kind)
    return rates[0], rates[1], float((forth or back)["latency"]), "–".join(ends)


def _rank_of_kind(kind: str) -> tuple[int, str]:
    """Return a sort key for a vertex kind: known kinds in the legend's order, then the rest by name."""
    order = list(_LOOKS)
    return (order.index(kind) if kind in order else len(order)), kind


def _rate(c: _Class) -> str:
    """Format a cable class's bandwidth; both directions if different."""
    if c[0] == c[1]:
        return format_bandwidth(c[0])
    return f"{format_bandwidth(c[0])} / {format_bandwidth(c[1])}" if c[1] else f"{format_bandwidth(c[0])} one way"


def _width(c: _Class, order: Sequence[_Class]) -> float:
    """Return a cable class's line width [pt]: 1 for the least bandwidth in `order`, 4 for the most (logarithmic)."""
    low, high = min(o[0] for o in order), max(o[0] for o in order)
    return 1.4 if low == high else 1.0 + 3.0 * math.log(c[0] / low) / math.log(high / low)


def _vertices(axes: Axes, cluster: Cluster, kinds: Mapping[str, str], arranged: Layout) -> None:
    """Draw the vertices, with a marker per kind, GPUs labelled by rank and other vertices by name."""
    at = arranged.drawing.at
    rank = {vertex: str(number) for number, vertex in enumerate(cluster.ranks)}
    for kind in dict.fromkeys(kinds.values()):
        marker, colour = _LOOKS.get(kind, ("h", style.PURPLE))
        members = [vertex for vertex in at if kinds[vertex] == kind]
        axes.scatter([at[v][0] for v in members], [at[v][1] for v in members], marker=marker, s=230, zorder=3,
                     color=colour, edgecolors=style.DARK, linewidths=0.6)  # fmt: skip
    lower = _lower(at)
    for vertex, (x, y) in at.items():
        if vertex in rank:
            axes.text(x, y, rank[vertex], fontsize=8.0, color="white", ha="center", va="center", zorder=4,
                      fontweight="bold")  # fmt: skip
        elif kinds[vertex] != "gpu":
            # The box names the node already, so omit the prefix.
            axes.annotate(vertex.rpartition("/")[2], (x, y), xytext=(0, -9 - 10 * (vertex in lower)),
                          textcoords="offset points", fontsize=8.0, ha="center", va="top", zorder=4,
                          bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.4})  # fmt: skip


def _lower(at: Mapping[str, Place]) -> set[str]:
    """Return the vertices (every second in each row) with names to be written lower, to keep long names apart."""
    tiers: dict[float, list[str]] = {}
    for vertex in sorted(at, key=lambda vertex: at[vertex][0]):
        tiers.setdefault(round(at[vertex][1], 6), []).append(vertex)
    return {vertex for tier in tiers.values() for vertex in tier[1::2]}


def _legend(fig: Figure, counts: Mapping[str, int], classes: Mapping[_Class, str], note: str, gpu: str) -> None:
    """Draw the legend: a marker per kind of vertex, a colour per class of cable, and the note on omissions."""
    from matplotlib.lines import Line2D

    handles = []
    for kind in sorted(counts, key=_rank_of_kind):
        marker, colour = _LOOKS.get(kind, ("h", style.PURPLE))
        name = f"{gpu} (number: rank)" if kind == "gpu" else {"nic": "NIC"}.get(kind, kind)
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker=marker,
                color=colour,
                markersize=9,
                label=name,
                markeredgecolor=style.DARK,
                markeredgewidth=0.6,
            )
        )
    order = list(classes)
    for c, colour in classes.items():
        label = f"{c[3]}: {_rate(c)}, {format_time(c[2]) if c[2] else '0 s'}"
        handles.append(Line2D([], [], color=colour, linewidth=_width(c, order), label=label))
    columns = max(1, min(len(handles), int(fig.get_figwidth() / 2.6)))
    fig.legend(handles=handles, loc="outside lower left", ncols=columns, title=note or None, alignment="left")
