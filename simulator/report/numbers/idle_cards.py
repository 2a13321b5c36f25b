"""Which network cards does a collective leave idle? An algorithm that leaves each node over few of the node's cards.

Example: a ring over two nodes with four cards each leaves a node at one rank, and therefore over one card. The link of
this card limits the time, and the other three cards send nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.basics.counts import number_of
from simulator.cluster.cards import card_on_route
from simulator.cluster.cluster import Cluster
from simulator.records.timeline import Timeline
from simulator.report.numbers.link_use import HOLDS_UP


@dataclass(frozen=True, slots=True)
class IdleCards:
    """Network cards that the nodes of a collective leave idle while other cards limit the collective."""

    used: int  # network cards that send to other nodes: the largest number of any node
    cards: int  # network cards that the collective's ranks in this node can use

    @property
    def text(self) -> str:
        """A clause on the used and the idle cards."""
        idle = number_of(self.cards - self.used, "card")
        verb = "sends" if self.cards - self.used == 1 else "send"
        return (
            f"each node sends to other nodes over {self.used} of its {self.cards} network cards, and {idle} {verb} "
            "nothing"
        )


def idle_cards(timeline: Timeline, cluster: Cluster, group: Sequence[int]) -> IdleCards | None:
    """Return the used and idle cards of the nodes in a collective over a group of ranks.

    The result is None if some node uses all its cards, or if the used cards are busy for less than 45 % of the time:
    the number of cards then does not limit the collective.
    """
    # Very large runs record a single link.
    if len(timeline.links) < 2:
        return None
    uplinks = _uplinks(cluster, group)
    busy = {use.name: use.busy for use in timeline.links if use.nbytes > 0}
    used = {node: [busy[link] for link in links if link in busy] for node, links in uplinks.items()}
    most = max(used, key=lambda node: len(used[node]), default=None)
    if most is None or not used[most] or len(used[most]) == len(uplinks[most]):
        return None
    longest = max(max(times, default=0.0) for times in used.values())
    return IdleCards(len(used[most]), len(uplinks[most])) if longest >= HOLDS_UP * timeline.end else None


def _uplinks(cluster: Cluster, group: Sequence[int]) -> dict[int, set[str]]:
    """Return {node number: links by which data of the group's ranks leaves network cards for other nodes}."""
    nodes, members, uplinks = cluster.nodes, frozenset(group), dict[int, set[str]]()
    # A single node has no route to another node.
    for number, node in enumerate(nodes if len(nodes) > 1 else ()):
        away = nodes[(number + 1) % len(nodes)]
        for place, rank in enumerate(node):
            # A rank's peer has the same place in the next node. Their cards are connected to one switch (a rail);
            # routes to other ranks may pass a neighbour's card.
            peer = away[place % len(away)]
            card = card_on_route(cluster, cluster.ranks[rank], cluster.ranks[peer]) if rank in members else None
            if card is not None:
                uplinks.setdefault(number, set()).add(card.uplink)
    return uplinks
