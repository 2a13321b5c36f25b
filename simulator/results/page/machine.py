"""How does a page draw the machines of a run: where vertices stand, and which cables join them?"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics.errors import SimulatorError
from simulator.cluster.cluster import Cluster
from simulator.findings.comparison import Comparison
from simulator.report.plots.layout import places, selected
from simulator.run.scenario_cluster import Clusters

# Vertices that are drawn of a machine, and machines of a run.
_MOST_VERTICES: Final = 150
_MOST_MACHINES: Final = 12
# Ranks beyond which a machine is not built for its picture alone.
_MOST_RANKS: Final = 4096


def machines(compared: Comparison) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """The unlike machines of a run, and by point which it has.

    Returns
    -------
    machines : list of dict
        title, levels, at (vertex: place in 0 .. 1), kinds (vertex: kind), cables (two ends, names of their links).
    by_point : dict of int to int
    """
    clusters = Clusters()
    drawn: list[dict[str, Any]] = []
    by_point: dict[int, int] = {}
    known: dict[str, int] = {}
    for row in compared.rows:
        spec = row.point.cluster
        key = repr((spec, row.point.collective and row.point.collective.servers))
        if key not in known:
            if len(drawn) == _MOST_MACHINES or spec.world_size > _MOST_RANKS:
                continue
            try:
                known[key] = len(drawn)
                drawn.append(_machine(clusters.of(row.point)))
            except SimulatorError:
                del known[key]
                continue
        by_point[row.index] = known[key]
    return drawn, by_point


def _machine(cluster: Cluster) -> dict[str, Any]:
    vertices, _ = selected(cluster, _MOST_VERTICES)
    graph = cluster.graph.subgraph(vertices).to_undirected()
    kinds = {vertex: str(cluster.graph.nodes[vertex].get("kind", "")) for vertex in graph}
    order = [vertex for vertex in cluster.ranks if vertex in vertices]
    at = places(graph, kinds, order)
    width, height = ([place[axis] for place in at.values()] for axis in (0, 1))
    spread = [(min(own), max(own) - min(own) or 1.0) for own in (width, height)]
    scaled = {
        vertex: [round((place[axis] - spread[axis][0]) / spread[axis][1], 4) for axis in (0, 1)]
        for vertex, place in at.items()
    }
    cables: dict[tuple[str, str], list[str]] = {}
    for a, b in cluster.graph.subgraph(scaled).edges():
        cables.setdefault((min(a, b), max(a, b)), []).append(f"{a}->{b}")
    left = len(cluster.graph) - len(graph)
    rest = f", {left} of its {len(cluster.graph)} parts are left out" if left else ""
    return {
        "title": f"{len(cluster.ranks)} GPUs on {cluster.name}{rest}",
        "levels": len({round(place[1], 2) for place in at.values()}),
        "at": dict(sorted(scaled.items())),
        "kinds": {vertex: kinds[vertex] for vertex in sorted(scaled)},
        "cables": [[a, b, sorted(names)] for (a, b), names in sorted(cables.items())],
    }
