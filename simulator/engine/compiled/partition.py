"""Which ranks, transfers and links of a whole program behave alike, by colour refinement.

The program is a graph. Its vertices are participants (ranks, servers, switches), rows of schedules, collectives and
links; its edges say who sends what to whom, over which links, after which other rows. Vertices start with a colour of
what they are (list of operations, speed, bytes, latency, capacity), and each pass mixes into every colour those of the
neighbours. When no class splits any more, all vertices of a class have as many neighbours of each class by edges of
each label. So whatever happens to one of a class happens to all of it at the same time: everything that decides it is
of the same classes. Max-min fair shares may be solved on classes for the same reason [1]_.

Rule: a class is a proof, never a guess: what is not known to be alike (chunks that change their size from one
repetition to the next) gives no partition.

A program may have millions of rows. Those of collectives that stand alike among vertices of the same colours get the
same colours, so they are refined once (`_Alike`).

References
----------
.. [1] Grohe, Kersting, Mladenov & Selman, "Dimension reduction via colour refinement", ESA 2014, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.colours import Colours, bits, different, mixed, summed
from simulator.engine.compiled.rows import Rows
from simulator.records.operation import Collective

# One odd link sets its neighbours apart in the first pass, theirs in the second, and so on: more than 64 passes means
# that classes are nearly single vertices.
_MAX_PASSES: Final = 64


@dataclass(frozen=True, slots=True)
class Placed:
    """A collective of one process group, as the program's other collectives see it.

    Attributes
    ----------
    kind : int
        Equal for collectives of groups that carry out the same operation.
    op : Collective
    rows : Rows or None
        None where the duration is given; then there are no routes either.
    routed : RoutedCollective or None
    """

    kind: int
    op: Collective
    rows: Rows | None
    routed: RoutedCollective | None


@dataclass(frozen=True, slots=True)
class Partition:
    """Classes as numbers from 0.

    Attributes
    ----------
    rank : int array, shape (ranks,)
    auxiliary, row : tuple of int array
        By collective: classes of its servers and switches, and of its rows.
    collective : int array, shape (collectives,)
    link : int array, shape (links,)
    weights : tuple of int array, int array, float array
        A class of rows, a link that is the first of its class, and what all flows of the class of rows take together of
        that link if each has a rate of 1; sorted by the class of rows.
    """

    rank: Ints
    auxiliary: tuple[Ints, ...]
    row: tuple[Ints, ...]
    collective: Ints
    link: Ints
    weights: tuple[Ints, Ints, Floats]


def equitable_partition(collectives: Sequence[Placed], ranks: Ints, capacity: Floats) -> Partition | None:
    """The coarsest equitable partition.

    Parameters
    ----------
    collectives : sequence of Placed
    ranks : int array, shape (ranks,)
        Equal for ranks that have the same list of operations and the same speed.
    capacity : float array
        Of every link [B/s].

    Returns
    -------
    Partition or None
        None if refinement does not end soon or finds most ranks unlike, or if chunks change their sizes.
    """
    if any(placed.routed is not None and not placed.routed.traffic.steady for placed in collectives):
        return None
    return _Graph.of(collectives, ranks, capacity).refined()


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges among the rows of one schedule: who waits for whom, and a colour for how."""

    vertex: Ints
    neighbour: Ints
    label: Colours

    @staticmethod
    def of(vertex: Ints, neighbour: Ints, label: npt.NDArray[Any]) -> _Edges:
        return _Edges(vertex, neighbour, label.astype(np.uint64))

    def seen(self, colours: Colours) -> Colours:
        """By vertex the multiset of its neighbours' colours; the same for each line of `colours`."""
        return _summed_by_line(self.vertex, mixed(colours[:, self.neighbour], self.label), colours.shape[1])


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Where rows of collectives with the same routes, but for the numbers of links, can hold each other back.

    Attributes
    ----------
    links : int array, shape (collectives, places)
        By place of a route that matters the link.
    weight : float array, shape (places,)
        What a flow at rate 1 takes of it.
    row, place : int array, shape (crossings,)
        A row that takes a place.
    """

    links: Ints
    weight: Floats
    row: Ints
    place: Ints


@dataclass(slots=True)
class _Alike:
    """Collectives of one kind and schedule, whose participants, links and latencies may be unlike.

    Rows of collectives whose participants, links and routes have the same colours have the same colours themselves; so
    rows are refined once for each such group.

    Attributes
    ----------
    first : int
        Number of the first collective; the others follow.
    members : int array, shape (collectives, participants)
        Numbers among all ranks and, behind them, all servers and switches.
    rows : Rows or None
        None where the duration is given.
    crossing : _Crossing
    group : int array, shape (collectives,)
        Equal for collectives whose rows have had the same colours so far.
    colours : uint64 array, shape (groups, rows)
    """

    first: int
    members: Ints
    rows: Rows | None
    crossing: _Crossing
    group: Ints
    colours: Colours
    among: tuple[_Edges, ...]

    @property
    def own(self) -> slice:
        """Its collectives among all."""
        return slice(self.first, self.first + len(self.members))

    def split(self, participants: Colours, collectives: Colours, links: Colours) -> Ints:
        """Set collectives apart whose surroundings are unlike; returns a collective of each group."""
        facts = mixed(self.group, collectives[self.own])
        for column in participants[self.members].T:
            facts = mixed(facts, column)
        if self.crossing.links.size:
            places = np.arange(self.crossing.links.shape[1])
            facts = mixed(facts, mixed(links[self.crossing.links], places).sum(axis=1, dtype=np.uint64))
        _, first, group = np.unique(facts, return_index=True, return_inverse=True)
        self.colours, self.group = self.colours[self.group[first]], group
        return first

    def mix(self, participants: Colours, collectives: Colours, links: Colours) -> None:
        """Mix into each row's colour those of its neighbours."""
        if self.rows is None:
            return
        first = self.split(participants, collectives, links)
        real = np.flatnonzero(~self.rows.is_gate)
        ends = participants[self.members[first]]
        mine = mixed(self.colours, mixed(collectives[self.own][first], 3)[:, None])
        for label, end in ((1, self.rows.src), (2, self.rows.dst)):
            mine[:, real] = mixed(mine[:, real], mixed(ends[:, end[real]], label))
        crossing = self.crossing
        if crossing.links.size:
            seen = mixed(links[crossing.links[first]], bits(crossing.weight))[:, crossing.place]
            mine = mixed(mine, _summed_by_line(crossing.row, seen, mine.shape[1]))
        for edges in self.among:
            mine = mixed(mine, edges.seen(mine))
        self.colours = mine

    def to_participants(self, collectives: Colours, sums: Colours) -> None:
        """Add to each participant's multiset the colours of its rows and of the collectives that it takes part in."""
        own = mixed(collectives[self.own], 6)[:, None]
        if self.rows is not None:
            real, width = np.flatnonzero(~self.rows.is_gate), self.members.shape[1]
            sent = _summed_by_line(self.rows.src[real], mixed(self.colours[:, real], 4), width)
            sent += _summed_by_line(self.rows.dst[real], mixed(self.colours[:, real], 5), width)
            own = own + sent[self.group]
        np.add.at(sums, self.members, np.broadcast_to(own, self.members.shape))

    def to_links(self, sums: Colours) -> None:
        """Add to each link's multiset the colours of the rows that take it."""
        crossing = self.crossing
        if crossing.links.size:
            seen = mixed(self.colours[:, crossing.row], bits(crossing.weight)[crossing.place])
            taken = _summed_by_line(crossing.place, seen, len(crossing.weight))
            np.add.at(sums, crossing.links, taken[self.group])


