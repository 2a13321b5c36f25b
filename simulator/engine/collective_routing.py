"""Which links each transfer of a program's collectives takes.

Rule: collectives that are alike share what is worked out for them: the same traffic whatever their groups, the same
routes whatever their sizes. Routes keep all their links for the books; rates are taken over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.cluster import Cluster
from simulator.cluster.route_table import RouteTable
from simulator.collectives.caps import nodes_of, rate_caps
from simulator.collectives.reduction import HBM_PER_REDUCED_BYTE
from simulator.engine.link_pruning import PotentialFlows, all_links, prune_links
from simulator.engine.path import Path
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.program import Collective
from simulator.records.timeline import RouteLinks
from simulator.records.transfers import Transfers


@dataclass(frozen=True, eq=False)
class RoutedCollective:
    """One collective with the routes of its transfers.

    Attributes
    ----------
    traffic : Traffic
    routes : Routes
        Where the traffic goes.
    vertices : tuple of str
        Of the participants.
    capacity : sequence of float
        Of the fabric's links [B/s].
    hbm : int
        From which number on links are ranks' HBM.
    contends : bool
        Whether its own flows can hold each other back.
    lane : int
        Flows of collectives of one lane never hold each other back; -1 for one that may meet any other.
    wide_lane : bool
        Whether this lane has all collectives of its stream, whatever their groups.
    """

    traffic: Traffic
    routes: Routes
    vertices: tuple[str, ...]
    capacity: Sequence[float]
    hbm: int
    contends: bool = True
    lane: int = 0
    wide_lane: bool = False

    @property
    def transfers(self) -> Transfers:
        """All of them, written out."""
        return self.traffic.transfers

    @property
    def nbytes(self) -> Floats:
        """Of each transfer [B]."""
        return self.traffic.nbytes

    @property
    def route_of(self) -> npt.NDArray[np.int32]:
        """Row of `paths` and `links` of each transfer."""
        return self.traffic.route_of

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """By route, with only the links on which flows can meet."""
        return self.routes.paths(self.capacity)

    @cached_property
    def links(self) -> RouteLinks:
        """By route all links of the cluster."""
        there = self.routes.link < self.hbm
        begin = np.searchsorted(self.routes.route[there], np.arange(len(self.routes) + 1))
        return RouteLinks(begin, self.routes.link[there])


class _Kind(NamedTuple):
    """Collectives for which everything is alike but their sizes."""

    schedule: int
    group: tuple[int, ...]
    auxiliaries: tuple[str, ...]
    stream: str
    rate_cap: float
    cross_rate_cap: float


def capacities(cluster: Cluster) -> list[float]:
    """Every link's bandwidth, then every rank's HBM bandwidth [B/s]: the fabric's links by number."""
    hbm = [cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size)]
    return [float(b) for b in cluster.router.bandwidth] + hbm


def route_collectives(
    cluster: Cluster, collectives: Sequence[Collective], capacity: Sequence[float], *, watch_all: bool = False
) -> list[RoutedCollective]:
    """Find the routes of every collective of a program.

    Parameters
    ----------
    cluster : Cluster
    collectives : sequence of Collective
    capacity : sequence of float
        Of the fabric's links [B/s].
    watch_all : bool
        Whether flows meet on every link that they take; otherwise only where `prune_links` says that they can.
    """
    return _CollectiveRouter(cluster, capacity).route_collectives(collectives, watch_all=watch_all)


