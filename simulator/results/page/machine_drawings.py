"""How does a page draw a run's machines: positions of vertices, and cables in between?"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics.errors import SimulatorError
from simulator.cluster.cluster import Cluster
from simulator.findings.comparison import Comparison
from simulator.report.plots.layout import places, selected
from simulator.run.scenario_cluster import Clusters

# Maximum vertices drawn for a machine, and maximum machines for a run.
_MOST_VERTICES: Final = 150
_MOST_MACHINES: Final = 12
# Maximum ranks in a machine built only for a picture.
_MOST_RANKS: Final = 4096


def machines(compared: Comparison) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return a comparison's different clusters as drawings for the page, and the cluster's index for each point.

    Returns
    -------
    machines : list of dict
        title, levels, at (vertex: position in 0 .. 1), kinds (vertex: kind), cables (two ends, names of their links).
    by_point : dict of int to int
        Index in `machines`, by point.
    """
    clusters = Clusters()
    drawings: list[dict[str, Any]] = []
    by_point: dict[int, int] = {}
    indices: dict[str, int] = {}
    for row in compared.rows:
        spec = row.point.cluster
        # Machines are equal if the cluster and the parameter servers are described equally.
        key = repr((spec, row.point.collective and row.point.collective.servers))
        if key not in indices:
            if len(drawings) == _MOST_MACHINES or spec.world_size > _MOST_RANKS:
                continue
            try:
                # Reserved before the build; a machine that cannot be built is removed again.
                indices[key] = len(drawings)
                drawings.append(_machine(clusters.of(row.point)))
            except SimulatorError:
                del indices[key]
                continue
        by_point[row.index] = indices[key]
    return drawings, by_point


def _machine(cluster: Cluster) -> dict[str, Any]:
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
