"""At which places do a cluster's vertices stand in a drawing, and which vertices are drawn?

Computes places only; topology.py draws. A torus becomes a grid; a few GPUs around a switch, a circle; a machine of
nodes, boxes below their network; any other network, levels of switches above the vertices that they join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from simulator.basics.natural_order import natural
from simulator.cluster.builders.torus import dimensions
from simulator.report.plots.blocks import Drawing, Leaf, folded

if TYPE_CHECKING:
    import networkx as nx

    from simulator.cluster.cluster import Cluster

    Graph = nx.Graph[str]

Place = tuple[float, float]
T = TypeVar("T")

_CIRCLE_UP_TO: Final = 16
# Maximum vertices of a machine in `machine_drawing`.
_MOST_VERTICES: Final = 150
# A drawing around a single GPU has no room for more vertices.
_PART_OF_A_NODE: Final = 120
# Names around a circle stay readable up to this number of vertices.
_ROUND_UP_TO: Final = 40
_CLOUD_UP_TO: Final = 200
_GRID_UP_TO: Final = 1024
# Of a node with more vertices than this, only the first GPUs with their nearest vertices are drawn.
_WHOLE_NODE: Final = 60
_GPUS_OF_A_NODE: Final = 4
# Distance between two layers of a three-dimensional grid.
_LAYER_GAP: Final = 1.6


@dataclass(frozen=True, slots=True)
class Layout:
    """Coordinates and shape of a cluster's drawing."""

    drawing: Drawing  # places, boxes and counts
    shape: Literal["grid", "round", "levels"]  # one of {"grid", "round", "levels"}
    note: str = ""  # text about omitted vertices; empty if everything is drawn


def layout(cluster: Cluster) -> Layout:
    """Return coordinates for a cluster's drawing, in the shape (grid, circle, levels) that fits its network."""
    import networkx as nx

    graph: Graph = nx.Graph()
    graph.add_nodes_from(cluster.graph)
    graph.add_edges_from(cluster.graph.edges)
    kinds = {vertex: str(cluster.graph.nodes[vertex]["kind"]) for vertex in cluster.graph}
    gpus = _gpus(cluster, kinds)
    if len(gpus) == len(graph):
        return _of_gpus(cluster, graph, kinds, gpus)
    # A star: every vertex is joined with the same hub and with nothing else.
    hubs = [v for v in graph if kinds[v] != "gpu" and graph.degree(v) == len(graph) - 1]
    if hubs and len(graph) <= _ROUND_UP_TO and graph.number_of_edges() == len(graph) - 1:
        return Layout(Drawing(places(graph, kinds, gpus)), "round")
    nodes = gpus_by_node(cluster)
    if len(nodes) < 2 and len(graph) <= _WHOLE_NODE:
        return Layout(Drawing(places(graph, kinds, gpus)), "levels")
    drawing = _of_nodes(cluster, graph, kinds, nodes) if len(nodes) > 1 else _of_switches(graph, gpus)
    complete = len(drawing.at) == len(graph)
    note = (
        f"+n: n more equal vertices; drawn: {len(drawing.at):,} of {len(graph):,} vertices and the links between them"
    )
    return Layout(drawing, "levels", "" if complete else note)


def gpus_by_node(cluster: Cluster) -> list[Sequence[str]]:
    """Return a list of GPU names for each node; nodes without ranks come last."""
    used = set(cluster.ranks)
    nodes: Sequence[Sequence[str]] = cluster.graph.graph.get("nodes") or [
        [cluster.ranks[rank] for rank in node] for node in cluster.nodes
    ]
    return sorted(nodes, key=used.isdisjoint)


def _gpus(cluster: Cluster, kinds: Mapping[str, str]) -> list[str]:
    """Return the names of all GPUs: by rank, then GPUs without a rank."""
    ranks = set(cluster.ranks)
    return [*cluster.ranks, *sorted((v for v, kind in kinds.items() if kind == "gpu" and v not in ranks), key=natural)]


def _of_gpus(cluster: Cluster, graph: Graph, kinds: Mapping[str, str], gpus: Sequence[str]) -> Layout:
    """Return the drawing of a network with only GPUs: a grid for a torus, else a circle or cloud."""
    by_number = sorted(gpus, key=natural)
    lengths = dimensions(graph, by_number) if len(gpus) <= _GRID_UP_TO else ()
    if lengths:
        size = " x ".join(map(str, lengths))
        layers = "; each GPU is linked with the same GPU of the next layer" if len(lengths) > 2 else ""
        note = f"torus of {size}: short lines at an edge continue at the opposite edge{layers}"
        return Layout(Drawing(_grid_places(lengths, by_number)), "grid", note)
    nearby, _ = selected(cluster, _CLOUD_UP_TO)
    note = "" if len(nearby) == len(graph) else f"drawn: the {len(nearby)} of {len(graph):,} GPUs nearest to rank 0"
    part: Graph = graph.subgraph(nearby)
    return Layout(Drawing(places(part, kinds, [gpu for gpu in gpus if gpu in nearby])), "round", note)