def _summed_by_line(where: Ints, colours: Colours, size: int) -> Colours:
    """By line of `colours`, shape (lines, places), what `summed` gives."""
    lines = len(colours)
    places = (np.arange(lines) * size)[:, None] + where
    return summed(places.ravel(), colours.ravel(), lines * size).reshape(lines, size)


@dataclass(slots=True)
class _Graph:
    """The colours so far.

    Attributes
    ----------
    ranks : int
    alike : list of _Alike
        All collectives, and the colours of their rows.
    auxiliaries : list of slice
        By collective its servers and switches among the participants.
    participants, collectives, links : uint64 array
        Participants are all ranks and, behind them, each collective's servers and switches.
    """

    ranks: int
    alike: list[_Alike]
    auxiliaries: list[slice]
    participants: Colours
    collectives: Colours
    links: Colours

    @classmethod
    def of(cls, collectives: Sequence[Placed], ranks: Ints, capacity: Floats) -> _Graph:
        alike, auxiliaries, facts, known = list[_Alike](), list[slice](), list[int](), dict[tuple[object, ...], int]()
        participants = len(ranks)
        for together in _alike(collectives):
            first, count, number = together[0], len(together), len(facts)
            op, servers = first.op, len(first.op.auxiliaries)
            traffic = None if first.routed is None else first.routed.traffic
            own = first.kind, id(traffic), op.startup, op.together, op.duration, len(op.group), servers
            facts += [known.setdefault(own, len(known))] * count
            groups = np.array([placed.op.group for placed in together], np.int64)
            behind = participants + np.arange(count * servers).reshape(count, servers)
            alike.append(_with_rows(number, np.concatenate([groups, behind], axis=1), together))
            ends = (participants + servers * np.arange(count + 1)).tolist()
            auxiliaries += [slice(*pair) for pair in pairwise(ends)]
            participants = ends[-1]
        who = np.concatenate([ranks, np.full(participants - len(ranks), -1)])
        colours = mixed(who, 0), mixed(np.array(facts, np.int64), 0), mixed(bits(capacity), 0)
        return cls(len(ranks), alike, auxiliaries, *colours)

    def refined(self) -> Partition | None:
        """Refine until a pass splits no class.

        A new colour depends on the old one, so classes only split: a pass that leaves their number leaves them all.
        """
        before = 0
        for _ in range(_MAX_PASSES):
            self._pass()
            # Which class each is in takes four times as long, and is asked for once.
            count = sum(map(different, (self.participants, self.collectives, self.links, self._rows())))
            if 2 * different(self.participants[: self.ranks]) > self.ranks:
                return None
            if count == before:
                return self._partition()
            before = count
        return None

    def _rows(self) -> Colours:
        """The colours of all rows that are refined."""
        return np.concatenate([np.zeros(0, np.uint64), *(one.colours.ravel() for one in self.alike)])

    def _pass(self) -> None:
        """Mix into each vertex's colour the multiset of its neighbours' colours."""
        for one in self.alike:
            one.mix(self.participants, self.collectives, self.links)
        at_participants, at_links = np.zeros_like(self.participants), np.zeros_like(self.links)
        for one in self.alike:
            one.to_participants(self.collectives, at_participants)
            one.to_links(at_links)
        self.links = mixed(self.links, at_links)
        self.participants = mixed(self.participants, at_participants)
        seen = mixed(self.participants, 7)
        members = [seen[one.members].sum(axis=1, dtype=np.uint64) for one in self.alike]
        self.collectives = mixed(self.collectives, np.concatenate([np.zeros(0, np.uint64), *members]))

    def _partition(self) -> Partition:
        participant, collective, link, row = (
            np.unique(colours, return_inverse=True)[1]
            for colours in (self.participants, self.collectives, self.links, self._rows())
        )
        ends = np.cumsum([one.colours.size for one in self.alike])[:-1]
        by_group = [own.reshape(one.colours.shape) for one, own in zip(self.alike, np.split(row, ends), strict=True)]
        rows = tuple(own[group] for one, own in zip(self.alike, by_group, strict=True) for group in one.group.tolist())
        # Ranks' classes are numbered from 0, for they are the ranks of what is played.
        rank = np.unique(self.participants[: self.ranks], return_inverse=True)[1]
        auxiliary = tuple(participant[own] for own in self.auxiliaries)
        return Partition(rank, auxiliary, rows, collective, link, self._class_weights(by_group, link))

    def _class_weights(self, by_group: Sequence[Ints], link_class: Ints) -> tuple[Ints, Ints, Floats]:
        """For each link that is the first of its class, what each class of rows takes of it together."""
        first = np.zeros(len(link_class), np.bool_)
        first[np.unique(link_class, return_index=True)[1]] = True
        pairs, weights = [np.zeros(0, np.int64)], [np.zeros(0)]
        for one, classes in zip(self.alike, by_group, strict=True):
            crossing = one.crossing
            who, at = np.nonzero(first[crossing.links])
            # Of each first link that is taken the rows that take it.
            which, place = rows_with_keys(crossing.place, at)
            rows = classes[one.group[who[which]], crossing.row[place]]
            pairs.append(rows * len(first) + crossing.links[who, at][which])
            weights.append(crossing.weight[crossing.place[place]])
        pair, place = np.unique(np.concatenate(pairs), return_inverse=True)
        taken = np.bincount(place, np.concatenate(weights), len(pair)).astype(np.float64)
        return pair // len(first), pair % len(first), taken


