"""The network as a closed form sees it: idle, regular, or not to be put in a formula.

Rule: says None rather than something that is nearly true. A closed form may use only what this file vouches for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.cluster.cluster import Cluster
from simulator.cluster.routing import Route


@dataclass(frozen=True, slots=True)
class Link:
    """Routes that are all alike.

    Attributes
    ----------
    latency : float
        Of a whole route [s].
    bandwidth : float
        Of its narrowest link [B/s].
    rate_cap : float
        Bound on one flow [B/s].
    """

    latency: float
    bandwidth: float
    rate_cap: float

    def rate(self, sharing: int) -> float:
        """Rate of each of so many flows on the same link [B/s]."""
        return min(self.bandwidth / sharing, self.rate_cap)


@dataclass(frozen=True, slots=True)
class IdleNetwork:
    """What is regular about the network between some participants.

    Attributes
    ----------
    cluster : Cluster
    vertices : tuple of str
        Of the participants; servers behind the ranks.
    group : tuple of int
        Ranks of the cluster that take part.
    startup : float
        [s]
    rate_cap, cross_rate_cap : float
        Bound on each flow [B/s], and on those between boxes.
    """

    cluster: Cluster
    vertices: tuple[str, ...]
    group: tuple[int, ...]
    startup: float = 0.0
    rate_cap: float = float("inf")
    cross_rate_cap: float = float("inf")

    @property
    def port(self) -> Link | None:
        """Every participant has one link to and one from the same switch, all alike: a star."""
        return self._star(range(len(self.vertices)))

    @property
    def mesh(self) -> Link | None:
        """Every pair of participants has links of its own, all alike: a full mesh."""
        pairs = [(a, b) for a in range(len(self.vertices)) for b in range(len(self.vertices)) if a != b]
        return self._alike(self._routes(pairs), links=1)

    def neighbours(self, order: Sequence[int]) -> Link | None:
        """Along a closed ring of participants every hop has links of its own, all alike."""
        return self._alike(self._routes(zip(order, [*order[1:], order[0]], strict=True)))

    def line(self, order: Sequence[int]) -> Link | None:
        """The same along an open line."""
        return self._alike(self._routes(pairwise(order)))

    def inside(self, boxes: Sequence[Sequence[int]]) -> Link | None:
        """Inside every box each ring hop has links of its own, alike in all boxes."""
        hops = [(a, b) for box in boxes for a, b in zip(box, [*box[1:], box[0]], strict=True)]
        return self._alike(self._routes(hops))

    def across(self, boxes: Sequence[Sequence[int]]) -> tuple[Link, int] | None:
        """Rings through the same place of every box are alike and share their narrowest link evenly: how many do."""
        hops = [(a[i], b[i]) for a, b in zip(boxes, [*boxes[1:], boxes[0]], strict=True) for i in range(len(boxes[0]))]
        routes = self._routes(hops)
        users: dict[int, int] = {}
        for route in routes:
            for link in route.links:
                users[link] = users.get(link, 0) + 1
        bandwidths = self.cluster.router.bandwidth
        shares = {min((bandwidths[i] / users[i], users[i]) for i in route.links) for route in routes}
        if len(shares) != 1 or len({route.latency for route in routes}) != 1:
            return None
        share, sharing = shares.pop()
        return Link(routes[0].latency, share * sharing, self.cross_rate_cap), sharing

    def hbm_bears(self, arriving: float) -> bool:
        """Whether every rank's HBM keeps up with reducing at this rate [B/s]: two reads and a write."""
        return all(3 * arriving <= self.cluster.hbm_bandwidth(rank) * (1 + 1e-12) for rank in self.group)

    def _routes(self, pairs: Iterable[tuple[int, int]]) -> list[Route]:
        return [self.cluster.route(self.vertices[a], self.vertices[b]) for a, b in pairs]

    def _alike(self, routes: list[Route], links: int | None = None) -> Link | None:
        used = [link for route in routes for link in route.links]
        regular = len(set(used)) == len(used) and len({(r.latency, r.bandwidth) for r in routes}) == 1
        if not regular or (links is not None and any(len(r.links) != links for r in routes)):
            return None
        return Link(routes[0].latency, routes[0].bandwidth, self.rate_cap)

    def _star(self, participants: Sequence[int]) -> Link | None:
        names = [self.vertices[p] for p in participants]
        graph = self.cluster.graph
        if not all(name in graph for name in names):
            return None
        first = self.cluster.route(names[0], names[1])
        if len(first.links) != 2:
            return None
        hubs = set(graph.successors(names[0])) & set(graph.predecessors(names[1]))
        for hub in sorted(hubs):
            ups = {
                (graph.edges[n, hub]["bandwidth"], graph.edges[n, hub]["latency"])
                for n in names
                if graph.has_edge(n, hub)
            }
            downs = {
                (graph.edges[hub, n]["bandwidth"], graph.edges[hub, n]["latency"])
                for n in names
                if graph.has_edge(hub, n)
            }
            complete = all(graph.has_edge(n, hub) and graph.has_edge(hub, n) for n in names)
            if complete and len(ups) == len(downs) == 1 and ups == downs:
                return Link(first.latency, first.bandwidth, self.rate_cap)
        return None
