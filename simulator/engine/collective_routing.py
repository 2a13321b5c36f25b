"""Which links does each transfer take? The router finds routes for every collective in a program.

Equal collectives share results: equal schedules and sizes share traffic whatever the group, equal groups share routes
whatever the size. Routes keep every link for reports and for uncontended rates; engines only watch the links that
matter.

Example: ranks 0 to 3 in nodes (0, 1) and (2, 3) run an all-gather inside each node, then all-reduces (0, 2) and (1, 3)
across nodes.

- The two all-gathers have a common schedule, form a batch and are routed together; the all-reduces form a second batch.
- If the all-reduces share an uplink and can fill it, groups (0, 2) and (1, 3) may contend, and each group gets a lane.
- If every GPU has its own network card, no two collectives contend, and the whole stream gets a single lane.

Flows of a collective with a priority p are counted in units of p bytes: on each link a unit takes p times the capacity
of a byte, and equal shares of units give the flow p times the rate of a flow without priority. Solvers of fair shares
therefore know nothing of priorities.

Two collectives in a lane never contend. A rank runs one collective per stream at a time; the lane states that this is
enough to keep their flows apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.caps import HBM_PER_REDUCED_BYTE, nodes_of, rate_caps
from simulator.cluster.cluster import Cluster
from simulator.cluster.route_table import RouteTable
from simulator.engine.link_pruning import PotentialFlows, all_links, prune_links
from simulator.engine.path import Path
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.operation import Collective, ElementSizes, RateCaps
from simulator.records.schedule import Schedule
from simulator.records.timeline import RouteLinks
from simulator.records.transfers import Transfers


@dataclass(frozen=True, eq=False)
class RoutedCollective:
    """A collective operation with the network route of each transfer."""

    traffic: Traffic  # transfers and bytes
    routes: Routes  # routes of the traffic
    vertices: tuple[str, ...]  # vertex of each participant
    # Capacity of the fabric's links [B/s]; shape (links,).
    capacity: Sequence[float]
    hbm: int  # first link number that stands for HBM
    contends: bool = True  # True if its own flows can hold each other back
    # Collectives of one lane never contend with each other; -1 for a collective that may contend with any other.
    lane: int = 0
    wide_lane: bool = False  # True if the lane has all collectives of the stream, whatever their groups
    priority: float = 1.0  # bytes in a unit of its flows
    # For each further set of links in `Cluster.avoided`, the routes while these links are avoided.
    detours: tuple[Routes, ...] = ()

    @property
    def every_routes(self) -> tuple[Routes, ...]:
        """Return the usual routes, then those around each set of avoided links."""
        return (self.routes, *self.detours)

    @property
    def transfers(self) -> Transfers:
        """Every transfer in the collective, written out from the rounds."""
        return self.traffic.transfers

    @property
    def nbytes(self) -> Floats:
        """Bytes carried by each transfer [B]."""
        return self.traffic.nbytes

    @property
    def units(self) -> Floats:
        """Units carried by each transfer: its bytes over the priority; `routes` has rates in units per second."""
        return in_units(self.nbytes, self.priority)

    @property
    def route_of(self) -> npt.NDArray[np.int32]:
        """Number of the route taken by each transfer: a row in `paths` and `links`."""
        return self.traffic.route_of

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """For each route a Path: latency, rate, and the links where flows can contend."""
        return self.routes.paths(self.capacity)

    @cached_property
    def detour_paths(self) -> tuple[tuple[Path, ...], ...]:
        """Return the paths of the usual routes, then of the routes around each set of avoided links."""
        return (self.paths, *(routes.paths(self.capacity) for routes in self.detours))

    @cached_property
    def links(self) -> RouteLinks:
        """Every cluster link on each route, HBM excluded; the usual routes come first, then all detours."""
        routes = np.concatenate(
            [routes_of_set.route + k * len(self.routes) for k, routes_of_set in enumerate(self.every_routes)]
        )
        links = np.concatenate([routes_of_set.link for routes_of_set in self.every_routes])
        on_fabric = links < self.hbm
        begin = np.searchsorted(routes[on_fabric], np.arange(len(self.every_routes) * len(self.routes) + 1))
        return RouteLinks(begin, links[on_fabric])


class _Kind(NamedTuple):
    """Cache key of a collective's routes: equal for collectives that differ only in size."""

    schedule: int
    group: tuple[int, ...]
    auxiliaries: tuple[str, ...]
    stream: str
    caps: RateCaps
    priority: float