def _with_rows(number: int, members: Ints, together: Sequence[Placed]) -> _Alike:
    """Collectives that are alike, with their rows in the colours of what they are."""
    rows, routed = together[0].rows, [placed.routed for placed in together if placed.routed is not None]
    if rows is None:
        nothing = _Crossing(np.zeros((len(members), 0), np.int64), np.zeros(0), *np.zeros((2, 0), np.int64))
        return _Alike(number, members, None, nothing, np.zeros(len(members), np.int64), np.zeros((1, 0), np.uint64), ())
    route = route_of_rows(rows, routed[0])
    latency, rate = (bits(np.array([getattr(own.routes, name) for own in routed])) for name in ("latency", "rate"))
    unlike = mixed(mixed(latency, rate), np.arange(latency.shape[1])).sum(axis=1, dtype=np.uint64)
    _, first, group = np.unique(unlike, return_index=True, return_inverse=True)
    real = np.flatnonzero(~rows.is_gate)
    colours = np.tile(mixed(rows.round_of, 8), (len(first), 1))
    carried = bits(np.concatenate([np.zeros(0), *(part.nbytes for part in routed[0].traffic.parts)]))
    for column in (carried, latency[first][:, route[real]], rate[first][:, route[real]]):
        colours[:, real] = mixed(colours[:, real], column)
    colours[:, rows.is_gate] = mixed(colours[:, rows.is_gate], 9)
    return _Alike(number, members, rows, _crossing(rows, route, routed), group, colours, _among(rows))


