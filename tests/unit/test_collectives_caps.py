"""Which cap a flow has, held to the rule written out for two nodes, a rank outside of nodes and a server."""

from __future__ import annotations

import numpy as np

from simulator.cluster.caps import nodes_of, rate_caps

NODE_OF = {0: 0, 1: 0, 2: 1, 3: 1}


def test_a_flow_between_two_nodes_has_the_cap_between_nodes_and_every_other_the_cap_inside() -> None:
    # Places 0 to 4 are ranks 3, 0, 2, 1 and 9, which has no node; place 5 is a server.
    nodes = nodes_of(NODE_OF, (3, 0, 2, 1, 9), 6)
    assert nodes.tolist() == [1, 0, 1, 0, -1, -1]
    src, dst = (grid.ravel() for grid in np.meshgrid(np.arange(6), np.arange(6), indexing="ij"))
    caps = rate_caps(nodes, src, dst, 7.0, 2.0).reshape(6, 6)
    crossing = {(a, b) for a in (0, 2) for b in (1, 3)} | {(a, b) for a in (1, 3) for b in (0, 2)}
    assert caps.tolist() == [[2.0 if (a, b) in crossing else 7.0 for b in range(6)] for a in range(6)]
