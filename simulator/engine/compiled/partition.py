"""Which ranks, rows and links behave alike? Colour refinement groups them into equivalence classes.

The program is a graph. Vertices are participants (ranks, servers, switches), schedule rows, collectives and links.
Edges connect a row with its sender, receiver and links, with its predecessor on the channel, and with each row awaited
by it. At first, a vertex's colour hashes its own properties (operation list, speed, bytes, latency, capacity). Each
pass mixes the neighbours' colours into every vertex's colour. Refinement ends after the first pass without a split. Two
vertices in a class then have equally many neighbours in each class, by edges with equal labels, and the same events
happen to both at the same times. Max-min fair rates may be solved on classes for the same reason [1]_.

Example: three groups, two ranks each, run an all-reduce; rank 5 is slow::

    groups           (0, 1)   (2, 3)   (4, 5)
    first colours     a  a     a  a     a  b       rank 5 has a different speed
    after pass 1      a  a     a  a     c  b       the partner of rank 4 is slow
    after pass 2      a  a     a  a     c  b       no class has split: done

Three ranks (0, 4 and 5) stand for six, and two groups stand for three.

A class is a proof, never a guess. No partition is returned if equality is unknown, for example if chunks change size
between repetitions. A program may have millions of rows, therefore rows are refined once per group if their
collectives' surroundings have equal colours (`_Alike`).

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

# A single unequal link splits its neighbours in the first pass, their neighbours in the second, and further ones later.
# If 64 passes do not suffice, most classes have shrunk to single vertices.
_MAX_PASSES: Final = 64


@dataclass(frozen=True, slots=True)
class Placed:
    """A process group's collective as input to the colour refinement that searches for ranks with equal behaviour."""

    # Number of the operation; groups that carry out the same operation have the same kind.
    kind: int
    op: Collective  # the operation
    # None if the duration is given in closed form; the collective then has no routes.
    rows: Rows | None
    # Routes of the transfers; None if the duration is given.
    routed: RoutedCollective | None


@dataclass(frozen=True, slots=True)
class Partition:
    """Equivalence classes of ranks, servers, rows, collectives and links with equal behaviour, numbered from 0."""

    # Class of each rank; shape (ranks,).
    rank: Ints
    # `auxiliary`, `row`: For each collective, the classes of its servers and switches, and of its rows.
    auxiliary: tuple[Ints, ...]
    row: tuple[Ints, ...]
    # Class of each collective; shape (collectives,).
    collective: Ints
    # Class of each link; shape (links,).
    link: Ints
    # Triples (class of rows, link, weight), sorted by class of rows. The link is the first of its class. The weight is
    # the capacity that all flows of the class of rows take of the link together at a rate of 1 each.
    weights: tuple[Ints, Ints, Floats]


def equitable_partition(collectives: Sequence[Placed], ranks: Ints, capacity: Floats) -> Partition | None:
    """Return the program's coarsest equitable partition: classes of ranks, transfers and links that behave alike.

    Parameters
    ----------
    collectives : sequence of Placed
        Collectives of the program, equal ones next to each other.
    ranks : int array, shape (ranks,)
        Equal numbers for ranks with the same list of operations and the same speed.
    capacity : float array, shape (links,)
        Capacity of each link [B/s].

    Returns
    -------
    Partition or None
        None if the refinement takes too many passes, if there are more than half as many classes as ranks, or if chunks
        change size between repetitions.
    """
    if any(placed.routed is not None and not placed.routed.traffic.steady for placed in collectives):
        return None
    return _Graph.of(collectives, ranks, capacity).refined()


