"""Which network card does data pass on the way to another node, and over which link does the data leave the card?"""

from __future__ import annotations

from typing import NamedTuple

from simulator.cluster.cluster import Cluster


class Card(NamedTuple):
    """The first network card on a route."""

    vertex: str  # the card
    uplink: str  # link 'src->dst' of the route that leaves the card


def card_on_route(cluster: Cluster, start: str, end: str) -> Card | None:
    """Return the first network card on the route between two vertices; None if the route passes no card.

    >>> from simulator.cluster.build import build
    >>> p4de = build("aws_p4de", 16)
    >>> card_on_route(p4de, p4de.ranks[7], p4de.ranks[15])
    Card(vertex='nic3', uplink='nic3->leaf0')
    """
    router, kinds = cluster.router, cluster.graph.nodes
    for link in cluster.route(start, end).links:
        source = router.vertices[router.sources[link]]
        if kinds[source]["kind"] == "nic":
            return Card(source, router.link_name(link))
    return None
