"""Which links a route uses: routing between two vertices of a cluster.

Rule: a route is a shortest path by hops that passes only through vertices that forward; of several that are as short
one with the fewest hosts on it, and of these the destination's number decides, so the same pair always takes the same
route. (With a network card for each GPU the way to another rail leads over the network's next tier: through the host's
memory to a neighbour's card it would be as short, but no library sends that way.)

At a fork with c next hops on shortest paths, sorted by vertex number, destination i takes next hop i mod c; the
quotient i // c decides at the next fork (were it i again, the second fork of a fat tree would always choose as the
first did, and half of its links would stay idle). i counts the destination among the vertices of its kind, so that
consecutive GPUs spread; where a leaf's GPUs are not consecutive, as on rails, the vertices have a `position` that
counts leaf by leaf. In a fat tree this is D-mod-k routing [1]_: shift permutations share no link.

References
----------
.. [1] Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat trees",
   CCIT report 776, Technion, 2010.
"""

from __future__ import annotations

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

_MASK: Final = 2**64 - 1
# Seen on one core: searching for one route, and for all that lead to one destination, at least and for each link [s].
_A_ROUTE: Final = 35e-6
_A_DESTINATION: Final = 1e-4
_A_LINK: Final = 3e-8


@dataclass(frozen=True, slots=True)
class Route:
    """The links from one vertex to another.

    Attributes
    ----------
    links : tuple of int
        Numbers of the directed links, in order; empty from a vertex to itself.
    latency : float
        Sum over the links [s].
    bandwidth : float
        Of the narrowest link [B/s]; infinite where there is none.
    """

    links: tuple[int, ...]
    latency: float
    bandwidth: float