@dataclass(frozen=True, slots=True)
class _Edges:
    """Labelled edges among a schedule's rows (transfers in a round), from each vertex to a neighbour."""

    vertex: Ints
    neighbour: Ints
    label: Colours

    @staticmethod
    def of(vertex: Ints, neighbour: Ints, label: npt.NDArray[Any]) -> _Edges:
        return _Edges(vertex, neighbour, label.astype(np.uint64))

    def seen(self, colours: Colours) -> Colours:
        """Return a hash over the neighbours' colours for each vertex; `colours` has a line per group of collectives."""
        return _summed_by_line(self.vertex, mixed(colours[:, self.neighbour], self.label), colours.shape[1])


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Links where equal collectives' rows can contend; the collectives differ only in link numbers.

    A "place" indexes the contended links along a collective's routes, route after route.
    """

    links: Ints  # link at each place, shape (collectives, places)
    weight: Floats  # capacity that a flow of rate 1 takes of the link, shape (places,)
    row: Ints  # row of each pair of a row and a place on its route, shape (crossings,)
    place: Ints  # place of each pair, shape (crossings,)


@dataclass(slots=True)
class _Alike:
    """Collectives with equal kind and schedule; participants, links and latencies may differ.

    Two collectives stay in a group while their participants, links and routes have equal colours. Equal surroundings
    give equal row colours, therefore rows are refined once per group.
    """

    first: int  # number of the first collective; the numbers of the remaining collectives follow
    # Participants: ranks first, then all servers and switches of the program, shape (collectives, participants)
    members: Ints
    rows: Rows | None  # None if the duration is given
    crossing: _Crossing  # links where the rows can contend
    group: Ints  # group of each collective, shape (collectives,)
    colours: Colours  # colours of the rows of each group, shape (groups, rows)
    among: tuple[_Edges, ...]  # edges among the rows

    @property
    def own(self) -> slice:
        """Slice selecting these collectives by number in the program."""
        return slice(self.first, self.first + len(self.members))

    def split(self, participants: Colours, collectives: Colours, links: Colours) -> Ints:
        """Split groups of collectives whose participants, links or own colours differ.

        Returns a representative collective's index for each group.
        """
        # A single collective is a group that cannot split: no hash for each of a thousand participants.
        if len(self.members) == 1:
            return np.zeros(1, np.int64)
        facts = mixed(self.group, collectives[self.own])
        for column in participants[self.members].T:
            facts = mixed(facts, column)
        if self.crossing.links.size:
            places = np.arange(self.crossing.links.shape[1])
            # Links enter by multiset, each mixed with its place, because equal routes may use different link numbers.
            facts = mixed(facts, mixed(links[self.crossing.links], places).sum(axis=1, dtype=np.uint64))
        _, first, group = np.unique(facts, return_index=True, return_inverse=True)
        self.colours, self.group = self.colours[self.group[first]], group
        return first

    def mix(self, participants: Colours, collectives: Colours, links: Colours) -> None:
        """Update each row's colour from the colours of its participants, collective, links and neighbouring rows."""
        if self.rows is None:
            return
        first = self.split(participants, collectives, links)
        real = np.flatnonzero(~self.rows.is_gate)
        ends = participants[self.members[first]]
        # Labels keep different edges apart: 1 sender, 2 receiver, 3 collective.
        mine = mixed(self.colours, mixed(collectives[self.own][first], 3)[:, None])
        for label, end in ((1, self.rows.src), (2, self.rows.dst)):
            mine[:, real] = mixed(mine[:, real], mixed(ends[:, end[real]], label))
        crossing = self.crossing
        if crossing.links.size:
            colours = mixed(links[crossing.links[first]], bits(crossing.weight))[:, crossing.place]
            mine = mixed(mine, _summed_by_line(crossing.row, colours, mine.shape[1]))
        for edges in self.among:
            mine = mixed(mine, edges.seen(mine))
        self.colours = mine

    def to_participants(self, collectives: Colours, sums: Colours) -> None:
        """Add, to each participant's entry in `sums`, the colours for this participant's collectives and rows."""
        colours = mixed(collectives[self.own], 6)[:, None]
        if self.rows is not None:
            real, width = np.flatnonzero(~self.rows.is_gate), self.members.shape[1]
            sent = _summed_by_line(self.rows.src[real], mixed(self.colours[:, real], 4), width)
            sent += _summed_by_line(self.rows.dst[real], mixed(self.colours[:, real], 5), width)
            colours = colours + sent[self.group]
        np.add.at(sums, self.members, np.broadcast_to(colours, self.members.shape))

    def to_links(self, sums: Colours) -> None:
        """Add, to each link's entry in `sums`, the colours of the rows whose routes cross the link."""
        crossing = self.crossing
        if crossing.links.size:
            colours = mixed(self.colours[:, crossing.row], bits(crossing.weight)[crossing.place])
            by_place = _summed_by_line(crossing.place, colours, len(crossing.weight))
            np.add.at(sums, crossing.links, by_place[self.group])


