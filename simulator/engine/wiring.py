"""Wiring: which links each transfer of a program takes.

Rule: collectives that are alike share what is worked out for them: the same traffic whatever their groups, the same
routes whatever their sizes. Routes keep all their links for the books; rates are taken over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.cluster import Cluster
from simulator.engine.link_pruning import PotentialFlows, all_links, prune_links
from simulator.engine.path import Path
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.program import Collective
from simulator.records.transfers import Transfers

# Two reads and a write of HBM for each byte that is added to what is there.
_REDUCE_WEIGHT = 3.0


class Wired(Protocol):
    """What the events engine must know of a collective on the fabric; what it says is as in Wiring."""

    @property
    def transfers(self) -> Transfers:
        """All of them."""

    @property
    def nbytes(self) -> Floats:
        """Of each [B]."""

    @property
    def route_of(self) -> npt.NDArray[np.int32]:
        """Row of `paths` and `links` of each."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """With only the links on which flows can meet."""

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """By path all links of the cluster."""

    @property
    def vertices(self) -> tuple[str, ...]:
        """Of the participants."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """One collective laid on the fabric.

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
    """

    traffic: Traffic
    routes: Routes
    vertices: tuple[str, ...]
    capacity: Sequence[float]
    hbm: int

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
    def links(self) -> tuple[tuple[int, ...], ...]:
        """By route all links of the cluster."""
        there = self.routes.link < self.hbm
        cuts = np.searchsorted(self.routes.route[there], np.arange(len(self.routes) + 1)).tolist()
        links = self.routes.link[there].tolist()
        return tuple(tuple(links[a:b]) for a, b in pairwise(cuts))


# Collectives for which everything is alike but their sizes.
_Kind = tuple[int, tuple[int, ...], tuple[str, ...], str, float, float]


def capacities(cluster: Cluster) -> list[float]:
    """Every link's bandwidth, then every rank's HBM bandwidth [B/s]: the fabric's links by number."""
    hbm = [cluster.hbm_bandwidth(rank) for rank in range(cluster.world_size)]
    return [float(b) for b in cluster.router.bandwidth] + hbm


def wire(
    cluster: Cluster, collectives: Sequence[Collective], capacity: Sequence[float], *, watch_all: bool = False
) -> list[Wiring]:
    """Lay every collective of a program on the fabric.

    Parameters
    ----------
    cluster : Cluster
    collectives : sequence of Collective
    capacity : sequence of float
        Of the fabric's links [B/s].
    watch_all : bool
        Whether flows meet on every link that they take; otherwise only where `prune_links` says that they can.
    """
    return _Desk(cluster, capacity).wire(collectives, watch_all=watch_all)


@dataclass(slots=True)
class _Desk:
    """What has been worked out so far."""

    cluster: Cluster
    capacity: Sequence[float]
    _traffics: dict[tuple[int, int, int, int], Traffic] = field(default_factory=dict)
    _routes: dict[tuple[tuple[str, ...], bytes], tuple[Ints, Ints, Floats]] = field(default_factory=dict)

    def wire(self, collectives: Sequence[Collective], *, watch_all: bool) -> list[Wiring]:
        bandwidth, node_of = np.array(self.capacity), self._nodes()
        times = Counter(map(_kind, collectives))
        laid: dict[_Kind, PotentialFlows] = {}
        for op in collectives:
            if _kind(op) not in laid:
                laid[_kind(op)] = self._lay(op, times[_kind(op)], bandwidth, node_of)
        every = list(laid.values())
        watched = all_links(every) if watch_all else prune_links(every, bandwidth)
        routes = {kind: one.routes.kept(matters) for (kind, one), matters in zip(laid.items(), watched, strict=True)}
        made: dict[tuple[_Kind, int], Wiring] = {}
        found = []
        for op in collectives:
            key = _kind(op), id(self._traffic(op))
            if key not in made:
                hbm = len(self.capacity) - self.cluster.world_size
                made[key] = Wiring(self._traffic(op), routes[key[0]], _vertices(self.cluster, op), self.capacity, hbm)
            found.append(made[key])
        return found

    def _traffic(self, op: Collective) -> Traffic:
        sizes = op.elements, op.itemsize, op.reduce_itemsize
        key = (id(op.schedule), *sizes)
        if key not in self._traffics:
            self._traffics[key] = Traffic(op.schedule, *sizes)
        return self._traffics[key]

    def _nodes(self) -> Ints:
        """Each rank's node; -1 where it has none."""
        found = self.cluster.node_of()
        return np.array([found.get(rank, -1) for rank in range(self.cluster.world_size)], np.int64)

    def _lay(self, op: Collective, times: int, bandwidth: Floats, node_of: Ints) -> PotentialFlows:
        traffic, ranks = self._traffic(op), len(op.group)
        src, dst, reduce = traffic.route_keys.T
        route, link, latency = self._routed(_vertices(self.cluster, op), np.stack([src, dst]))
        adding = np.flatnonzero((reduce == 1) & (dst < ranks))
        group = np.array(op.group, np.int64)
        hbm = len(bandwidth) - self.cluster.world_size + group[dst[adding]]
        order = np.argsort(np.concatenate([route, adding]), kind="stable")
        route, link = np.concatenate([route, adding])[order], np.concatenate([link, hbm])[order]
        weight = np.concatenate([np.ones(len(order) - len(adding)), np.full(len(adding), _REDUCE_WEIGHT)])[order]
        # Servers and switches belong to no node, or to that of everybody they talk to.
        node = np.concatenate([node_of[group], np.full(len(op.extras), -1)])
        inside = (node[src] < 0) | (node[dst] < 0) | (node[src] == node[dst])
        rate = np.where(inside, op.rate_cap, op.cross_rate_cap)
        np.minimum.at(rate, route, bandwidth[link] / weight)
        routes = Routes(route, link, weight, latency, rate, np.zeros(len(route), np.bool_))
        ends = np.concatenate([group, -1 - np.arange(len(op.extras))])
        return PotentialFlows(routes, *traffic.channels, ends[src], ends[dst], op.stream, times)

    def _routed(self, vertices: tuple[str, ...], pairs: Ints) -> tuple[Ints, Ints, Floats]:
        """Route and link of each link of each route, and each route's latency."""
        key = vertices, pairs.tobytes()
        if key not in self._routes:
            between = self.cluster.router.route
            found = [between(vertices[a], vertices[b]) for a, b in pairs.T.tolist()]
            route = np.repeat(np.arange(len(found)), [len(one.links) for one in found])
            link = np.array([number for one in found for number in one.links], np.int64)
            self._routes[key] = route, link, np.array([one.latency for one in found], np.float64)
        return self._routes[key]


def _vertices(cluster: Cluster, op: Collective) -> tuple[str, ...]:
    return tuple(cluster.ranks[rank] for rank in op.group) + op.extras


def _kind(op: Collective) -> _Kind:
    return id(op.schedule), op.group, op.extras, op.stream, op.rate_cap, op.cross_rate_cap
