"""How many GPUs and servers a topology has room for, known before its graph is built. A record.

Rule: computed from the options alone, so that a check of a scenario never builds a graph.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopologyLimits:
    """What a topology can give.

    Attributes
    ----------
    max_ranks : int or None
        GPUs that it has; None where it grows with the world size.
    own_servers : bool
        Whether parameter servers can have a port of their own.
    node_size : int or None
        GPUs of a node; None where there are no nodes.
    in_switch_reduction : bool
        Whether the switch of a node can add.
    one_route : bool
        Whether there is one shortest route at most between any two, however many ranks there are.
    """

    max_ranks: int | None = None
    own_servers: bool = False
    node_size: int | None = None
    in_switch_reduction: bool = False
    one_route: bool = False