class Router:
    """Numbers of vertices and links, and the routes between vertices.

    Parameters
    ----------
    graph : networkx.DiGraph
        Vertices with `kind`, `forwards` and perhaps `position`, edges with `bandwidth` and `latency`. It is read
        once, now.
    name : str
        For errors.
    ecmp_seed : int, optional
        Choose among equally short routes by a hash of (seed, source, destination, fork) and not by the rule above.

    Attributes
    ----------
    vertices : tuple of str
        In the graph's order; the place is the number.
    index : dict of str to int
        Number of a vertex.
    sources, targets : tuple of int
        Vertex numbers at both ends of link i.
    bandwidth, latency : tuple of float
        Of link i [B/s], [s].
    """

    __slots__ = (
        "_backward", "_finder", "_forward", "_forwards", "_hosts", "_link_names", "_links", "_name", "_ordinal",
        "_routes", "_seed", "bandwidth", "index", "latency", "sources", "targets", "vertices",
    )  # fmt: skip

    def __init__(self, graph: nx.DiGraph[str], name: str = "", *, ecmp_seed: int | None = None) -> None:
        self._name = name
        self._seed = ecmp_seed
        self.vertices: tuple[str, ...] = tuple(graph)
        self.index = {vertex: i for i, vertex in enumerate(self.vertices)}
        self._number_links(graph)
        facts_of_all = [facts for _, facts in graph.nodes(data=True)]
        self._hosts = frozenset(number for number, facts in enumerate(facts_of_all) if facts.get("kind") == "host")
        self._ordinal = _ordinals(facts_of_all)
        self._routes: dict[tuple[str, str], Route] = {}
        self._link_names: tuple[str, ...] | None = None
        self._finder: RouteFinder | None = None

    def _number_links(self, graph: nx.DiGraph[str]) -> None:
        self._forwards = forwards = tuple(bool(facts.get("forwards", True)) for _, facts in graph.nodes(data=True))
        links: list[dict[int, int]] = [{} for _ in self.vertices]
        ahead: list[set[int]] = [set() for _ in self.vertices]
        behind: list[set[int]] = [set() for _ in self.vertices]
        sources, targets, bandwidth, latency = [], [], [], []
        for number, (src_name, dst_name, edge) in enumerate(graph.edges(data=True)):
            src, dst = self.index[src_name], self.index[dst_name]
            links[src][dst] = number
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
        """Names of all links, 'src->dst', by number; made when first asked for."""
        if self._link_names is None:
            names = self.vertices
            self._link_names = tuple(f"{names[s]}->{names[t]}" for s, t in zip(self.sources, self.targets, strict=True))
        return self._link_names

    def link_name(self, link: int) -> str:
        """Name one link without naming all."""
        return f"{self.vertices[self.sources[link]]}->{self.vertices[self.targets[link]]}"

    def link(self, src: str, dst: str) -> int:
        """Number of the link between two neighbours.

        Raises
        ------
        KeyError
            If they are not.
        """
        return self._links[self.index[src]][self.index[dst]]

    def route(self, src: str, dst: str) -> Route:
        """Find the route from one vertex to another; the answer is kept.

        Parameters
        ----------
        src, dst : str
            Names of vertices.

        Returns
        -------
        Route

        Raises
        ------
        NoRouteError
            If no path leads through forwarding vertices.
        KeyError
            If a vertex is not of this topology.
        """
        known = self._routes.get((src, dst))
        if known is None:
            known = self._routes[src, dst] = self._find(self.index[src], self.index[dst])
        return known

    def routes(self, src: Ints, dst: Ints) -> RouteTable:
        """Find many routes; nothing is kept where many lead to one destination, for there may be millions.

        Parameters
        ----------
        src, dst : int array, shape (routes,)
            Numbers of vertices.

        Raises
        ------
        NoRouteError
            If no path leads through forwarding vertices, for the first pair of which that is so.
        """
        import numpy as np

        from simulator.cluster.route_table import RouteTable

        to_each = np.bincount(dst, minlength=len(self.vertices))
        many: Bools = (to_each * _A_ROUTE > _A_DESTINATION + len(self.sources) * _A_LINK)[dst]
        together, few = np.flatnonzero(many), np.flatnonzero(~many)
        table, lost = self._route_finder().table(src[together], dst[together]) if len(together) else (None, few[:0])
        if len(lost):
            pair = together[lost[0]]
            raise NoRouteError(self.vertices[src[pair]], self.vertices[dst[pair]], self._name)
        if table is not None and not len(few):
            return table
        one_by_one = [self.route(self.vertices[a], self.vertices[b]) for a, b in zip(src[few], dst[few], strict=True)]
        links = np.array(list(chain.from_iterable(one.links for one in one_by_one)), np.int64)
        latency = np.array([one.latency for one in one_by_one], np.float64)
        some = RouteTable(np.repeat(few, [len(one.links) for one in one_by_one]), links, latency)
        if table is None:
            return some
        route = np.concatenate([some.route, together[table.route]])
        order = np.argsort(route, kind="stable")
        latencies = np.empty(len(src))
        latencies[few], latencies[together] = some.latency, table.latency
        return RouteTable(route[order], np.concatenate([some.link, table.link])[order], latencies)

    def _route_finder(self) -> RouteFinder:
        import numpy as np

        from simulator.cluster.route_table import Neighbours, RouteFinder

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
        levels = [] if dst in self._links[src] else self._with_fewest_hosts(self._shortest_paths(src, dst))
        path = self._choose(src, dst, levels)
        links, here = [], src
        for vertex in path:
            links.append(self._links[here][vertex])
            here = vertex
        latency = fsum([self.latency[link] for link in links])
        return Route(tuple(links), latency, min([self.bandwidth[link] for link in links]))

    def _shortest_paths(self, src: int, dst: int) -> list[set[int]]:
        """The vertices between source and destination that lie on any shortest path, hop by hop.

        Position i of the list holds those i + 1 hops from the source, up to one hop before the destination. The search
        goes on from both ends in turn, on the side whose last level has fewer vertices: from one end it would visit
        every GPU below a core switch.
        """
        ahead, behind = [{src}], [{dst}, self._backward[dst]]
        seen_ahead, seen_behind = {src}, {dst} | behind[1]
        while True:
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
        """Drop from the levels of the search what does not lead to the meeting level."""
        kept = [meet]
        for level in ahead[-2:0:-1]:
            later = kept[-1]
            kept.append({vertex for vertex in level if not self._forward[vertex].isdisjoint(later)})
        return kept[::-1]

    def _with_fewest_hosts(self, levels: list[set[int]]) -> list[set[int]]:
        """Drop from the levels what is on no path with the fewest hosts."""
        if all(self._hosts.isdisjoint(level) for level in levels):
            return levels
        # Most often there is a path without any.
        without = self._connected([level - self._hosts for level in levels])
        return without if all(without) else self._with_few_hosts(levels)

    def _connected(self, levels: list[set[int]]) -> list[set[int]]:
        """Drop what nothing of the level before leads to, or what leads to nothing of the next one."""
        kept = levels[:1]
        for level in levels[1:]:
            before = kept[-1]
            kept.append({vertex for vertex in level if not self._backward[vertex].isdisjoint(before)})
        for place in reversed(range(len(kept) - 1)):
            following = kept[place + 1]
            kept[place] = {vertex for vertex in kept[place] if not self._forward[vertex].isdisjoint(following)}
        return kept

    def _with_few_hosts(self, levels: list[set[int]]) -> list[set[int]]:
        ahead: dict[int, int] = {}
        passed: list[dict[int, int]] = []
        for level in reversed(levels):
            hosts = {v: min([ahead[other] for other in self._forward[v] & ahead.keys()], default=0) for v in level}
            ahead = {vertex: count + (vertex in self._hosts) for vertex, count in hosts.items()}
            passed.append(ahead)
        kept: list[set[int]] = []
        for hosts in reversed(passed):
            reached = hosts if not kept else set[int]().union(*[self._forward[v] for v in kept[-1]]) & hosts.keys()
            fewest = min(hosts[vertex] for vertex in reached)
            kept.append({vertex for vertex in reached if hosts[vertex] == fewest})
        return kept

    def _choose(self, src: int, dst: int, levels: list[set[int]]) -> list[int]:
        """Choose one of the shortest paths by the rule of this module, or by the hash."""
        rest, here, path = self._ordinal[dst], src, []
        for level in levels:
            next_hops = self._forward[here] & level
            if len(next_hops) == 1:
                (here,) = next_hops
            else:
                number = rest if self._seed is None else _mixed((self._seed, src, dst, here))
                rest //= len(next_hops)
                here = sorted(next_hops)[number % len(next_hops)]
            path.append(here)
        path.append(dst)
        return path


def _next(neighbours: list[set[int]], level: set[int], seen: set[int]) -> set[int]:
    """Go one hop on from a level of the search."""
    reached = set[int]().union(*[neighbours[vertex] for vertex in level])
    reached -= seen
    seen |= reached
    return reached


def _ordinals(vertices: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Count each vertex among those of its kind, unless it says its position."""
    counts: dict[Any, int] = {}
    ordinals = []
    for facts in vertices:
        number = counts.get(facts.get("kind"), 0)
        counts[facts.get("kind")] = number + 1
        ordinals.append(int(facts.get("position", number)))
    return tuple(ordinals)


def _mixed(numbers: Iterable[int]) -> int:
    """Hash numbers with splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): the same in every process."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def _mixed_all(seed: int, src: Ints, dst: Ints, here: Ints) -> npt.NDArray[np.uint64]:
    """`_mixed` of (seed, source, destination, fork), shape (routes,)."""
    import numpy as np

    state = np.full(len(src), _mixed([seed]), np.uint64)
    for number in (src, dst, here):
        state = (state ^ number.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
