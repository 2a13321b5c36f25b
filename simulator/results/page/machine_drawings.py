"""How does a page draw a run's machines: positions of vertices, and cables in between?"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics.errors import SimulatorError
from simulator.findings.comparison import Comparison
from simulator.report.plots.layout import machine_drawing
from simulator.run.scenario_cluster import Clusters

# Maximum machines drawn for a run.
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
                drawings.append(machine_drawing(clusters.of(row.point)))
            except SimulatorError:
                del indices[key]
                continue
        by_point[row.index] = indices[key]
    return drawings, by_point