def _summed_by_line(where: Ints, colours: Colours, size: int) -> Colours:
    """Sum, in each line of `colours`, the colours with equal index in `where`, modulo 2^64: shape (lines, size)."""
    lines = len(colours)
    places = (np.arange(lines) * size)[:, None] + where
    return summed(places.ravel(), colours.ravel(), lines * size).reshape(lines, size)


@dataclass(slots=True)
class _Graph:
    """The program as a graph for colour refinement, with every vertex's present colour."""

    ranks: int
    alike: list[_Alike]  # all collectives, with the colours of their rows
    auxiliaries: list[slice]  # for each collective, its servers and switches among the participants
    participants: Colours  # colours of all ranks, followed by those of the servers and switches of each collective
    collectives: Colours
    links: Colours

    @classmethod
    def of(cls, collectives: Sequence[Placed], ranks: Ints, capacity: Floats) -> _Graph:
        """Build the graph from the collectives, the ranks' initial labels and the link capacities [B/s].

        Each vertex's initial colour hashes its own properties.
        """
        runs, auxiliaries, facts, numbers = list[_Alike](), list[slice](), list[int](), dict[tuple[object, ...], int]()
        participants = len(ranks)
        for together in _alike(collectives):
            first, count, number = together[0], len(together), len(facts)
            op, servers = first.op, len(first.op.auxiliaries)
            traffic = None if first.routed is None else first.routed.traffic
            properties = first.kind, id(traffic), op.startup, op.together, op.duration, len(op.group), servers
            # Equal properties get equal numbers. A traffic's id is unique while the program lives.
            facts += [numbers.setdefault(properties, len(numbers))] * count
            groups = np.array([placed.op.group for placed in together], np.int64)
            behind = participants + np.arange(count * servers).reshape(count, servers)
            runs.append(_with_rows(number, np.concatenate([groups, behind], axis=1), together))
            ends = (participants + servers * np.arange(count + 1)).tolist()
            auxiliaries += [slice(*pair) for pair in pairwise(ends)]
            participants = ends[-1]
        # Servers and switches start with a common colour; only their rows separate them.
        who = np.concatenate([ranks, np.full(participants - len(ranks), -1)])
        colours = mixed(who, 0), mixed(np.array(facts, np.int64), 0), mixed(bits(capacity), 0)
        return cls(len(ranks), runs, auxiliaries, *colours)

    def refined(self) -> Partition | None:
        """Refine colours until a pass splits no class; return the classes, or None after too many passes or classes.

        A new colour depends on the old colour, therefore classes only split. A pass with an unchanged number leaves
        every class unchanged.
        """
        before = 0
        for _ in range(_MAX_PASSES):
            self._pass()
            # Counting distinct colours takes a quarter of the time needed to number the classes, done once at the end.
            count = sum(map(different, (self.participants, self.collectives, self.links, self._rows())))
            # A quotient with more than half of the ranks saves little.
            if 2 * different(self.participants[: self.ranks]) > self.ranks:
                return None
            if count == before:
                return self._partition()
            before = count
        return None

    def _rows(self) -> Colours:
        """Return the row colours (rows: transfers in a round), concatenated group after group."""
        return np.concatenate([np.zeros(0, np.uint64), *(run.colours.ravel() for run in self.alike)])

    def _pass(self) -> None:
        """Carry out a refinement pass: mix into each vertex's colour the multiset of its neighbours' colours."""
        for run in self.alike:
            run.mix(self.participants, self.collectives, self.links)
        # Rows were updated first. Participants and links now see the new row colours, and collectives see the new
        # participant colours, therefore a single pass carries a difference over several edges.
        at_participants, at_links = np.zeros_like(self.participants), np.zeros_like(self.links)
        for run in self.alike:
            run.to_participants(self.collectives, at_participants)
            run.to_links(at_links)
        self.links = mixed(self.links, at_links)
        self.participants = mixed(self.participants, at_participants)
        colours = mixed(self.participants, 7)
        members = [colours[run.members].sum(axis=1, dtype=np.uint64) for run in self.alike]
        self.collectives = mixed(self.collectives, np.concatenate([np.zeros(0, np.uint64), *members]))

    def _partition(self) -> Partition:
        """Return every vertex's class, numbered from 0 by equal colour."""
        participant, collective, link, row = (
            np.unique(colours, return_inverse=True)[1]
            for colours in (self.participants, self.collectives, self.links, self._rows())
        )
        ends = np.cumsum([run.colours.size for run in self.alike])[:-1]
        # Without any transfer, `split` still returns one (empty) part.
        parts = np.split(row, ends)[: len(self.alike)]
        classes = [part.reshape(run.colours.shape) for run, part in zip(self.alike, parts, strict=True)]
        rows = tuple(part[group] for run, part in zip(self.alike, classes, strict=True) for group in run.group.tolist())
        # Rank classes are numbered without servers and switches, because these numbers become the quotient's ranks.
        rank = np.unique(self.participants[: self.ranks], return_inverse=True)[1]
        auxiliary = tuple(participant[span] for span in self.auxiliaries)
        return Partition(rank, auxiliary, rows, collective, link, self._class_weights(classes, link))

    def _class_weights(self, by_group: Sequence[Ints], link_class: Ints) -> tuple[Ints, Ints, Floats]:
        """Return triples (row class, link, weight) for the first link in each link class.

        The weight is the capacity that a row class takes on the link in total, at a rate of 1 for each row. `by_group`
        has the row classes in each group of collectives, `link_class` each link's class.
        """
        first = np.zeros(len(link_class), np.bool_)
        first[np.unique(link_class, return_index=True)[1]] = True
        pairs, weights = [np.zeros(0, np.int64)], [np.zeros(0)]
        for run, classes in zip(self.alike, by_group, strict=True):
            crossing = run.crossing
            who, at = np.nonzero(first[crossing.links])
            # Rows that take each of these links.
            which, place = rows_with_keys(crossing.place, at)
            # A representative flow may stand for many: rows in the same class on the same link add up their weights.
            rows = classes[run.group[who[which]], crossing.row[place]]
            pairs.append(rows * len(first) + crossing.links[who, at][which])
            weights.append(crossing.weight[crossing.place[place]])
        pair, place = np.unique(np.concatenate(pairs), return_inverse=True)
        total = np.bincount(place, np.concatenate(weights), len(pair)).astype(np.float64)
        return pair // len(first), pair % len(first), total


