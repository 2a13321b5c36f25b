"""Upper bound on the rate of each flow: the machine's cap inside a node, or its cap between nodes.

Rule: planning, estimating and playing all use this module, so that predicted and played times obey the same bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints

_NO_NODE = -1


def nodes_of(node_of: Mapping[int, int], group: Sequence[int], participants: int) -> Ints:
    """Each participant's node, shape (participants,); -1 for auxiliaries, and for ranks of clusters without nodes.

    `node_of` maps each rank to its node (`Cluster.node_of`); the first participants are the ranks of the group.
    """
    nodes = [node_of.get(rank, _NO_NODE) for rank in group]
    return np.array(nodes + [_NO_NODE] * (participants - len(group)), np.int64)


def rate_caps(node: Ints, src: npt.NDArray[Any], dst: npt.NDArray[Any], inside: float, between: float) -> Floats:
    """Highest rate that a flow from each source to each destination may have, shape of `src` [B/s].

    Parameters
    ----------
    node : int array, shape (participants,)
        From `nodes_of`.
    src, dst : int array
        Participants.
    inside, between : float
        The machine's cap on a flow that stays in a node, and on one that leaves it [B/s].
    """
    return np.where(_stays_inside(node[src], node[dst]), inside, between)


def _stays_inside(one: Ints, other: Ints) -> Bools:
    """Whether flows stay in a node; those of servers and switches do: they have no node, or that of all their peers."""
    return np.asarray((one == _NO_NODE) | (other == _NO_NODE) | (one == other))
