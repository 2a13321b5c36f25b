"""Which bound on its rate a flow has: one inside a box, another between boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.records.program import Collective


def rate_caps(box_of: Mapping[int, int], op: Collective) -> Callable[[int, int], float]:
    """Say for two participants the most that one flow between them gets [B/s].

    `box_of` gives each rank's box (`Cluster.box_of`). Servers and switches count as inside: they belong to no box, or
    to that of everybody they talk to.
    """
    boxes = [box_of.get(rank) for rank in op.group] + [None] * len(op.extras)

    def cap_of(src: int, dst: int) -> float:
        inside = boxes[src] is None or boxes[dst] is None or boxes[src] == boxes[dst]
        return op.rate_cap if inside else op.cross_rate_cap

    return cap_of
