"""Which bound on its rate a flow has: one inside a box, another between boxes."""

from __future__ import annotations

from collections.abc import Callable

from simulator.cluster.cluster import Cluster
from simulator.program import Collective


def rate_caps(cluster: Cluster, op: Collective) -> Callable[[int, int], float]:
    """Say for two participants the most that one flow between them gets [B/s].

    Servers and switches count as inside: they belong to no box, or to that of everybody they talk to.
    """
    box_of = cluster.box_of()
    boxes = [box_of.get(rank) for rank in op.group] + [None] * len(op.extras)

    def cap_of(src: int, dst: int) -> float:
        inside = boxes[src] is None or boxes[dst] is None or boxes[src] == boxes[dst]
        return op.rate_cap if inside else op.cross_rate_cap

    return cap_of
