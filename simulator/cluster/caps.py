"""Upper bound on each flow's rate: the machine's cap inside a node, or its cap between nodes.

Planning, estimating and simulating use this module, so that predicted and simulated times obey the same bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.cluster.cards import card_on_route
from simulator.cluster.cluster import Cluster

_NO_NODE = -1
# A cap below this share of a rank's part of its card is not the card's: fitted caps of cards are 0.96 to 1 of it.
_FAR_BELOW: Final = 0.15


def nodes_of(node_of: Mapping[int, int], group: Sequence[int], participants: int) -> Ints:
    """Return the node number of each participant in a collective, shape (participants,); -1 without a node.

    `node_of` maps each rank to a node; the first participants are the group's ranks. Servers and switches have no node.

    >>> nodes_of({4: 0, 5: 1}, [4, 5], 3)
    array([ 0,  1, -1])
    """
    nodes = [node_of.get(rank, _NO_NODE) for rank in group]
    return np.array(nodes + [_NO_NODE] * (participants - len(group)), np.int64)


def rate_caps(node: Ints, src: npt.NDArray[Any], dst: npt.NDArray[Any], inside: float, between: float) -> Floats:
    """Return the maximum rate of a flow from each source to each destination, shape of `src` [B/s].

    Parameters
    ----------
    node : int array, shape (participants,)
        From `nodes_of`.
    src, dst : int array
        Participants.
    inside, between : float
        The machine's cap on a flow inside a node, and on a flow between nodes [B/s].
    """
    return np.where(stays_inside(node[src], node[dst]), inside, between)


def spare_of_cards(cluster: Cluster, group: Sequence[int], cap: float = inf) -> float:
    """Return the factor by which to multiply the machine's cap on a flow between nodes for a group; 1: no increase.

    The cap is fitted to bandwidths measured while every GPU of a node sends. If only some of the ranks whose GPUs use a
    network card are in the group, these ranks share the whole bandwidth of the card equally. The card with the most
    ranks of the group decides. A `cap` [B/s] below 0.15 of a rank's share of its card does not come from the card:
    then all GPUs of a node together were limited, and the ranks of the group share this limit equally.

    Two GPUs of a p4de share a network card:

    >>> from simulator.cluster.build import build
    >>> p4de = build("aws_p4de", 16)
    >>> spare_of_cards(p4de, range(16)), spare_of_cards(p4de, (0, 8))
    (1.0, 2.0)

    A DGX A100 has a card for each GPU:

    >>> spare_of_cards(build("dgx_a100", 16), (0, 8))
    1.0
    """
    node_of = cluster.node_of()
    in_node = Counter(node_of.get(rank, _NO_NODE) for rank in group)
    # The node with the most ranks of the group decides.
    number, members = in_node.most_common(1)[0]
    # Groups without nodes or inside a single node send nothing over network cards.
    if number == _NO_NODE or members == len(group):
        return 1.0
    card_of = cluster.remember((spare_of_cards, number), partial(cards_of, cluster, number), len)
    taking_part = Counter(card_of[rank] for rank in group if node_of.get(rank) == number)
    sharing = max(Counter(card_of.values()).values())
    away = next(rank for rank in group if node_of.get(rank) not in (number, None))
    first = cluster.nodes[number][0]
    if cap < _FAR_BELOW * cluster.route(cluster.ranks[first], cluster.ranks[away]).bandwidth / sharing:
        return (cluster.node_size or len(card_of)) / min(in_node.values())
    return sharing / max(taking_part.values())


def cards_of(cluster: Cluster, number: int) -> dict[int, str]:
    """Return the network card of each rank in node `number`, by rank; without cards, the rank's own vertex."""
    # The card is the first `nic` vertex on the route to the rank at the same place of another node. On the way to
    # another place, data may pass a neighbour's card that lies behind the same PCIe switch and on that place's rail.
    away = max((node for other, node in enumerate(cluster.nodes) if other != number), key=len)
    cards = {}
    for place, rank in enumerate(cluster.nodes[number]):
        peer = away[min(place, len(away) - 1)]
        card = card_on_route(cluster, cluster.ranks[rank], cluster.ranks[peer])
        cards[rank] = cluster.ranks[rank] if card is None else card.vertex
    return cards


def stays_inside(src_node: Ints, dst_node: Ints) -> Bools:
    """Return True for each flow that stays inside a node, given the nodes of its ends; also with servers and switches.

    Servers have no node, and a switch belongs to its peers' node.
    """
    return np.asarray((src_node == _NO_NODE) | (dst_node == _NO_NODE) | (src_node == dst_node))


# HBM traffic per byte added to the receiver's array [B]: two reads and a write.
HBM_PER_REDUCED_BYTE: Final = 3.0
