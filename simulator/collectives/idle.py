"""Decides whether an idle network is regular enough for a closed form: equal routes on a star, a full mesh or a ring.

A closed form may use only the regularities that this module confirms. An approximate regularity counts as absent, and
the answer is None.

    star (`port`)         ring (`neighbours`)       full mesh (`mesh`)

    0    1    2           0 --> 1 --> 2             0 <--> 1
    ^    ^    ^           ^           |             0 <--> 2
    v    v    v           +-----------+             1 <--> 2
    -- switch --
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from simulator.basics.arrays import Ints
from simulator.basics.tolerances import SUM_OF_LATENCIES, SUM_OF_RATES
from simulator.cluster.caps import HBM_PER_REDUCED_BYTE, nodes_of, rate_caps
from simulator.cluster.cluster import Cluster
from simulator.cluster.routing import Route


@dataclass(frozen=True, slots=True)
class AlikeRoutes:
    """Latency, bandwidth and cap for equal network routes."""

    latency: float  # latency of the whole route [s]
    bandwidth: float  # bandwidth of the route's narrowest link [B/s]
    rate_cap: float  # upper bound on a single flow's rate [B/s]

    def rate(self, sharing: int) -> float:
        """Return the rate of each flow if `sharing` flows use the same link [B/s]."""
        return min(self.bandwidth / sharing, self.rate_cap)


@dataclass(frozen=True, slots=True)
class Across:
    """Regular rings that go from node to node on an idle network."""

    latencies: tuple[float, ...]  # latency from each node to the next node [s]
    rate: float  # rate of each flow [B/s]
    beside: bool = False  # True if rings inside the nodes use links of these rings

    def latency(self, steps: int) -> float:
        """Return the largest latency sum over `steps` successive steps in the ring [s].

        With equal chunks and rates, a chunk that moves on in every step never has to wait. The last rank to end K
        steps therefore ends after the K successive hops with the largest latency sum.

        Three nodes; with 4 steps, a chunk passes the whole ring and then the slowest hop again:

        >>> Across((1.0, 2.0, 5.0), 1.0).latency(1), Across((1.0, 2.0, 5.0), 1.0).latency(4)
        (5.0, 13.0)
        """
        laps, rest = divmod(steps, len(self.latencies))
        twice = self.latencies * 2
        # Windows may wrap round the ring's end.
        windows = [sum(twice[i : i + rest]) for i in range(len(self.latencies))]
        return laps * sum(self.latencies) + max(windows)

    def out_of_the_way(self, steps: int, within: float) -> bool:
        """Return True if each node sends the last chunk in `steps` before a ring inside needs the same links.

        `within` is the latency of the ring inside [s]. With K = `steps`, a node receives its last chunk after the K
        hops that end at the node, and the ring inside begins to send `within` later. The node ends its own sending
        after the K hops that end one hop later. The sums have K - 1 hops in common: only the latter contains the hop
        out of the node, and only the former contains the hop K places before.
        """
        places = range(len(self.latencies))
        gaps = [self.latencies[node] - self.latencies[(node - steps) % len(places)] for node in places]
        return not self.beside or max(gaps) <= within * (1 + SUM_OF_LATENCIES)


@dataclass(frozen=True, slots=True)
class IdleNetwork:
    """The idle network between the participants, and the respects in which the network is regular."""

    cluster: Cluster
    # Vertices of the participants: ranks first, then auxiliaries.
    vertices: tuple[str, ...]
    group: tuple[int, ...]  # ranks of the cluster that take part
    startup: float = 0.0  # time that every collective pays before its first transfer [s]
    # `rate_cap`, `cross_rate_cap`: Upper bounds on the rate of each flow: inside a node, and between nodes [B/s].
    rate_cap: float = float("inf")
    cross_rate_cap: float = float("inf")

    @property
    def port(self) -> AlikeRoutes | None:
        """The star's common port: all participants have equal links to a switch, and no other route; else None."""
        names = self.vertices
        first = self._hop(0, 1)
        if not all(name in self.cluster.graph for name in names) or len(first.route.links) != 2:
            return None
        graph = self.cluster.graph
        hub = self.cluster.router.vertices[self.cluster.router.targets[first.route.links[0]]]
        if not all(graph.has_edge(name, hub) and graph.has_edge(hub, name) for name in names) or self._ways_beside(hub):
            return None
        ups = {_facts(graph.edges[name, hub]) for name in names}
        downs = {_facts(graph.edges[hub, name]) for name in names}
        nodes = self._nodes()
        # A star's formula has a single rate, so flows inside and between nodes must have equal caps. Switches and
        # servers have no node (-1) and do not count.
        one_cap = self.rate_cap == self.cross_rate_cap or len(np.unique(nodes[nodes >= 0])) == 1
        if len(ups) != 1 or ups != downs or not one_cap:
            return None
        return AlikeRoutes(first.route.latency, first.route.bandwidth, first.cap)

    @property
    def mesh(self) -> AlikeRoutes | None:
        """The full mesh's common link: every pair of participants has separate links, all equal; else None."""
        if not all(self.cluster.graph.has_edge(a, b) for a, b in permutations(self.vertices, 2)):
            return None
        return _common_route(self._hops(permutations(range(len(self.vertices)), 2)))

    def neighbours(self, order: Sequence[int]) -> AlikeRoutes | None:
        """Return the common link of a closed ring in this order, if every hop has separate, equal links; else None."""
        return _common_route(self._round(order))

    def line(self, order: Sequence[int]) -> AlikeRoutes | None:
        """Return the common link of an open line in this order, if every hop has separate, equal links; else None."""
        return _common_route(self._hops(pairwise(order)))

    def inside(self, nodes: Sequence[Sequence[int]]) -> AlikeRoutes | None:
        """Return the common link for rings inside every node, if every hop has a separate, equal link; else None."""
        return _common_route(self._rounds(nodes))

    def in_step(self, rings: Sequence[Sequence[int]]) -> AlikeRoutes | None:
        """Return the common route of rings that run at once, if hops are equal and share links evenly; else None.

        The bandwidth of the result is each flow's share.
        """
        hops = self._rounds(rings)
        users = Counter(link for hop in hops for link in hop.route.links)
        bandwidths = self.cluster.router.bandwidth
        shares = [min(bandwidths[link] / users[link] for link in hop.route.links) for hop in hops]
        routes = {(hop.route.latency, share, hop.cap) for hop, share in zip(hops, shares, strict=True)}
        # Latencies, shares and caps must be equal: otherwise flows would drift apart, and shares would change.
        return AlikeRoutes(*routes.pop()) if len(routes) == 1 else None

    def across(self, nodes: Sequence[Sequence[int]]) -> Across | None:
        """Return latencies and rate of rings through the same place in every node, if they keep step; else None.

        Rings keep step if they share links evenly. Latencies may differ between pairs of nodes. Then flows of different
        pairs do not overlap in the same way in each round, so each link may serve only a single pair, or a pair and the
        ring inside a node of this pair.
        """
        pairs = list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
        hops = self._hops((a[i], b[i]) for a, b in pairs for i in range(len(nodes[0])))
        # For each link, the pairs that use the link, one entry per flow. Hops are listed pair by pair.
        users: dict[int, list[int]] = {}
        for number, hop in enumerate(hops):
            for link in hop.route.links:
                users.setdefault(link, []).append(number // len(nodes[0]))
        bandwidths = self.cluster.router.bandwidth
        # Per hop: share and number of flows on the narrowest link.
        shares = {min((bandwidths[i] / len(users[i]), len(users[i])) for i in hop.route.links) for hop in hops}
        latencies = [
            {hop.route.latency for hop in hops[k : k + len(nodes[0])]} for k in range(0, len(hops), len(nodes[0]))
        ]
        # For each node, the pairs that use links of the ring inside the node. Pairs are numbered by their first node,
        # so a node's own pairs have the node's number and the number before.
        beside = [self._served(node, users) for node in nodes]
        disjoint = all(len(set(served)) == 1 for served in users.values()) and all(
            served <= {node, (node - 1) % len(nodes)} for node, served in enumerate(beside)
        )
        same_latency = len({hop.route.latency for hop in hops}) == 1
        if len(shares) != 1 or len({hop.cap for hop in hops}) != 1 or any(len(of_pair) > 1 for of_pair in latencies):
            return None
        if not (same_latency or disjoint):
            return None
        # `share` is bandwidth / sharing; the rate is the smaller of the share and the machine's cap.
        share, sharing = shares.pop()
        rate = AlikeRoutes(0.0, share * sharing, hops[0].cap).rate(sharing)
        return Across(tuple(of_pair.pop() for of_pair in latencies), rate, any(beside))

    def undisturbed(
        self, flows: Mapping[tuple[int, int], int], *, reducing: bool
    ) -> dict[tuple[int, int], AlikeRoutes] | None:
        """Return the route of each hop (source, destination) if no flow ever slows down another flow; else None.

        `flows` gives the number of flows on each hop. No flow is slowed down if, on each link and in each HBM, the
        flows' separate rates add up to at most the available bandwidth.
        """
        hops = dict(zip(flows, self._hops(flows), strict=True))
        links = {pair: AlikeRoutes(hop.route.latency, hop.route.bandwidth, hop.cap) for pair, hop in hops.items()}
        load: dict[int, float] = defaultdict(float)
        arriving: dict[int, float] = defaultdict(float)
        for pair, hop in hops.items():
            together = flows[pair] * links[pair].rate(1)
            arriving[pair[1]] += together
            for number in hop.route.links:
                load[number] += together
        bandwidths = self.cluster.router.bandwidth
        if any(carried > bandwidths[number] * (1 + SUM_OF_RATES) for number, carried in load.items()):
            return None
        return None if reducing and not self.hbm_bears(max(arriving.values())) else links

    def hbm_bears(self, arriving: float) -> bool:
        """Return True if every rank's HBM can sustain reducing data that arrives at this rate [B/s]."""
        return all(
            HBM_PER_REDUCED_BYTE * arriving <= self.cluster.hbm_bandwidth(rank) * (1 + SUM_OF_RATES)
            for rank in self.group
        )

    def _ways_beside(self, hub: str) -> bool:
        """Return True if two participants are connected directly, or over a single vertex besides the hub."""
        graph, names = self.cluster.graph, set(self.vertices)
        sources: dict[str, set[str]] = defaultdict(set)
        for name in self.vertices:
            for vertex in graph.successors(name):
                sources[vertex].add(name)
        # Links have a direction: a participant with a link to a vertex need not have a link from this vertex.
        targets = {vertex: names.intersection(graph.successors(vertex)) for vertex in sources if vertex != hub}
        # A vertex with links to and from the same participant only (a host, say) is no detour.
        detours = [(sources[vertex], reached) for vertex, reached in targets.items() if reached]
        return not names.isdisjoint(sources) or any(len(ahead | reached) > 1 for ahead, reached in detours)

    def _nodes(self) -> Ints:
        """Return the node of each participant, shape (participants,); -1 for servers and switches."""
        return nodes_of(self.cluster.node_of(), self.group, len(self.vertices))

    def _hop(self, a: int, b: int) -> _Hop:
        return self._hops([(a, b)])[0]

    def _hops(self, pairs: Iterable[tuple[int, int]]) -> list[_Hop]:
        ends = list(pairs)
        src, dst = np.array(ends, np.int64).reshape(-1, 2).T
        caps = rate_caps(self._nodes(), src, dst, self.rate_cap, self.cross_rate_cap).tolist()
        names = self.vertices
        return [_Hop(self.cluster.route(names[a], names[b]), cap) for (a, b), cap in zip(ends, caps, strict=True)]

    def _round(self, order: Sequence[int]) -> list[_Hop]:
        return self._rounds([order])

    def _rounds(self, rings: Iterable[Sequence[int]]) -> list[_Hop]:
        return self._hops(pair for ring in rings for pair in zip(ring, [*ring[1:], ring[0]], strict=True))

    def _served(self, node: Sequence[int], users: Mapping[int, Sequence[int]]) -> set[int]:
        """Return the pairs of nodes, listed by link in `users`, that share a link with the ring inside `node`."""
        return {user for hop in self._round(node) for link in hop.route.links for user in users.get(link, ())}


@dataclass(frozen=True, slots=True)
class _Hop:
    """A route between two participants, with the machine's upper bound on a flow's rate [B/s]."""

    route: Route
    cap: float


def _common_route(hops: Sequence[_Hop]) -> AlikeRoutes | None:
    """Return the common latency, bandwidth and cap of hops if all are equal and no link is shared; else None."""
    used = [link for hop in hops for link in hop.route.links]
    routes = {(hop.route.latency, hop.route.bandwidth, hop.cap) for hop in hops}
    if len(set(used)) != len(used) or len(routes) != 1:
        return None
    return AlikeRoutes(*routes.pop())


def _facts(edge: Mapping[str, float]) -> tuple[float, float]:
    return edge["bandwidth"], edge["latency"]