def _grid_places(lengths: Sequence[int], order: Sequence[str]) -> dict[str, Place]:
    """Return the coordinates of a torus's GPUs: rows below each other, layers of a third dimension side by side.

    >>> _grid_places((2, 2), ["gpu0", "gpu1", "gpu2", "gpu3"])
    {'gpu0': (0.0, -0.0), 'gpu1': (1.0, -0.0), 'gpu2': (0.0, -1.0), 'gpu3': (1.0, -1.0)}
    """
    *layers, rows, columns = lengths
    count = prod(layers)
    # Layers per row, chosen for an almost square drawing.
    across = max(1, round((count * rows / columns) ** 0.5)) if count > 1 else 1
    at: dict[str, Place] = {}
    for number, vertex in enumerate(order):
        layer, rest = divmod(number, rows * columns)
        row, column = divmod(rest, columns)
        x = (layer % across) * (columns + _LAYER_GAP) + column
        y = (layer // across) * (rows + _LAYER_GAP) + row
        at[vertex] = (float(x), -float(y))
    return at


def _of_switches(graph: Graph, gpus: Sequence[str]) -> Drawing:
    """Return the drawing of a switched network whose smallest units are single GPUs."""
    return folded(graph, {gpu: Leaf({gpu: (0.0, 0.0)}) for gpu in gpus})


def _of_nodes(cluster: Cluster, graph: Graph, kinds: Mapping[str, str], nodes: Sequence[Sequence[str]]) -> Drawing:
    """Return the drawing of a network whose smallest units are whole nodes."""
    import networkx as nx

    members, _ = _by_node(graph, nodes)
    node_of = {vertex: f"node {number}" for number, vertices in members.items() for vertex in vertices}
    # Contract each node to a single vertex; vertices that belong to no node stay.
    between: Graph = nx.Graph()
    between.add_nodes_from(node_of.get(v, v) for v in graph)
    between.add_edges_from(
        (node_of.get(a, a), node_of.get(b, b)) for a, b in graph.edges if node_of.get(a, a) != node_of.get(b, b)
    )
    number_of = {vertex: rank for rank, vertex in enumerate(cluster.ranks)}
    leaves = {
        f"node {number}": _node(graph.subgraph(vertices), kinds, number_of, f"node {number}")
        for number, vertices in members.items()
    }
    return folded(between, leaves)


def _node(part: Graph, kinds: Mapping[str, str], number_of: Mapping[str, int], label: str) -> Leaf:
    """Return the drawing of a node's vertices in rows; of a large node, only of its first GPUs."""
    gpus = sorted((v for v in part if kinds[v] == "gpu"), key=lambda v: (number_of.get(v, len(number_of)), natural(v)))
    hidden = ""
    if len(part) > _WHOLE_NODE:
        few = gpus[:_GPUS_OF_A_NODE]
        # Keep the vertices nearest to a drawn GPU.
        near = _nearest(part, {gpu: gpu for gpu in gpus})
        hidden = f"{len(few)} of {len(gpus)} GPUs"
        part, gpus = part.subgraph([v for v in part if near.get(v, frozenset()) & set(few)]), few
    at = _tiers(part, kinds, gpus)
    first = min(x for x, _ in at.values())
    return Leaf({vertex: (x - first, y) for vertex, (x, y) in at.items()}, label, hidden)


def selected(cluster: Cluster, most: int) -> tuple[set[str], int]:
    """Choose about `most` vertices to draw: the first nodes with their vertices, and the switches that join them.

    Parameters
    ----------
    most : int
        Approximate number of vertices.

    Returns
    -------
    vertices : set of str
        Vertices to draw.
    nodes : int
        Number of nodes drawn completely; all if nothing is omitted, 0 if the first node is too large.
    """
    if len(cluster.graph) <= most:
        return set(cluster.graph), len(gpus_by_node(cluster))
    gpus = gpus_by_node(cluster)
    members, shared = _by_node(cluster.graph.to_undirected(as_view=True), gpus)
    selection: set[str] = set()
    nodes = 0
    for number, vertices in members.items():
        if nodes and len(selection) + len(vertices) > most:
            break
        if len(vertices) > most:
            return _around(cluster, gpus[number][0], _PART_OF_A_NODE), 0
        selection.update(vertices)
        nodes = number + 1
    # Fill up with shared vertices (switches) next to the chosen nodes.
    room = [vertex for vertex, near in shared.items() if any(node < nodes for node in near)]
    selection.update(room[: max(0, most - len(selection))])
    return selection, nodes


def _around(cluster: Cluster, vertex: str, most: int) -> set[str]:
    """Return the `most` vertices with the fewest hops from a vertex, for nodes larger than the page."""
    reached = {vertex: None}
    front = [vertex]
    while front and len(reached) < most:
        front = [other for near in front for other in cluster.graph.successors(near) if other not in reached]
        reached |= dict.fromkeys(front)
        front = list(dict.fromkeys(front))
    return set(list(reached)[:most])


def _by_node(graph: Graph, nodes: Sequence[Sequence[str]]) -> tuple[dict[int, list[str]], dict[str, frozenset[int]]]:
    """Return the vertices of each node: a vertex belongs to the node with the nearest GPUs (fewest hops).

    Parameters
    ----------
    graph : networkx.Graph
        Undirected.
    nodes : sequence of sequence of str
        GPUs of each node.

    Returns
    -------
    members : dict of node number to list of vertices
    shared : dict of vertex to node numbers
        Vertices equally near to several nodes, or joined with none.
    """
    near = _nearest(graph, {gpu: number for number, node in enumerate(nodes) for gpu in node})
    members: dict[int, list[str]] = {number: [] for number in range(len(nodes))}
    shared: dict[str, frozenset[int]] = {}
    for vertex in graph:
        nearest = near.get(vertex, frozenset())
        if len(nearest) == 1:
            members[next(iter(nearest))].append(vertex)
        else:
            shared[vertex] = nearest
    return members, shared


def _nearest(graph: Graph, owner: Mapping[str, T]) -> dict[str, frozenset[T]]:
    """Return for each vertex the owners of its nearest owned vertices (by hops)."""
    near = {vertex: frozenset({holder}) for vertex, holder in owner.items()}
    front = list(near)
    # Breadth-first search from all owned vertices at once; a vertex reached by several owners in the same step belongs
    # to each.
    while front:
        reached: dict[str, frozenset[T]] = {}
        for vertex in front:
            for other in graph[vertex]:
                if other not in near:
                    reached[other] = reached.get(other, frozenset()) | near[vertex]
        near.update(reached)
        front = list(reached)
    return near


def places(graph: Graph, kinds: Mapping[str, str], order: Sequence[str]) -> dict[str, Place]:
    """Return coordinates of every vertex: a circle around a hub, a circle, a cloud, or rows with GPUs near the bottom.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected.
    kinds : mapping of vertex to kind
    order : sequence of str
        GPUs by rank, from left to right.
    """
    rest = [vertex for vertex in graph if kinds[vertex] != "gpu"]
    hubs = [vertex for vertex in rest if graph.degree(vertex) == len(graph) - 1]
    seats = [*order, *(vertex for vertex in rest if vertex not in order)]
    if len(hubs) == 1 and graph.number_of_edges() == len(graph) - 1:
        return _circle([vertex for vertex in seats if vertex != hubs[0]]) | {hubs[0]: (0.0, 0.0)}
    if rest:
        return _tiers(graph, kinds, order)
    degrees = {degree for _, degree in graph.degree()}
    # Few GPUs, a ring (degree 2 everywhere), or a complete network.
    if len(order) <= _CIRCLE_UP_TO or degrees <= {2} or degrees == {len(graph) - 1}:
        return _circle(seats)
    import networkx as nx

    # Any other network of GPUs: forces between neighbours; the seed makes the drawing reproducible.
    cloud = nx.spring_layout(graph, seed=0, iterations=300)
    return {vertex: (float(x), float(y)) for vertex, (x, y) in cloud.items()}


def _circle(vertices: Sequence[str]) -> dict[str, Place]:
    """Return coordinates of vertices on a circle, clockwise from the top."""
    from math import cos, pi, sin

    angle = 2 * pi / max(1, len(vertices))
    # Two vertices stand side by side; rounding keeps them exactly level.
    first = -pi / 2 if len(vertices) == 2 else 0.0
    turns = [first + i * angle for i in range(len(vertices))]
    return {vertex: (round(sin(t), 9), round(cos(t), 9)) for vertex, t in zip(vertices, turns, strict=True)}


def _tiers(graph: Graph, kinds: Mapping[str, str], order: Sequence[str]) -> dict[str, Place]:
    """Return coordinates of vertices in rows, by hops from the nearest GPU.

    A vertex joined only with GPUs that also reach other vertices (an NVLink switch beside network cards) stands below
    the GPUs.
    """
    level = _levels(graph, kinds)
    x = {vertex: float(i) for i, vertex in enumerate(order)}
    placed = {vertex: (x[vertex], 0.0) for vertex in order}
    width = max(1, len(order) - 1)
    # Nearest tiers first: a tier's neighbours towards the GPUs already have places.
    for tier in sorted(set(level.values()) - {0}, key=lambda tier: (abs(tier), tier)):
        members = [vertex for vertex in graph if level[vertex] == tier]
        # Standing at the mean place of neighbours keeps cables short.
        targets = {
            vertex: _middle([placed[other][0] for other in graph[vertex] if other in placed]) for vertex in members
        }
        members.sort(key=lambda vertex: (targets[vertex], vertex))
        for vertex, place in zip(members, _spaced([targets[vertex] for vertex in members], width), strict=True):
            placed[vertex] = (place, float(tier))
    return placed


def _levels(graph: Graph, kinds: Mapping[str, str]) -> dict[str, int]:
    """Return each vertex's hops from the nearest GPU; -1 if joined only with GPUs that also reach other vertices."""
    level = {vertex: 0 for vertex in graph if kinds[vertex] == "gpu"}
    front = list(level)
    while front:
        reached = [other for vertex in front for other in graph[vertex] if other not in level]
        for other in reached:
            level[other] = level[front[0]] + 1
        front = list(dict.fromkeys(reached))
    for vertex in graph:
        # A vertex without a path to a GPU.
        level.setdefault(vertex, 1)
        others = any(kinds[far] != "gpu" and far != vertex for near in graph[vertex] for far in graph[near])
        if kinds[vertex] != "gpu" and others and all(kinds[near] == "gpu" for near in graph[vertex]):
            level[vertex] = -1
    return level


def _middle(values: Sequence[float]) -> float:
    """Return the mean of the values, 0 if there are none."""
    return sum(values) / len(values) if values else 0.0


def _spaced(targets: Sequence[float], width: float) -> list[float]:
    """Return positions at least a step apart, in the order of and near the target positions."""
    # Narrower steps if the tier is much longer than the row of GPUs.
    step = min(1.0, 2.0 * width / max(1, len(targets)))
    places: list[float] = []
    for place in targets:
        places.append(max(place, places[-1] + step) if places else place)
    # The loop above moves places to the right only; shifting back by the mean displacement centres them.
    shift = _middle([place - target for place, target in zip(places, targets, strict=True)])
    return [place - shift for place in places]


def machine_drawing(cluster: Cluster) -> dict[str, Any]:
    """Return the drawing of a machine as plain data; positions are scaled to 0 .. 1."""
    # A large machine is shown in part; the title says how much is omitted.
    vertices, _ = selected(cluster, _MOST_VERTICES)
    graph = cluster.graph.subgraph(vertices).to_undirected()
    kinds = {vertex: str(cluster.graph.nodes[vertex].get("kind", "")) for vertex in graph}
    order = [vertex for vertex in cluster.ranks if vertex in vertices]
    at = places(graph, kinds, order)
    width, height = ([place[axis] for place in at.values()] for axis in (0, 1))
    # Scale both coordinates to 0 .. 1; a machine with equal coordinates keeps 0.
    spread = [(min(values), max(values) - min(values) or 1.0) for values in (width, height)]
    scaled = {
        vertex: [round((place[axis] - spread[axis][0]) / spread[axis][1], 4) for axis in (0, 1)]
        for vertex, place in at.items()
    }
    cables: dict[tuple[str, str], list[str]] = {}
    for a, b in cluster.graph.subgraph(scaled).edges():
        # The two directed links of a cable are drawn as a single line.
        cables.setdefault((min(a, b), max(a, b)), []).append(f"{a}->{b}")
    left = len(cluster.graph) - len(graph)
    rest = f", {left} of {len(cluster.graph)} vertices not drawn" if left else ""
    return {
        "title": f"{len(cluster.ranks)} GPUs on {cluster.name}{rest}",
        "levels": len({round(place[1], 2) for place in at.values()}),
        "at": dict(sorted(scaled.items())),
        "kinds": {vertex: kinds[vertex] for vertex in sorted(scaled)},
        "cables": [[a, b, sorted(names)] for (a, b), names in sorted(cables.items())],
    }