def _with_rows(number: int, members: Ints, together: Sequence[Placed]) -> _Alike:
    """Return collectives with equal schedules, numbered from `number`, with the initial colours of their rows.

    `members` lists the participants of each collective; a row is a transfer of a round.
    """
    rows, routed = together[0].rows, [placed.routed for placed in together if placed.routed is not None]
    if rows is None:
        nothing = _Crossing(np.zeros((len(members), 0), np.int64), np.zeros(0), *np.zeros((2, 0), np.int64))
        return _Alike(number, members, None, nothing, np.zeros(len(members), np.int64), np.zeros((1, 0), np.uint64), ())
    # The first groups contain collectives with equal route latencies and rates.
    route = route_of_rows(rows, routed[0])
    latency, rate = (bits(np.array([getattr(peer.routes, name) for peer in routed])) for name in ("latency", "rate"))
    unlike = mixed(mixed(latency, rate), np.arange(latency.shape[1])).sum(axis=1, dtype=np.uint64)
    _, first, group = np.unique(unlike, return_index=True, return_inverse=True)
    real = np.flatnonzero(~rows.is_gate)
    colours = np.tile(mixed(rows.round_of, 8), (len(first), 1))
    carried = bits(np.concatenate([np.zeros(0), *(part.nbytes for part in routed[0].traffic.parts)]))
    # A transfer's first colour hashes round, bytes, latency and rate, a gate's first colour only the round.
    for column in (carried, latency[first][:, route[real]], rate[first][:, route[real]]):
        colours[:, real] = mixed(colours[:, real], column)
    colours[:, rows.is_gate] = mixed(colours[:, rows.is_gate], 9)
    return _Alike(number, members, rows, _crossing(rows, route, routed), group, colours, _among(rows))


