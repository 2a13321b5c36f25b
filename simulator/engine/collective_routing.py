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
from simulator.cluster.caps import HBM_PER_REDUCED_BYTE, nodes_of, rate_caps
from simulator.cluster.cluster import Cluster
from simulator.cluster.route_table import RouteTable
from simulator.engine.link_pruning import PotentialFlows, all_links, prune_links
from simulator.engine.path import Path
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.operation import Collective
from simulator.records.schedule import Schedule
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
    cluster: Cluster,
    collectives: Sequence[Collective],
    capacity: Sequence[float],
    *,
    times: Sequence[int] | None = None,
    watch_all: bool = False,
) -> list[RoutedCollective]:
    """Find the routes of every collective of a program.

    Parameters
    ----------
    cluster : Cluster
    collectives : sequence of Collective
    capacity : sequence of float
        Of the fabric's links [B/s].
    times : sequence of int, optional
        How many collectives of the program each stands for; one where it is left out.
    watch_all : bool
        Whether flows meet on every link that they take; otherwise only where `prune_links` says that they can.
    """
    each = [1] * len(collectives) if times is None else times
    return _CollectiveRouter(cluster, capacity).route_collectives(collectives, each, watch_all=watch_all)


@dataclass(frozen=True, slots=True)
class _Together:
    """What follows from all collectives of a program together.

    Attributes
    ----------
    schedules : sequence of Schedule
        Of all kinds.
    routes : mapping of _Kind to Routes
    contends : mapping of _Kind to bool
        Whether its own flows can hold each other back; none for kinds none of whose flows can be held back.
    lanes : mapping of _Kind to (int, bool)
        Numbers of lanes, and whether each has all collectives of its stream.
    """

    schedules: Sequence[Schedule]
    routes: Mapping[_Kind, Routes]
    contends: Mapping[_Kind, bool]
    lanes: Mapping[_Kind, tuple[int, bool]]

    def size(self) -> int:
        """Numbers that it holds, about."""
        return sum(64 + 3 * len(one.link) for one in self.routes.values())


