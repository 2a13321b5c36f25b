"""Which bound on its rate a flow has: one inside a node, another between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.records.program import Collective


def rate_caps(node_of: Mapping[int, int], op: Collective) -> Callable[[int, int], float]:
    """Say for two participants the most that one flow between them gets [B/s].

    `node_of` gives each rank's node (`Cluster.node_of`). Servers and switches count as inside: they belong to no node,
    or to that of everybody they talk to.
    """
    nodes = [node_of.get(rank) for rank in op.group] + [None] * len(op.auxiliaries)

    def cap_of(src: int, dst: int) -> float:
        inside = nodes[src] is None or nodes[dst] is None or nodes[src] == nodes[dst]
        return op.rate_cap if inside else op.cross_rate_cap

    return cap_of