def _crossing(rows: Rows, route: Ints, routed: Sequence[RoutedCollective]) -> _Crossing:
    """Return the contended links that each row (transfer in a round) crosses, for collectives with equal schedules.

    Contended links stand at the same positions along the routes of each collective in `routed`.
    """
    taken_route, _, weight = routed[0].routes.watched
    links = np.array([peer.routes.watched[1] for peer in routed], np.int64).reshape(len(routed), len(weight))
    real = np.flatnonzero(~rows.is_gate)
    which, place = rows_with_keys(taken_route, route[real])
    # Sorted by place, for rows_with_keys.
    order = np.argsort(place, kind="stable")
    return _Crossing(links, weight, real[which[order]], place[order])


def _among(rows: Rows) -> tuple[_Edges, ...]:
    """Return the edges among a schedule's rows (transfers in a round), along channels and for waits.

    Edges along a channel carry colours in both directions, therefore row classes form chains like the rows themselves.
    Wait edges carry colours from the awaited row to the waiting row.
    """
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
    return tuple(kind for kind in edges if len(kind.vertex))


def _alike(collectives: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
    """Yield runs with neighbouring collectives that differ only in groups, route links and route latencies."""

    def facts(placed: Placed) -> tuple[object, ...]:
        op, traffic = placed.op, None if placed.routed is None else id(placed.routed.traffic)
        # Equal lengths, because members form a rectangular array.
        sizes = len(op.group), len(op.auxiliaries)
        watched = None
        if placed.routed is not None and placed.routed.routes.can_contend:
            route, _, weight = placed.routed.routes.watched
            watched = route.tobytes(), weight.tobytes()
        return placed.kind, id(placed.rows), traffic, op.startup, op.together, op.duration, *sizes, watched

    return (list(run) for _, run in groupby(collectives, facts))


def route_of_rows(rows: Rows, routed: RoutedCollective) -> Ints:
    """Return each row's route number in a schedule (row: transfer in a round); 0 for rows without bytes (gates)."""
    route = np.zeros(len(rows), np.int64)
    route[~rows.is_gate] = np.concatenate([np.zeros(0, np.int64), *(part.route_of for part in routed.traffic.parts)])
    return route


def rows_with_keys(key: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """Return the matches between `keys` and the sorted column `key`: index in `keys`, and row.

    >>> which, row = rows_with_keys(np.array([1, 1, 4, 7]), np.array([7, 1]))
    >>> which.tolist(), row.tolist()
    ([0, 1, 1], [3, 0, 1])
    """
    low, high = np.searchsorted(key, keys, "left"), np.searchsorted(key, keys, "right")
    count = high - low
    which = np.repeat(np.arange(len(keys)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - low, count)