@dataclass(slots=True)
class _CollectiveRouter:
    """Routes collectives, and keeps traffic and routes for those that are alike."""

    cluster: Cluster
    capacity: Sequence[float]
    _traffics: dict[tuple[int, int, int, int], Traffic] = field(default_factory=dict)
    _contending: dict[bytes, bool] = field(default_factory=dict)

    def route_collectives(self, collectives: Sequence[Collective], *, watch_all: bool) -> list[RoutedCollective]:
        bandwidth = np.array(self.capacity)
        times = Counter(map(_kind, collectives))
        potential: dict[_Kind, PotentialFlows] = {}
        for op in collectives:
            if _kind(op) not in potential:
                potential[_kind(op)] = self._route(op, times[_kind(op)], bandwidth)
        every = list(potential.values())
        watched = all_links(every) if watch_all else prune_links(every, bandwidth)
        routes = {
            kind: one.routes.kept(matters) for (kind, one), matters in zip(potential.items(), watched, strict=True)
        }
        contends = {
            # Where there is no other, the whole program's answer is that for itself.
            kind: (len(every) == one.times == 1 and not watch_all) or self._contend([one], bandwidth)
            for kind, one in potential.items()
            if routes[kind].can_contend
        }
        lanes = self._lanes(potential, contends, bandwidth)
        made: dict[tuple[_Kind, int], RoutedCollective] = {}
        routed = []
        for op in collectives:
            key = _kind(op), id(self._traffic(op))
            if key not in made:
                hbm = len(self.capacity) - self.cluster.world_size
                made[key] = RoutedCollective(
                    self._traffic(op),
                    routes[key[0]],
                    _vertices(self.cluster, op),
                    self.capacity,
                    hbm,
                    contends.get(key[0], False),
                    *lanes.get(key[0], (0, True)),
                )
            routed.append(made[key])
        return routed

    def _contend(self, kinds: Sequence[PotentialFlows], bandwidth: Floats) -> bool:
        """Whether flows can hold each other back where there are no other collectives, and one of each kind.

        Groups of a thousand nodes that are alike have routes that differ in the numbers of links alone.
        """
        links, place = np.unique(np.concatenate([one.routes.link for one in kinds]), return_inverse=True)
        if len(kinds) > 1:
            return self._meet(kinds, links, place, bandwidth)
        (one,) = kinds
        # Of links and ranks it only matters which of them are the same, and which are no ranks.
        ends = np.concatenate([one.src, one.dst])
        who, own = np.unique(ends, return_inverse=True)[1], one.routes
        columns = (
            place,
            bandwidth[links],
            own.route,
            own.weight,
            own.rate,
            one.flows,
            one.low,
            one.high,
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
        cuts = np.cumsum([len(one.routes.link) for one in kinds])[:-1]
        # Among the links that they take: a cluster may have a hundred thousand.
        alone = [
            replace(one, routes=replace(one.routes, link=own), times=1)
            for one, own in zip(kinds, np.split(place, cuts), strict=True)
        ]
        return any(bool(matters.any()) for matters in prune_links(alone, bandwidth[links]))

    def _lanes(
        self, potential: Mapping[_Kind, PotentialFlows], contends: Mapping[_Kind, bool], bandwidth: Floats
    ) -> dict[_Kind, tuple[int, bool]]:
        """Numbers of lanes, and whether each is of all kinds of its stream: kinds that never contend with each other.

        A rank is in one collective of a stream at a time, so all kinds of a stream make a lane where that is enough,
        otherwise those of one group. A server or a switch may be in several at once.
        """
        lanes: dict[_Kind, tuple[int, bool]] = {}
        streams: dict[str, list[_Kind]] = {}
        for kind in contends:
            if kind.auxiliaries or contends[kind]:
                lanes[kind] = -1, False
            else:
                streams.setdefault(kind.stream, []).append(kind)
        for kinds in streams.values():
            if not self._contend([potential[kind] for kind in kinds], bandwidth):
                lanes |= dict.fromkeys(kinds, (len(lanes), True))
                continue
            groups: dict[tuple[int, ...], list[_Kind]] = {}
            for kind in kinds:
                groups.setdefault(kind.group, []).append(kind)
            for own in groups.values():
                if len(own) == 1 or not self._contend([potential[kind] for kind in own], bandwidth):
                    lanes |= dict.fromkeys(own, (len(lanes), False))
                else:
                    lanes |= {kind: (len(lanes) + place, False) for place, kind in enumerate(own)}
        return lanes

    def _traffic(self, op: Collective) -> Traffic:
        sizes = op.elements, op.itemsize, op.reduce_itemsize
        key = (id(op.schedule), *sizes)
        if key not in self._traffics:
            self._traffics[key] = self.cluster.remember((Traffic, *key), lambda: Traffic(op.schedule, *sizes))
        return self._traffics[key]

    def _route(self, op: Collective, times: int, bandwidth: Floats) -> PotentialFlows:
        # What is kept has the schedule too, whose id is in the key.
        _, flows = self.cluster.remember(
            (PotentialFlows, _kind(op)), lambda: (op.schedule, self._potential_flows(op, bandwidth))
        )
        return replace(flows, times=times)

    def _potential_flows(self, op: Collective, bandwidth: Floats) -> PotentialFlows:
        traffic, ranks = self._traffic(op), len(op.group)
        src, dst, reduce = traffic.route_keys.T
        table = self._links_of(_vertices(self.cluster, op), np.stack([src, dst]))
        adding = np.flatnonzero((reduce == 1) & (dst < ranks))
        group = np.array(op.group, np.int64)
        hbm = len(bandwidth) - self.cluster.world_size + group[dst[adding]]
        order = np.argsort(np.concatenate([table.route, adding]), kind="stable")
        route, link = np.concatenate([table.route, adding])[order], np.concatenate([table.link, hbm])[order]
        weight = np.concatenate([np.ones(len(order) - len(adding)), np.full(len(adding), HBM_PER_REDUCED_BYTE)])[order]
        nodes = nodes_of(self.cluster.node_of(), op.group, ranks + len(op.auxiliaries))
        rate = rate_caps(nodes, src, dst, op.rate_cap, op.cross_rate_cap)
        np.minimum.at(rate, route, bandwidth[link] / weight)
        routes = Routes(route, link, weight, table.latency, rate, np.zeros(len(route), np.bool_))
        ends = np.concatenate([group, -1 - np.arange(len(op.auxiliaries))])
        return PotentialFlows(routes, *traffic.channels, ends[src], ends[dst], op.stream, 1)

    def _links_of(self, vertices: tuple[str, ...], pairs: Ints) -> RouteTable:
        router = self.cluster.router
        numbers = np.array([router.index[vertex] for vertex in vertices], np.int64)[pairs]
        return self.cluster.remember((RouteTable, numbers.tobytes()), lambda: router.routes(*numbers))


def _vertices(cluster: Cluster, op: Collective) -> tuple[str, ...]:
    return tuple(cluster.ranks[rank] for rank in op.group) + op.auxiliaries


def _kind(op: Collective) -> _Kind:
    return _Kind(id(op.schedule), op.group, op.auxiliaries, op.stream, op.rate_cap, op.cross_rate_cap)