def _crossing(rows: Rows, route: Ints, routed: Sequence[RoutedCollective]) -> _Crossing:
    """Where the rows of collectives that watch the same places of their routes cross links."""
    taken_route, _, weight = routed[0].routes.watched
    links = np.array([own.routes.watched[1] for own in routed], np.int64).reshape(len(routed), len(weight))
    real = np.flatnonzero(~rows.is_gate)
    which, place = rows_with_keys(taken_route, route[real])
    order = np.argsort(place, kind="stable")
    return _Crossing(links, weight, real[which[order]], place[order])


def _among(rows: Rows) -> tuple[_Edges, ...]:
    """Edges among rows; along a channel colours go both ways, so that classes of rows make chains as rows do."""
    real, leaves = np.flatnonzero(~rows.is_gate), np.flatnonzero(rows.exit >= 0)
    edges = []
    along = real, rows.next[real], 10 + rows.next_shift[real]
    leaving = leaves, rows.exit[leaves], np.full(len(leaves), 12)
    for before, after, label in (along, leaving):
        edges += [_Edges.of(after, before, label), _Edges.of(before, after, label + 10)]
    awaited, waiter, shift = rows.inner
    edges.append(_Edges.of(waiter, awaited, mixed(shift, 30)))
    awaited, at, waiter, times = rows.outer
    edges.append(_Edges.of(waiter, awaited, mixed(mixed(at, times), 31)))
    return tuple(one for one in edges if len(one.vertex))


def _alike(collectives: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
    """Neighbours that differ in their groups, and in links and latencies of their routes alone."""

    def facts(placed: Placed) -> tuple[object, ...]:
        op, traffic = placed.op, None if placed.routed is None else id(placed.routed.traffic)
        sizes = len(op.group), len(op.auxiliaries)
        watched = None
        if placed.routed is not None and placed.routed.routes.can_contend:
            route, _, weight = placed.routed.routes.watched
            watched = route.tobytes(), weight.tobytes()
        return placed.kind, id(placed.rows), traffic, op.startup, op.together, op.duration, *sizes, watched

    return (list(own) for _, own in groupby(collectives, facts))


def route_of_rows(rows: Rows, routed: RoutedCollective) -> Ints:
    """By row its route's number; of gates 0."""
    route = np.zeros(len(rows), np.int64)
    route[~rows.is_gate] = np.concatenate([np.zeros(0, np.int64), *(part.route_of for part in routed.traffic.parts)])
    return route


def rows_with_keys(key: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """All rows of a rising column that have one of the wanted keys: which wanted entry it is, and the row."""
    low, high = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
    count = high - low
    which = np.repeat(np.arange(len(wanted)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - low, count)
