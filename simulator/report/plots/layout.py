"""Where do the vertices of a cluster stand in a drawing, and which of a large cluster are drawn?

Rule: computes places only; topology.py draws. Small networks stand in a circle, like a round table, others in tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import networkx as nx

    from simulator.cluster.cluster import Cluster

    Graph = nx.Graph[str]

Place = tuple[float, float]

_CIRCLE_UP_TO: Final = 16
_PART_OF_A_NODE: Final = 120  # more seats do not fit round one table


def selected(cluster: Cluster, most: int) -> tuple[set[str], int]:
    """Choose the vertices to draw: the first nodes with all that belongs to them, and what joins them.

    Parameters
    ----------
    cluster : Cluster
    most : int
        Vertices, about.

    Returns
    -------
    vertices : set of str
    nodes : int
        How many nodes are drawn whole; all of them where nothing is left out, none where the first is too large.
    """
    if len(cluster.graph) <= most:
        return set(cluster.graph), len(cluster.nodes)
    near = _nearest_nodes(cluster)
    own: dict[int, list[str]] = {number: [] for number in range(len(cluster.nodes))}
    shared: list[str] = []
    for vertex in cluster.graph:
        nearest = near.get(vertex, frozenset())
        if len(nearest) == 1:
            own[next(iter(nearest))].append(vertex)
        else:
            shared.append(vertex)
    chosen: set[str] = set()
    nodes = 0
    for number, vertices in own.items():
        if nodes and len(chosen) + len(vertices) > most:
            break
        if len(vertices) > most:
            return _around(cluster, cluster.ranks[cluster.nodes[number][0]], _PART_OF_A_NODE), 0
        chosen.update(vertices)
        nodes = number + 1
    room = [vertex for vertex in shared if any(node < nodes for node in near.get(vertex, ()))]
    chosen.update(room[: max(0, most - len(chosen))])
    return chosen, nodes


def _around(cluster: Cluster, vertex: str, most: int) -> set[str]:
    """The vertices nearest to one, by hops; for a node larger than the page, such as a star of a thousand GPUs."""
    reached = {vertex: None}
    front = [vertex]
    while front and len(reached) < most:
        front = [other for near in front for other in cluster.graph.successors(near) if other not in reached]
        reached |= dict.fromkeys(front)
        front = list(dict.fromkeys(front))
    return set(list(reached)[:most])


def _nearest_nodes(cluster: Cluster) -> dict[str, frozenset[int]]:
    """For each vertex the nodes whose GPUs are fewest hops away."""
    near = {cluster.ranks[rank]: frozenset({number}) for number, node in enumerate(cluster.nodes) for rank in node}
    front = list(near)
    while front:
        reached: dict[str, frozenset[int]] = {}
        for vertex in front:
            for other in cluster.graph.successors(vertex):
                if other not in near:
                    reached[other] = reached.get(other, frozenset()) | near[vertex]
        near.update(reached)
        front = list(reached)
    return near


def places(graph: Graph, kinds: Mapping[str, str], order: Sequence[str]) -> dict[str, Place]:
    """Place every vertex: a circle round a hub, a circle, a cloud, or tiers with the GPUs in the lowest but one.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected.
    kinds : mapping of vertex to kind
    order : sequence of str
        GPUs by rank, the order in which they stand.
    """
    rest = [vertex for vertex in graph if kinds[vertex] != "gpu"]
    hubs = [vertex for vertex in rest if graph.degree(vertex) == len(graph) - 1]
    seats = [*order, *(vertex for vertex in rest if vertex not in order)]
    if len(hubs) == 1 and graph.number_of_edges() == len(graph) - 1:
        return _circle([vertex for vertex in seats if vertex != hubs[0]]) | {hubs[0]: (0.0, 0.0)}
    if rest:
        return _tiers(graph, kinds, order)
    degrees = {degree for _, degree in graph.degree()}
    if len(order) <= _CIRCLE_UP_TO or degrees <= {2} or degrees == {len(graph) - 1}:
        return _circle(seats)
    import networkx as nx

    cloud = nx.spring_layout(graph, seed=0, iterations=300)
    return {vertex: (float(x), float(y)) for vertex, (x, y) in cloud.items()}


def _circle(vertices: Sequence[str]) -> dict[str, Place]:
    from math import cos, pi, sin

    angle = 2 * pi / max(1, len(vertices))
    # Two stand side by side; a rounded zero keeps them exactly level.
    first = -pi / 2 if len(vertices) == 2 else 0.0
    turns = [first + i * angle for i in range(len(vertices))]
    return {vertex: (round(sin(t), 9), round(cos(t), 9)) for vertex, t in zip(vertices, turns, strict=True)}


def _tiers(graph: Graph, kinds: Mapping[str, str], order: Sequence[str]) -> dict[str, Place]:
    """Place vertices in tiers by hops from the nearest GPU.

    A vertex that joins only GPUs which also reach other vertices (an NVLink switch beside network cards) stands below
    the GPUs.
    """
    level = _levels(graph, kinds)
    x = {vertex: float(i) for i, vertex in enumerate(order)}
    placed = {vertex: (x[vertex], 0.0) for vertex in order}
    width = max(1, len(order) - 1)
    for tier in sorted(set(level.values()) - {0}, key=lambda tier: (abs(tier), tier)):
        members = [vertex for vertex in graph if level[vertex] == tier]
        wanted = {
            vertex: _middle([placed[other][0] for other in graph[vertex] if other in placed]) for vertex in members
        }
        members.sort(key=lambda vertex: (wanted[vertex], vertex))
        for vertex, place in zip(members, _spaced([wanted[vertex] for vertex in members], width), strict=True):
            placed[vertex] = (place, float(tier))
    return placed


def _levels(graph: Graph, kinds: Mapping[str, str]) -> dict[str, int]:
    level = {vertex: 0 for vertex in graph if kinds[vertex] == "gpu"}
    front = list(level)
    while front:
        reached = [other for vertex in front for other in graph[vertex] if other not in level]
        for other in reached:
            level[other] = level[front[0]] + 1
        front = list(dict.fromkeys(reached))
    for vertex in graph:
        level.setdefault(vertex, 1)
        others = any(kinds[far] != "gpu" and far != vertex for near in graph[vertex] for far in graph[near])
        if kinds[vertex] != "gpu" and others and all(kinds[near] == "gpu" for near in graph[vertex]):
            level[vertex] = -1
    return level


def _middle(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _spaced(wanted: Sequence[float], width: float) -> list[float]:
    """Keep an order, with at least a step between neighbours, near to the wanted places."""
    step = min(1.0, 2.0 * width / max(1, len(wanted)))
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + step) if places else place)
    # The loop above pushes places to the right only; moving all back by the mean push centres them on the wanted ones.
    shift = _middle([place - want for place, want in zip(places, wanted, strict=True)])
    return [place - shift for place in places]
