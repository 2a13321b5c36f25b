"""Which links does a route use between two vertices in a cluster?

A route is a path with the fewest hops through forwarding vertices; ties go to the path with the fewest hosts, then to
D-mod-k routing by the destination's number. The same pair therefore always takes the same route. (Hosts matter with a
network card for each GPU: the way to another rail over the host's memory and a neighbour's card has as many hops as
the way over a spine, but no library sends data over the host.)

At a fork with c next hops on shortest paths, sorted by vertex number, destination i takes next hop i mod c. The next
fork uses the quotient i // c. With i itself, the second fork in a fat tree would repeat the first fork's choice, and
half of the links would stay idle. The number i counts the destination among the vertices with the same kind, so that
consecutive GPUs spread. If a leaf's GPUs are not consecutive, as on rails, the vertices have a `position` that counts
leaf by leaf. In a fat tree this rule is D-mod-k routing [1]_: shift permutations share no link.

Example: destinations 0 to 3, two forks with 2 next hops each.

    destination i            0    1    2    3
    first fork, i mod 2      0    1    0    1
    second fork, i // 2      0    0    1    1      with i again: 0 1 0 1, and half of the links would stay idle

References
----------
.. [1] Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat trees",
   CCIT report 776, Technion, 2010.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import NoRouteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import networkx as nx
    import numpy as np
    import numpy.typing as npt

    from simulator.basics.arrays import Bools, Ints
    from simulator.cluster.route_table import RouteFinder, RouteTable

# splitmix64 works on 64-bit words; Python's integers are unbounded.
_MASK: Final = 2**64 - 1
# Measured on one core: time to find a single route; time to find every route to a destination, base and per link [s].
_A_ROUTE: Final = 35e-6
_A_DESTINATION: Final = 1e-4
_A_LINK: Final = 3e-8


@dataclass(frozen=True, slots=True)
class Route:
    """The links from one vertex of a cluster to another, with latency and bandwidth."""

    links: tuple[int, ...]  # numbers of the directed links, in order; empty from a vertex to itself
    latency: float  # sum over the links [s]
    bandwidth: float  # bandwidth of the narrowest link [B/s]; infinite without links


class Router:
    """Finder of routes in a cluster's graph; numbers the vertices and the directed links.

    Parameters
    ----------
    graph : networkx.DiGraph
        Vertices with `kind`, `forwards` and optionally `position`; edges with `bandwidth` and `latency`. The graph is
        read only during construction.
    name : str
        Name of the topology in error messages.
    ecmp_seed : int, optional
        With a seed, equally short routes are chosen by a hash of (seed, source, destination, fork).

    Attributes
    ----------
    vertices : tuple of str
        Vertex names in the graph's order; a vertex's number is its index.
    index : dict of str to int
        Number of each vertex.
    sources, targets : tuple of int
        Vertex numbers at both ends of each link.
    bandwidth, latency : tuple of float
        Bandwidth [B/s] and latency [s] of each link.
    """

    __slots__ = (
        "_backward", "_finder", "_forward", "_forwards", "_hosts", "_link_names", "_links", "_name", "_ordinal",
        "_routes", "_seed", "_without", "bandwidth", "index", "latency", "sources", "targets", "vertices",
    )  # fmt: skip

    def __init__(self, graph: nx.DiGraph[str], name: str = "", *, ecmp_seed: int | None = None) -> None:
        self._name = name
        self._seed = ecmp_seed
        self.vertices: tuple[str, ...] = tuple(graph)
        self.index = {vertex: i for i, vertex in enumerate(self.vertices)}
        self._number_links(graph)
        facts_of_all = [facts for _, facts in graph.nodes(data=True)]
        self._hosts = frozenset(number for number, facts in enumerate(facts_of_all) if facts.get("kind") == "host")
        # Vertices are counted once here; D-mod-k routing reads the count of the destination at every fork.
        self._ordinal = _ordinals(facts_of_all)
        self._routes: dict[tuple[str, str], Route] = {}
        self._link_names: tuple[str, ...] | None = None
        self._finder: RouteFinder | None = None
        self._without: dict[frozenset[int], Router] = {}

    def _number_links(self, graph: nx.DiGraph[str]) -> None:
        # `ahead` and `behind` contain only forwarding vertices, because the search may pass through no other vertex.
        self._forwards = forwards = tuple(bool(facts.get("forwards", True)) for _, facts in graph.nodes(data=True))
        # links[src][dst] is the number of a link. A pair has at most a single link in each direction: parallel cables
        # must be summed.
        links: list[dict[int, int]] = [{} for _ in self.vertices]
        ahead: list[set[int]] = [set() for _ in self.vertices]
        behind: list[set[int]] = [set() for _ in self.vertices]
        sources, targets, bandwidth, latency = [], [], [], []
        for number, (src_name, dst_name, edge) in enumerate(graph.edges(data=True)):
            src, dst = self.index[src_name], self.index[dst_name]
            links[src][dst] = number
            # ahead[src] holds forwarding successors, behind[dst] forwarding predecessors.
            if forwards[dst]:
                ahead[src].add(dst)
            if forwards[src]:
                behind[dst].add(src)
            sources.append(src)
            targets.append(dst)
            bandwidth.append(float(edge["bandwidth"]))
            latency.append(float(edge["latency"]))
        self._links, self._forward, self._backward = links, ahead, behind
        self.sources, self.targets = tuple(sources), tuple(targets)
        self.bandwidth, self.latency = tuple(bandwidth), tuple(latency)

    @property
    def link_names(self) -> tuple[str, ...]:
        """Names of the links, 'src->dst', by link number; created on first use."""
        # Names are only for reports, and a large machine has millions of links.
        if self._link_names is None:
            names = self.vertices
            self._link_names = tuple(f"{names[s]}->{names[t]}" for s, t in zip(self.sources, self.targets, strict=True))
        return self._link_names

    def link_name(self, link: int) -> str:
        """Return the name 'src->dst' of link number `link`, without creating every name."""
        return f"{self.vertices[self.sources[link]]}->{self.vertices[self.targets[link]]}"

    def link(self, src: str, dst: str) -> int:
        """Return the number of the link between two neighbouring vertices, given by name.

        Raises
        ------
        KeyError
            There is no such link.
        """
        return self._links[self.index[src]][self.index[dst]]

    def route(self, src: str, dst: str) -> Route:
        """Return the route from one vertex to another; the result is cached.

        Parameters
        ----------
        src, dst : str
            Names of vertices.

        Raises
        ------
        NoRouteError
            No path leads through forwarding vertices.
        KeyError
            A vertex does not belong to this topology.
        """
        route = self._routes.get((src, dst))
        if route is None:
            route = self._routes[src, dst] = self._find(self.index[src], self.index[dst])
        return route

    def routes(self, src: Ints, dst: Ints) -> RouteTable:
        """Return the routes from `src[i]` to `dst[i]` for many pairs.

        Routes with a common destination are not cached if they are many (up to millions).

        Parameters
        ----------
        src, dst : int array, shape (routes,)
            Numbers of vertices.

        Raises
        ------
        NoRouteError
            No path leads through forwarding vertices; names the first such pair.
        """
        import numpy as np

        from simulator.cluster.route_table import RouteTable

        to_each = np.bincount(dst, minlength=len(self.vertices))
        # A search from the destination pays off for many routes: compare the measured costs.
        many: Bools = (to_each * _A_ROUTE > _A_DESTINATION + len(self.sources) * _A_LINK)[dst]
        together, few = np.flatnonzero(many), np.flatnonzero(~many)
        table, lost = self._route_finder().table(src[together], dst[together]) if len(together) else (None, few[:0])
        if len(lost):
            pair = together[lost[0]]
            raise NoRouteError(self.vertices[src[pair]], self.vertices[dst[pair]], self._name)
        # The frequent case: every pair shares its destination with many pairs.
        if table is not None and not len(few):
            return table
        one_by_one = [self.route(self.vertices[a], self.vertices[b]) for a, b in zip(src[few], dst[few], strict=True)]
        links = np.array(list(chain.from_iterable(path.links for path in one_by_one)), np.int64)
        latency = np.array([path.latency for path in one_by_one], np.float64)
        some = RouteTable(np.repeat(few, [len(path.links) for path in one_by_one]), links, latency)
        if table is None:
            return some
        # Merge both kinds in the order in which pairs were requested.
        route = np.concatenate([some.route, together[table.route]])
        order = np.argsort(route, kind="stable")
        latencies = np.empty(len(src))
        latencies[few], latencies[together] = some.latency, table.latency
        return RouteTable(route[order], np.concatenate([some.link, table.link])[order], latencies)

    def routes_around(self, src: Ints, dst: Ints, avoided: frozenset[int]) -> RouteTable:
        """Return the routes from `src[i]` to `dst[i]` while some links are avoided.

        A route that takes an avoided link is replaced by a shortest path without these links, chosen by the same rule
        at forks; all other routes stay. A route stays, too, if there is no path without these links.

        Parameters
        ----------
        src, dst : int array, shape (routes,)
            Numbers of vertices.
        avoided : frozenset of int
            Numbers of links.
        """
        import numpy as np

        from simulator.cluster.route_table import RouteTable

        usual = self.routes(src, dst)
        hit = set(usual.route[np.isin(usual.link, list(avoided))].tolist())
        if not hit:
            return usual
        links = np.split(usual.link, np.searchsorted(usual.route, np.arange(1, len(src))))
        latency = usual.latency.copy()
        remaining = self._avoiding(avoided)
        for number in hit:
            try:
                other = remaining.route(self.vertices[src[number]], self.vertices[dst[number]])
            except NoRouteError:
                continue
            links[number], latency[number] = np.array(other.links, np.int64), other.latency
        return RouteTable(np.repeat(np.arange(len(src)), [len(hops) for hops in links]), np.concatenate(links), latency)

    def _avoiding(self, avoided: frozenset[int]) -> Router:
        """Return a router without some links, for single routes: `route` alone may be called."""
        if avoided not in self._without:
            other = copy(self)
            other._links = [dict(ends) for ends in self._links]
            other._forward = [set(ends) for ends in self._forward]
            other._backward = [set(ends) for ends in self._backward]
            other._routes = {}
            for link in avoided:
                src, dst = self.sources[link], self.targets[link]
                del other._links[src][dst]
                other._forward[src].discard(dst)
                other._backward[dst].discard(src)
            self._without[avoided] = other
        return self._without[avoided]

    def _route_finder(self) -> RouteFinder:
        import numpy as np

        from simulator.cluster.route_table import Neighbours, RouteFinder

        # Built on first use: many clusters only ever ask for a few routes.
        if self._finder is None:
            sources, targets = np.array(self.sources, np.int64), np.array(self.targets, np.int64)
            self._finder = RouteFinder(
                Neighbours.of(sources, targets, len(self.vertices)),
                Neighbours.of(targets, sources, len(self.vertices)),
                np.array(self._forwards),
                np.isin(np.arange(len(self.vertices)), list(self._hosts)),
                self.latency,
                np.array(self._ordinal, np.int64),
                None if self._seed is None else partial(_mixed_all, self._seed),
            )
        return self._finder

    def _find(self, src: int, dst: int) -> Route:
        if src == dst:
            return Route((), 0.0, float("inf"))
        # A direct link is the shortest path, without vertices in between.
        levels, hosts = ([], []) if dst in self._links[src] else self._with_fewest_hosts(src, dst)
        path = self._choose(src, dst, levels, hosts)
        links, here = [], src
        for vertex in path:
            links.append(self._links[here][vertex])
            here = vertex
        # fsum rounds only once: equal latencies give equal sums in any order.
        latency = fsum([self.latency[link] for link in links])
        return Route(tuple(links), latency, min([self.bandwidth[link] for link in links]))

    def _shortest_paths(self, src: int, dst: int) -> list[set[int]]:
        """Return the vertices between source and destination that are on any shortest path, as a set per hop.

        Entry i of the list holds the vertices i + 1 hops from the source, up to one hop before the destination. The
        search advances from both ends in turn, on the side with fewer vertices in its last level. A search from one
        end would visit every GPU below a core switch.
        """
        # Example: gpu0 - leaf0 - (spine0, spine1) - leaf1 - gpu9. Levels from the source: {gpu0}, {leaf0},
        # {spine0, spine1}; from the destination: {gpu9}, {leaf1}, {spine0, spine1}, where both searches meet. The
        # result is [{leaf0}, {spine0, spine1}, {leaf1}].
        ahead, behind = [{src}], [{dst}, self._backward[dst]]
        seen_ahead, seen_behind = {src}, {dst} | behind[1]
        while True:
            # Levels hold equal distances, so every shortest path passes the level in which the searches meet.
            meet = ahead[-1] & behind[-1]
            if meet:
                return self._pruned(ahead, meet) + behind[-2:0:-1]
            if not ahead[-1] or not behind[-1]:
                raise NoRouteError(self.vertices[src], self.vertices[dst], self._name)
            if len(ahead[-1]) <= len(behind[-1]):
                ahead.append(_next(self._forward, ahead[-1], seen_ahead))
            else:
                behind.append(_next(self._backward, behind[-1], seen_behind))

    def _pruned(self, ahead: list[set[int]], meet: set[int]) -> list[set[int]]:
        """Return the levels of a search from the source without vertices that do not lead to the level `meet`."""
        levels = [meet]
        for level in ahead[-2:0:-1]:
            later = levels[-1]
            levels.append({vertex for vertex in level if not self._forward[vertex].isdisjoint(later)})
        return levels[::-1]

    def _with_fewest_hosts(self, src: int, dst: int) -> tuple[list[set[int]], list[dict[int, int]]]:
        """Return the levels of shortest paths, and the fewest hosts from each of their vertices on to the destination.

        The second list is empty if there is a path without hosts: the levels then contain the vertices of such paths
        only.
        """
        levels = self._shortest_paths(src, dst)
        if all(self._hosts.isdisjoint(level) for level in levels):
            return levels, []
        # Most often there is a path without any host.
        # Levels without hosts may contain dead ends, which must be removed before a path is chosen.
        without = self._connected([level - self._hosts for level in levels])
        return (without, []) if all(without) else (levels, self._hosts_ahead(levels))

    def _connected(self, levels: list[set[int]]) -> list[set[int]]:
        """Return the levels without vertices that lack a predecessor in the level before or a successor in the next."""
        linked = levels[:1]
        for level in levels[1:]:
            before = linked[-1]
            linked.append({vertex for vertex in level if not self._backward[vertex].isdisjoint(before)})
        # The forward pass removes vertices without a predecessor, this backward pass vertices without a successor.
        for place in reversed(range(len(linked) - 1)):
            following = linked[place + 1]
            linked[place] = {vertex for vertex in linked[place] if not self._forward[vertex].isdisjoint(following)}
        return linked

    def _hosts_ahead(self, levels: list[set[int]]) -> list[dict[int, int]]:
        """Return for each level the fewest hosts from a vertex on to the destination, the vertex included."""
        # Example: gpu0 - host0 - nic0 - leaf0 - nic2 - host2 - gpu9. From the end: host2 1, nic2 1, leaf0 1, nic0 1,
        # host0 2.
        ahead: dict[int, int] = {}
        counts: list[dict[int, int]] = []
        for level in reversed(levels):
            hosts = {v: min([ahead[other] for other in self._forward[v] & ahead.keys()], default=0) for v in level}
            ahead = {vertex: count + (vertex in self._hosts) for vertex, count in hosts.items()}
            counts.append(ahead)
        return counts[::-1]

    def _choose(self, src: int, dst: int, levels: list[set[int]], hosts: list[dict[int, int]]) -> list[int]:
        """Choose a shortest path with the fewest hosts by the rule of this module, or by the hash."""
        rest, here, path = self._ordinal[dst], src, []
        for hop, level in enumerate(levels):
            next_hops = self._forward[here] & level
            if hosts and len(next_hops) > 1:
                # Fewest among these next hops, not in the level: paths through other vertices of the level may have
                # passed more hosts before, and continue with fewer.
                ahead = hosts[hop]
                fewest = min(ahead[vertex] for vertex in next_hops)
                next_hops = {vertex for vertex in next_hops if ahead[vertex] == fewest}
            if len(next_hops) == 1:
                (here,) = next_hops
            else:
                # The hash takes the present vertex into account, so the forks on a route decide independently.
                number = rest if self._seed is None else _mixed((self._seed, src, dst, here))
                rest //= len(next_hops)
                here = sorted(next_hops)[number % len(next_hops)]
            path.append(here)
        path.append(dst)
        return path


def _next(neighbours: list[set[int]], level: set[int], visited: set[int]) -> set[int]:
    """Return the vertices next to `level` that are not in `visited`, and add them to `visited`: a step of a search."""
    reached = set[int]().union(*[neighbours[vertex] for vertex in level])
    reached -= visited
    visited |= reached
    return reached


def _ordinals(vertices: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return each vertex's number among the vertices with the same kind; or the vertex's `position`, if given."""
    counts: dict[Any, int] = {}
    ordinals = []
    for facts in vertices:
        number = counts.get(facts.get("kind"), 0)
        counts[facts.get("kind")] = number + 1
        # A vertex with a position still counts: later vertices of its kind keep their numbers.
        ordinals.append(int(facts.get("position", number)))
    return tuple(ordinals)


def _mixed(numbers: Iterable[int]) -> int:
    """Return a 64-bit hash, the same in every process: splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def _mixed_all(seed: int, src: Ints, dst: Ints, here: Ints) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of (seed, source, destination, fork) for each route, shape (routes,)."""
    import numpy as np

    # The seed is equal for every route, so it is hashed once. numpy's uint64 wraps round like `_MASK`.
    state = np.full(len(src), _mixed([seed]), np.uint64)
    for number in (src, dst, here):
        state = (state ^ number.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
