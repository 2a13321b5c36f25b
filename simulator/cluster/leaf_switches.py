"""On which leaf switches are the ranks of a cluster: the first switches outside of their nodes?

Switches inside a node, such as an NVSwitch, have a name with a slash: "node0/nvswitch".
"""

from __future__ import annotations

from simulator.cluster.cluster import Cluster
from simulator.cluster.graph import of_kind


def leaf_switches(cluster: Cluster) -> tuple[str, ...]:
    """Return the name of each leaf switch of any rank once, by rank; empty if the cluster has no switch outside of its
    nodes.

    The leaf switches of a rank are all switches outside of the nodes to which the path from the rank's GPU has the
    fewest links. Where GPUs of the same place in every node share a leaf (a rail), a rank has only its rail's leaf.

    >>> from simulator.cluster.build import build
    >>> leaf_switches(build("star_100g", 4)), leaf_switches(build("dgx_h100", 8))
    (('switch0',), ())
    """
    outside = {name for name in of_kind(cluster.graph, "switch") if "/" not in name}
    leaves = dict[str, None]()
    for rank in cluster.ranks if outside else ():
        # Breadth-first: vertices at 1, 2, 3, ... links from the rank, up to the first layer with an outer switch.
        layer, visited = [rank], {rank}
        while layer and not outside.intersection(layer):
            layer = [name for name in dict.fromkeys(n for v in layer for n in cluster.graph[v]) if name not in visited]
            visited.update(layer)
        leaves |= dict.fromkeys(name for name in layer if name in outside)
    return tuple(leaves)