@dataclass(slots=True)
class _CollectiveRouter:
    """Routes collectives, and keeps traffic and routes for those that are alike."""

    cluster: Cluster
    capacity: Sequence[float]
    _traffics: dict[tuple[int, int, int, int], Traffic] = field(default_factory=dict)
    _contending: dict[bytes, bool] = field(default_factory=dict)

    def route_collectives(
        self, collectives: Sequence[Collective], each: Sequence[int], *, watch_all: bool
    ) -> list[RoutedCollective]:
        kinds = [_kind(op) for op in collectives]
        times: Counter[_Kind] = Counter()
        for kind, count in zip(kinds, each, strict=True):
            times[kind] += count
        ops = dict(zip(kinds, collectives, strict=True))
        # What is kept has the schedules too, whose ids are in the key.
        together = self.cluster.remember_routes(
            (_Together, tuple(times.items()), tuple(self.capacity), watch_all),
            lambda: self._together(ops, times, watch_all=watch_all),
            _Together.size,
        )
        made: dict[tuple[_Kind, int], RoutedCollective] = {}
        routed = []
        for op, kind in zip(collectives, kinds, strict=True):
            key = kind, id(self._traffic(op))
            if key not in made:
                hbm = len(self.capacity) - self.cluster.world_size
                made[key] = RoutedCollective(
                    self._traffic(op),
                    together.routes[kind],
                    _vertices(self.cluster, op),
                    self.capacity,
                    hbm,
                    together.contends.get(kind, False),
                    *together.lanes.get(kind, (0, True)),
                )
            routed.append(made[key])
        return routed

    def _together(self, ops: Mapping[_Kind, Collective], times: Mapping[_Kind, int], *, watch_all: bool) -> _Together:
        """Where collectives of a program go, and which of them can hold each other back."""
        bandwidth = np.array(self.capacity)
        batches = _batches(ops, times)
        every = [self._route(batch, bandwidth) for batch in batches]
        watched = all_links(every) if watch_all else prune_links(every, bandwidth)
        potential: dict[_Kind, PotentialFlows] = {}
        for batch, together, matters in zip(batches, every, watched, strict=True):
            apart = replace(together, routes=together.routes.kept(matters)).apart(len(batch.ops))
            potential |= zip(batch.kinds, apart, strict=True)
        contends = {
            # Where there is no other, the whole program's answer is that for itself.
            kind: (len(potential) == one.times == 1 and not watch_all) or self._contend([one], bandwidth)
            for kind, one in potential.items()
            if one.routes.can_contend
        }
        lanes = self._lanes(batches, every, potential, contends, bandwidth)
        routes = {kind: one.routes for kind, one in potential.items()}
        return _Together([op.schedule for op in ops.values()], routes, contends, lanes)

    def _contend(self, kinds: Sequence[PotentialFlows], bandwidth: Floats, *, several: bool = False) -> bool:
        """Whether flows can hold each other back where there are no other collectives, and one of each kind.

        Groups of a thousand nodes that are alike have routes that differ in the numbers of links alone.
        """
        if len(kinds) == 1 and not several and int(kinds[0].flows.sum()) == 1:
            return False
        links, place = np.unique(np.concatenate([one.routes.link for one in kinds]), return_inverse=True)
        if several or len(kinds) > 1:
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
        self,
        batches: Sequence[_Batch],
        every: Sequence[PotentialFlows],
        potential: Mapping[_Kind, PotentialFlows],
        contends: Mapping[_Kind, bool],
        bandwidth: Floats,
    ) -> dict[_Kind, tuple[int, bool]]:
        """Numbers of lanes, and whether each is of all kinds of its stream: kinds that never contend with each other.

        A rank is in one collective of a stream at a time, so all kinds of a stream make a lane where that is enough,
        otherwise those of one group. A server or a switch may be in several at once.
        """
        lanes: dict[_Kind, tuple[int, bool]] = {}
        streams: dict[str, list[_Kind]] = {}
        flows: dict[str, list[PotentialFlows]] = {}
        for batch, together in zip(batches, every, strict=True):
            there = [kind for kind in batch.kinds if kind in contends]
            own = [kind for kind in there if not kind.auxiliaries and not contends[kind]]
            lanes |= {kind: (-1, False) for kind in there if kind.auxiliaries or contends[kind]}
            if own:
                streams.setdefault(own[0].stream, []).extend(own)
                whole = len(own) == len(batch.kinds)
                flows.setdefault(own[0].stream, []).extend([together] if whole else [potential[kind] for kind in own])
        for stream, kinds in streams.items():
            if len(kinds) == 1 or not self._contend(flows[stream], bandwidth, several=True):
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
            self._traffics[key] = self.cluster.remember(
                (Traffic, *key), lambda: Traffic(op.schedule, *sizes), lambda made: 64 + 4 * len(made.route_keys)
            )
        return self._traffics[key]

    def _route(self, batch: _Batch, bandwidth: Floats) -> PotentialFlows:
        # What is kept has the schedule too, whose id is in the key.
        _, flows = self.cluster.remember_routes(
            (PotentialFlows, *batch.kinds),
            lambda: (batch.ops[0].schedule, self._potential_flows(batch.ops, bandwidth)),
            lambda made: 5 * len(made[1].routes.link),
        )
        return replace(flows, times=batch.times)

    def _potential_flows(self, ops: Sequence[Collective], bandwidth: Floats) -> PotentialFlows:
        """Of collectives that differ in their groups alone, those of one behind those of the other."""
        first, count = ops[0], len(ops)
        traffic, ranks = self._traffic(first), len(first.group)
        src, dst, reduce = traffic.route_keys.T
        routes = len(src)
        table = self._links_of([_vertices(self.cluster, op) for op in ops], np.stack([src, dst]))
        groups = np.array([op.group for op in ops], np.int64)
        here = np.flatnonzero((reduce == 1) & (dst < ranks))
        adding = (np.arange(count)[:, None] * routes + here).ravel()
        hbm = (len(bandwidth) - self.cluster.world_size + groups[:, dst[here]]).ravel()
        order = np.argsort(np.concatenate([table.route, adding]), kind="stable")
        route, link = np.concatenate([table.route, adding])[order], np.concatenate([table.link, hbm])[order]
        weight = np.concatenate([np.ones(len(order) - len(adding)), np.full(len(adding), HBM_PER_REDUCED_BYTE)])[order]
        node_of, participants = self.cluster.node_of(), ranks + len(first.auxiliaries)
        rate = np.concatenate(
            [
                rate_caps(nodes_of(node_of, op.group, participants), src, dst, op.rate_cap, op.cross_rate_cap)
                for op in ops
            ]
        )
        np.minimum.at(rate, route, bandwidth[link] / weight)
        made = Routes(route, link, weight, table.latency, rate, np.zeros(len(route), np.bool_))
        ends = np.tile(-1 - np.arange(participants) + ranks, (count, 1))
        ends[:, :ranks] = groups
        low, high, flows = traffic.channels
        # Channels of one collective are none of another's.
        channel = (int(high.max(initial=-1)) + 1) * np.repeat(np.arange(count), routes)
        low, high, flows = np.tile(low, count) + channel, np.tile(high, count) + channel, np.tile(flows, count)
        return PotentialFlows(made, low, high, flows, ends[:, src].ravel(), ends[:, dst].ravel(), first.stream, 1)

    def _links_of(self, vertices: Sequence[tuple[str, ...]], pairs: Ints) -> RouteTable:
        """Routes of these pairs of participants, for each of so many groups."""
        router = self.cluster.router
        every = np.array([[router.index[vertex] for vertex in own] for own in vertices], np.int64)
        numbers = np.stack([every[:, pairs[0]].ravel(), every[:, pairs[1]].ravel()])
        return self.cluster.remember_routes(
            (RouteTable, numbers.tobytes()), lambda: router.routes(*numbers), lambda table: 2 * len(table.link)
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Collectives that differ in their groups alone, no two of which have a rank in common; or a single one.

    Attributes
    ----------
    kinds : sequence of _Kind
    ops : sequence of Collective
    times : int
        How many there are of the single one; of several it does not matter.
    """

    kinds: Sequence[_Kind]
    ops: Sequence[Collective]
    times: int


def _batches(ops: Mapping[_Kind, Collective], times: Mapping[_Kind, int]) -> list[_Batch]:
    """Put together what can be routed at once; a server or a switch may be in several collectives, so they stay apart.

    How often there is a collective matters for servers and switches alone.
    """
    batches: dict[object, list[_Kind]] = {}
    depth: dict[tuple[object, int], int] = {}
    for kind in ops:
        alike: tuple[object, ...] = (kind,)
        if not kind.auxiliaries:
            alike = kind.schedule, kind.stream, kind.rate_cap, kind.cross_rate_cap
            level = 1 + max(depth.get((alike, rank), 0) for rank in kind.group)
            depth |= dict.fromkeys([(alike, rank) for rank in kind.group], level)
            alike = *alike, level
        batches.setdefault(alike, []).append(kind)
    return [_Batch(kinds, [ops[kind] for kind in kinds], times[kinds[0]]) for kinds in batches.values()]


def _vertices(cluster: Cluster, op: Collective) -> tuple[str, ...]:
    return tuple(cluster.ranks[rank] for rank in op.group) + op.auxiliaries


def _kind(op: Collective) -> _Kind:
    return _Kind(id(op.schedule), op.group, op.auxiliaries, op.stream, op.rate_cap, op.cross_rate_cap)
