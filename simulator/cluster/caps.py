"""Upper bound on the rate of each flow: the machine's cap inside a node, or its cap between nodes.

Rule: planning, estimating and playing all use this module, so that predicted and played times obey the same bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.cluster.cluster import Cluster

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


def spare_of_cards(cluster: Cluster, group: Sequence[int]) -> float:
    """How many times the cap between nodes a flow may have, since fewer ranks than a node has share its card.

    Caps are fitted to sweeps in which all GPUs of a node send at once; of a card's ranks those that take part each have
    an equal part.

    Examples
    --------
    >>> from simulator.cluster.build import build
    >>> p4de = build("aws_p4de", 16)
    >>> spare_of_cards(p4de, range(16)), spare_of_cards(p4de, (0, 8))
    (1.0, 2.0)
    """
    node_of = cluster.node_of()
    number, members = Counter(node_of.get(rank, _NO_NODE) for rank in group).most_common(1)[0]
    if number == _NO_NODE or members == len(group):
        return 1.0
    card_of = cluster.remember((spare_of_cards, number), partial(_cards, cluster, number), len)
    taking_part = Counter(card_of[rank] for rank in group if node_of.get(rank) == number)
    return max(Counter(card_of.values()).values()) / max(taking_part.values())


def _cards(cluster: Cluster, number: int) -> dict[int, str]:
    """By which network card each rank of a node leaves it; its own vertex where there are none."""
    away = next(node[0] for other, node in enumerate(cluster.nodes) if other != number)
    names, targets, kinds = cluster.router.vertices, cluster.router.targets, cluster.graph.nodes
    cards = {}
    for rank in cluster.nodes[number]:
        passed = [names[targets[link]] for link in cluster.route(cluster.ranks[rank], cluster.ranks[away]).links]
        cards[rank] = next((name for name in passed if kinds[name]["kind"] == "nic"), cluster.ranks[rank])
    return cards


def _stays_inside(one: Ints, other: Ints) -> Bools:
    """Whether flows stay in a node; those of servers and switches do: they have no node, or that of all their peers."""
    return np.asarray((one == _NO_NODE) | (other == _NO_NODE) | (one == other))


# Bytes of HBM traffic for each byte that the receiver adds to its array: two reads and a write.
HBM_PER_REDUCED_BYTE: Final = 3.0