def in_units(nbytes: Floats, priority: float) -> Floats:
    """Return numbers of bytes in units of `priority` bytes; the same array without priority."""
    return nbytes if priority == 1.0 else nbytes / priority


def capacities(cluster: Cluster) -> list[float]:
    """Return link capacities [B/s]: the cluster's links by number, then each rank's HBM bandwidth as a further link."""
    hbm = [cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size)]
    return [float(b) for b in cluster.router.bandwidth] + hbm


def route_collectives(
    cluster: Cluster,
    collectives: Sequence[Collective],
    capacity: Sequence[float],
    *,
    times: Sequence[int] | None = None,
    watch_all: bool = False,
) -> list[RoutedCollective]:
    """Return each collective in a program with the transfers' network routes.

    Parameters
    ----------
    cluster : Cluster
        The links.
    collectives : sequence of Collective
        Collectives with simulated transfers.
    capacity : sequence of float, shape (links,)
        Capacity of the fabric's links [B/s].
    times : sequence of int, optional
        Number of collectives that each entry stands for; 1 by default.
    watch_all : bool
        True: flows meet on every link. False: only on links kept by `prune_links`.
    """
    each = [1] * len(collectives) if times is None else times
    return _CollectiveRouter(cluster, capacity).route_collectives(collectives, each, watch_all=watch_all)


@dataclass(frozen=True, slots=True)
class _Together:
    """Routes and contention for a program's collectives: results that depend on the collectives together."""

    schedules: Sequence[Schedule]  # schedules of all kinds, kept alive because their ids are keys
    routes: Mapping[_Kind, Routes]  # routes with the links that matter
    # True if the kind's own flows can hold each other back; absent if no flow of the kind can be held back
    contends: Mapping[_Kind, bool]
    lanes: Mapping[_Kind, tuple[int, bool]]  # number of the lane, and whether it has all collectives of its stream
    detours: Mapping[_Kind, tuple[Routes, ...]]  # routes around each set of avoided links

    def size(self) -> int:
        """Approximate count of stored numbers: the cache entry's size."""
        return sum(64 + 3 * len(routes.link) for routes in [*self.routes.values(), *chain(*self.detours.values())])


@dataclass(slots=True)
class _CollectiveRouter:
    """Routes collectives; caches traffic and routes for equal collectives."""

    cluster: Cluster
    capacity: Sequence[float]
    _traffics: dict[tuple[int, int, ElementSizes], Traffic] = field(default_factory=dict)
    _contending: dict[bytes, bool] = field(default_factory=dict)

    def route_collectives(
        self, collectives: Sequence[Collective], each: Sequence[int], *, watch_all: bool
    ) -> list[RoutedCollective]:
        """Return each of the collectives with its routes; entry i stands for `each[i]` equal collectives."""
        kinds = [_kind(op) for op in collectives]
        times: Counter[_Kind] = Counter()
        for kind, count in zip(kinds, each, strict=True):
            times[kind] += count
        ops = dict(zip(kinds, collectives, strict=True))
        # The cached result keeps the schedules alive: the key contains their ids.
        together = self.cluster.remember_routes(
            (_Together, tuple(times.items()), tuple(self.capacity), watch_all),
            lambda: self._together(ops, times, watch_all=watch_all),
            _Together.size,
        )
        by_kind: dict[tuple[_Kind, int], RoutedCollective] = {}
        routed = []
        for op, kind in zip(collectives, kinds, strict=True):
            # Equal kinds with equal traffic share a single object.
            key = kind, id(self._traffic(op))
            if key not in by_kind:
                hbm = len(self.capacity) - self.cluster.world_size
                by_kind[key] = RoutedCollective(
                    self._traffic(op),
                    together.routes[kind],
                    _vertices(self.cluster, op),
                    self.capacity,
                    hbm,
                    together.contends.get(kind, False),
                    *together.lanes.get(kind, (0, True)),
                    kind.priority,
                    together.detours.get(kind, ()),
                )
            routed.append(by_kind[key])
        return routed

    def _together(self, ops: Mapping[_Kind, Collective], times: Mapping[_Kind, int], *, watch_all: bool) -> _Together:
        """Return the routes for the collectives `ops`, and the collectives whose flows can hold each other back."""
        bandwidth = np.array(self.capacity)
        batches = _batches(ops, times)
        every = [self._route(batch, bandwidth) for batch in batches]
        # Pruning looks at the whole program: a link matters only if flows can meet there.
        # A detour may bring flows together on any link.
        rerouted = len(self.cluster.avoided) > 1
        watched = all_links(every) if watch_all or rerouted else prune_links(every, bandwidth)
        # A link that slows down may become the bottleneck of any flow on it.
        changing = np.fromiter(self.cluster.changing_links, np.int64, len(self.cluster.changing_links))
        if len(changing):
            watched = [
                watched_links | np.isin(flows.routes.link, changing)
                for watched_links, flows in zip(watched, every, strict=True)
            ]
        potential: dict[_Kind, PotentialFlows] = {}
        for batch, together, matters in zip(batches, every, watched, strict=True):
            flows_of_kinds = replace(together, routes=together.routes.kept(matters)).apart(len(batch.ops))
            potential |= zip(batch.kinds, flows_of_kinds, strict=True)
        # A program with a single collective needs no second check: pruning found the answer already.
        contends = {
            kind: rerouted
            or (len(potential) == flows.times == 1 and not watch_all)
            or (len(changing) > 0 and bool(np.isin(flows.routes.link, changing).any()))
            or self._contend([flows], bandwidth)
            for kind, flows in potential.items()
            if flows.routes.can_contend
        }
        lanes = self._lanes(batches, every, potential, contends, bandwidth)
        routes = {kind: flows.routes for kind, flows in potential.items()}
        return _Together(
            [op.schedule for op in ops.values()], routes, contends, lanes, self._detours(batches, bandwidth)
        )

    def _detours(self, batches: Sequence[_Batch], bandwidth: Floats) -> dict[_Kind, tuple[Routes, ...]]:
        """Return the routes around each set of avoided links, on which all links are watched."""
        detours: dict[_Kind, tuple[Routes, ...]] = {}
        for avoided in self.cluster.avoided[1:]:
            for batch in batches:
                flows = self._route(batch, bandwidth, avoided)
                every = replace(flows, routes=flows.routes.kept(np.ones(len(flows.routes.link), np.bool_)))
                for kind, flows_of_kind in zip(batch.kinds, every.apart(len(batch.ops)), strict=True):
                    detours[kind] = (*detours.get(kind, ()), flows_of_kind.routes)
        return detours

    def _contend(self, kinds: Sequence[PotentialFlows], bandwidth: Floats, *, several: bool = False) -> bool:
        """Return True if flows of the given collectives can hold each other back on links, each collective taken once.

        Results are cached. A thousand equal nodes have routes that differ only in link numbers, and share an entry.
        """
        # A single flow meets no other.
        if len(kinds) == 1 and not several and int(kinds[0].flows.sum()) == 1:
            return False
        links, place = np.unique(np.concatenate([flows.routes.link for flows in kinds]), return_inverse=True)
        if several or len(kinds) > 1:
            return self._meet(kinds, links, place, bandwidth)
        (flows,) = kinds
        # The cache key renumbers links and ranks: only equality between them matters, and which ends are no ranks.
        ends = np.concatenate([flows.src, flows.dst])
        who, routes = np.unique(ends, return_inverse=True)[1], flows.routes
        columns = (
            place,
            bandwidth[links],
            routes.route,
            routes.weight,
            routes.rate,
            flows.flows,
            flows.low,
            flows.high,
            who,
            ends < 0,
        )
        digest = sha256(repr([len(column) for column in columns]).encode())
        for column in columns:
            digest.update(np.ascontiguousarray(column).tobytes())
        key = digest.digest()
        if key not in self._contending:
            self._contending[key] = self._meet(kinds, links, place, bandwidth)
        return self._contending[key]

    @staticmethod
    def _meet(kinds: Sequence[PotentialFlows], links: Ints, place: Ints, bandwidth: Floats) -> bool:
        """Return True if a link can be the bottleneck of two flows of the given collectives.

        `place` is, for each pair of route and link in turn, the link's index in `links`.
        """
        # Split the renumbered links back into kinds.
        cuts = np.cumsum([len(flows.routes.link) for flows in kinds])[:-1]
        # Links are renumbered to the used ones: a cluster may have a hundred thousand.
        renumbered = [
            replace(flows, routes=replace(flows.routes, link=used), times=1)
            for flows, used in zip(kinds, np.split(place, cuts), strict=True)
        ]
        return any(bool(matters.any()) for matters in prune_links(renumbered, bandwidth[links]))

    def _lanes(
        self,
        batches: Sequence[_Batch],
        every: Sequence[PotentialFlows],
        potential: Mapping[_Kind, PotentialFlows],
        contends: Mapping[_Kind, bool],
        bandwidth: Floats,
    ) -> dict[_Kind, tuple[int, bool]]:
        """Return, by cache key, a collective's lane number, and whether the lane has every collective on its stream.

        Collectives in a lane never contend. A rank runs one collective per stream at a time. If this suffices to keep
        flows apart, the whole stream forms a lane; otherwise each group does. Collectives with a server or a switch get
        no lane (-1), because a server may take part in several collectives at once.
        """
        lanes: dict[_Kind, tuple[int, bool]] = {}
        streams: dict[str, list[_Kind]] = {}
        flows: dict[str, list[PotentialFlows]] = {}
        for batch, together in zip(batches, every, strict=True):
            routed = [kind for kind in batch.kinds if kind in contends]
            # Eligible kinds: no servers or switches, and no contention with themselves.
            lane = [kind for kind in routed if not kind.auxiliaries and not contends[kind]]
            lanes |= {kind: (-1, False) for kind in routed if kind.auxiliaries or contends[kind]}
            if lane:
                streams.setdefault(lane[0].stream, []).extend(lane)
                # A complete batch is checked at once, without splitting.
                full = len(lane) == len(batch.kinds)
                flows.setdefault(lane[0].stream, []).extend([together] if full else [potential[kind] for kind in lane])
        for stream, kinds in streams.items():
            if len(kinds) == 1 or not self._contend(flows[stream], bandwidth, several=True):
                lanes |= dict.fromkeys(kinds, (len(lanes), True))
                continue
            # The stream's groups can contend. A group's own collectives still follow each other, hence a lane per
            # group.
            groups: dict[tuple[int, ...], list[_Kind]] = {}
            for kind in kinds:
                groups.setdefault(kind.group, []).append(kind)
            for lane in groups.values():
                if len(lane) == 1 or not self._contend([potential[kind] for kind in lane], bandwidth):
                    lanes |= dict.fromkeys(lane, (len(lanes), False))
                else:
                    lanes |= {kind: (len(lanes) + place, False) for place, kind in enumerate(lane)}
        return lanes

    def _traffic(self, op: Collective) -> Traffic:
        """Return a collective's transfers and bytes, cached by schedule and sizes."""
        # Traffic depends on schedule and sizes, not on the group.
        key = id(op.schedule), op.elements, op.sizes
        if key not in self._traffics:
            self._traffics[key] = self.cluster.remember(
                (Traffic, *key),
                lambda: Traffic(op.schedule, op.elements, op.sizes),
                lambda traffic: 64 + 4 * len(traffic.route_keys),
            )
        return self._traffics[key]

    def _route(self, batch: _Batch, bandwidth: Floats, avoided: frozenset[int] = frozenset()) -> PotentialFlows:
        """Return the flows that a batch of collectives can have in flight, with their routes around `avoided` links;
        cached on the cluster.
        """
        # The cached pair keeps the schedule alive: the key contains its id.
        _, flows = self.cluster.remember_routes(
            (PotentialFlows, avoided, *batch.kinds),
            lambda: (batch.ops[0].schedule, self._potential_flows(batch.ops, bandwidth, avoided)),
            lambda entry: 5 * len(entry[1].routes.link),
        )
        return replace(flows, times=batch.times)

    def _potential_flows(self, ops: Sequence[Collective], bandwidth: Floats, avoided: frozenset[int]) -> PotentialFlows:
        """Return the flows that collectives can have in flight; the collectives `ops` differ only in process groups.

        Flows are concatenated in the order of `ops`; `bandwidth` is by link [B/s].
        """
        first, count = ops[0], len(ops)
        traffic, ranks = self._traffic(first), len(first.group)
        src, dst, reduce = traffic.route_keys.T
        routes = len(src)
        table = self._links_of([_vertices(self.cluster, op) for op in ops], np.stack([src, dst]), avoided)
        groups = np.array([op.group for op in ops], np.int64)
        # A reduction at a rank also takes the rank's HBM: append HBM links to these routes.
        here = np.flatnonzero((reduce == 1) & (dst < ranks))
        adding = (np.arange(count)[:, None] * routes + here).ravel()
        hbm = (len(bandwidth) - self.cluster.world_size + groups[:, dst[here]]).ravel()
        # Stable: within a route, HBM follows the links.
        order = np.argsort(np.concatenate([table.route, adding]), kind="stable")
        route, link = np.concatenate([table.route, adding])[order], np.concatenate([table.link, hbm])[order]
        weight = np.concatenate([np.ones(len(order) - len(adding)), np.full(len(adding), HBM_PER_REDUCED_BYTE)])[order]
        weight *= first.priority
        node_of, participants = self.cluster.node_of(), ranks + len(first.auxiliaries)
        rate = np.concatenate(
            [
                rate_caps(nodes_of(node_of, op.group, participants), src, dst, op.caps.inside, op.caps.across)
                for op in ops
            ]
        )
        # The uncontended rate is the tightest of cap and links, in units.
        rate /= first.priority
        np.minimum.at(rate, route, bandwidth[link] / weight)
        kept_routes = Routes(route, link, weight, table.latency, rate, np.zeros(len(route), np.bool_))
        # Ends are rank numbers; servers and switches get -1, -2, ...
        ends = np.tile(-1 - np.arange(participants) + ranks, (count, 1))
        ends[:, :ranks] = groups
        low, high, flows = traffic.channels
        # Channels are private: shift the numbers so that two collectives never share a channel.
        channel = (int(high.max(initial=-1)) + 1) * np.repeat(np.arange(count), routes)
        low, high, flows = np.tile(low, count) + channel, np.tile(high, count) + channel, np.tile(flows, count)
        return PotentialFlows(
            kept_routes, low, high, flows, ends[:, src].ravel(), ends[:, dst].ravel(), first.stream, 1
        )

    def _links_of(self, vertices: Sequence[tuple[str, ...]], pairs: Ints, avoided: frozenset[int]) -> RouteTable:
        """Return the routes between the given pairs of participants around the `avoided` links, for each process
        group's vertices in turn.
        """
        router = self.cluster.router
        every = np.array([[router.index[vertex] for vertex in group] for group in vertices], np.int64)
        numbers = np.stack([every[:, pairs[0]].ravel(), every[:, pairs[1]].ravel()])
        return self.cluster.remember_routes(
            (RouteTable, avoided, numbers.tobytes()),
            lambda: router.routes_around(numbers[0], numbers[1], avoided) if avoided else router.routes(*numbers),
            lambda table: 2 * len(table.link),
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Collectives routed together: they differ only in process groups, without a common rank; or a single one."""

    kinds: Sequence[_Kind]  # keys of the collectives
    ops: Sequence[Collective]
    times: int  # how often the single collective occurs; without meaning for several


def _batches(ops: Mapping[_Kind, Collective], times: Mapping[_Kind, int]) -> list[_Batch]:
    """Group collectives, given by cache key with their occurrences `times`, into batches that are routed together.

    A server or switch may take part in several collectives, therefore these stay single. Only for them the number of
    occurrences matters.
    """
    batches: dict[object, list[_Kind]] = {}
    depth: dict[tuple[object, int], int] = {}
    for kind in ops:
        # With servers or switches: a batch of its own.
        traits: tuple[object, ...] = (kind,)
        if not kind.auxiliaries:
            traits = kind.schedule, kind.stream, kind.caps, kind.priority
            # Depth is one more than the largest depth among the group's ranks. Two groups at equal depth therefore have
            # no common rank.
            level = 1 + max(depth.get((traits, rank), 0) for rank in kind.group)
            depth |= dict.fromkeys([(traits, rank) for rank in kind.group], level)
            traits = *traits, level
        batches.setdefault(traits, []).append(kind)
    return [_Batch(kinds, [ops[kind] for kind in kinds], times[kinds[0]]) for kinds in batches.values()]


def _vertices(cluster: Cluster, op: Collective) -> tuple[str, ...]:
    """Return the cluster vertex for each participant in a collective: ranks, then servers and switches."""
    return tuple(cluster.ranks[rank] for rank in op.group) + op.auxiliaries


def _kind(op: Collective) -> _Kind:
    """Return a collective's cache key for routes, equal for collectives that differ only in size."""
    return _Kind(id(op.schedule), op.group, op.auxiliaries, op.stream, op.caps, op.priority)
