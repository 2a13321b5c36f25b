"""A program with one rank, row and link for each class, played in place of the whole.

Whatever a row does, the first of its class does too: it is sent from a class of participants to another, waits for
classes of rows, and takes of the first link of each class what all flows of its class take there together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.compiled.partition import Partition, Placed, equitable_partition, route_of_rows, rows_with_keys
from simulator.engine.compiled.playable import Playable, carried_by_row, may_be_in_order
from simulator.engine.compiled.rows import Rows
from simulator.engine.routes import Routes
from simulator.records.program import Collective, Program


@dataclass(frozen=True, eq=False)
class Reduced:
    """The collective that stands for its class.

    Attributes
    ----------
    playable : Playable
    of_class : int array, shape (reduced rows,)
        The class of each of its rows.
    """

    playable: Playable
    of_class: Ints


@dataclass(frozen=True, eq=False)
class Quotient:
    """Which rank, collective and row stands for which.

    Attributes
    ----------
    partition : Partition
    collectives : sequence of Placed
        One of all that repeat from layer to layer.
    number_of : mapping of str to int
        By a collective's name its number among them.
    sites : sequence of tuple of Collective
        The collectives of each place of the lists, one a group.
    capacity : float array
        Of every link [B/s].
    """

    partition: Partition
    collectives: Sequence[Placed]
    number_of: Mapping[str, int]
    sites: Sequence[Sequence[Collective]]
    capacity: Floats
    _groups: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def first_rank(self) -> Ints:
        """By class of ranks its first rank."""
        return np.unique(self.partition.rank, return_index=True)[1]

    @cached_property
    def representative(self) -> Ints:
        """By collective the first of its class."""
        return np.unique(self.partition.collective, return_index=True)[1][self.partition.collective]

    @cached_property
    def stand_in(self) -> Mapping[str, str]:
        """By a collective's name that of the one that is played in its place."""
        stand_in: dict[str, str] = {}
        for own in self.sites:
            name_of = {self.number_of[op.name]: op.name for op in own}
            stand_in |= {op.name: name_of[int(self.representative[self.number_of[op.name]])] for op in own}
        return stand_in

    def members(self, own: Sequence[Collective]) -> tuple[Ints, Ints]:
        """For each class of ranks which of the groups' collectives it takes part in, and its place there."""
        which, place = np.zeros((2, len(self.first_rank)), np.int64)
        group_of = np.full(len(self.partition.rank), -1)
        for number, op in enumerate(own):
            group_of[list(op.group)] = number
        number_in_own = {self.number_of[op.name]: number for number, op in enumerate(own)}
        for rank_class, rank in enumerate(self.first_rank.tolist()):
            if group_of[rank] < 0:
                continue
            played = int(self.representative[self.number_of[own[group_of[rank]].name]])
            which[rank_class] = number_in_own[played]
            place[rank_class] = np.searchsorted(self.ranks_of(played), rank_class)
        return which, place

    def group_of(self, op: Collective) -> tuple[int, ...]:
        """Classes of ranks that take part in a collective, by place; those of one that is not played do not matter."""
        number = self.number_of[op.name]
        if number not in self._groups:
            self._groups[number] = tuple(self.ranks_of(number).tolist())
        return self._groups[number]

    def ranks_of(self, number: int) -> Ints:
        """Classes of the ranks that take part in a collective; rising."""
        return np.unique(self.partition.rank[list(self.collectives[number].op.group)])

    @cached_property
    def reduced(self) -> dict[int, Reduced]:
        """What is played, by number of the collective."""
        reduced = {}
        for number in np.unique(self.representative).tolist():
            placed = self.collectives[number]
            if placed.rows is not None and placed.routed is not None:
                reduced[number] = self._reduce(number, placed.rows, placed.routed)
        return reduced

    def _reduce(self, number: int, whole: Rows, routed: RoutedCollective) -> Reduced:
        classes = self.partition.row[number]
        first = np.sort(np.unique(classes, return_index=True)[1])
        of_class = classes[first]
        rows = self._rows(number, whole, first, reduced_rows(of_class, classes))
        real = ~rows.is_gate
        nbytes = carried_by_row(whole, routed)[first]
        route_of = np.zeros(len(rows), np.int64)
        route_of[real] = np.arange(int(real.sum()))
        routes = self._routes(routed, of_class[real], route_of_rows(whole, routed)[first[real]])
        alone = routed.wide_lane and not routed.contends and may_be_in_order(self.collectives[number].op)
        return Reduced(Playable(rows, route_of, nbytes, True, routes, alone, routed.lane), of_class)

    def _rows(self, number: int, rows: Rows, first: Ints, new: Ints) -> Rows:
        """The first rows of all classes; `new` gives each row's number among them."""
        participant = self._participants(number)
        is_first = np.zeros(len(rows), np.bool_)
        is_first[first] = True

        def renamed(column: Ints) -> Ints:
            return np.where(column[first] >= 0, new[column[first]], -1)

        return Rows(
            len(self.ranks_of(number)),
            int(participant.max(initial=-1)) + 1,
            rows.times,
            rows.round_of[first],
            rows.is_gate[first],
            np.where(rows.is_gate[first], 0, participant[rows.src[first]]),
            np.where(rows.is_gate[first], 0, participant[rows.dst[first]]),
            renamed(rows.next),
            rows.next_shift[first],
            renamed(rows.exit),
            rows.follows[first],
            rows.moves,
            *_first_pairs(rows, is_first, new),
        )

    def _participants(self, number: int) -> Ints:
        """By participant of a collective the participant that stands for it."""
        ranks, auxiliary = self.ranks_of(number), self.partition.auxiliary[number]
        own = self.partition.rank[list(self.collectives[number].op.group)]
        behind = np.unique(auxiliary, return_inverse=True)[1]
        return np.concatenate([np.searchsorted(ranks, own), len(ranks) + behind])

    def _routes(self, routed: RoutedCollective, of_class: Ints, route: Ints) -> Routes:
        """A route for each class of transfers: what all of the class take of the first link of each class."""
        row_class, link, weight = self.partition.weights
        own, place = rows_with_keys(row_class, of_class)
        link, weight = link[place], weight[place]
        rate = routed.routes.rate[route]
        # The rate is each flow's of the class; as one they take `weight` times as much, so a link may bound it sooner.
        np.minimum.at(rate, own, self.capacity[link] / weight)
        return Routes(own, link, weight, routed.routes.latency[route], rate, np.ones(len(own), np.bool_))


def reduced_rows(of_class: Ints, classes: Ints) -> Ints:
    """By row of a collective of the class the row that is played in its place."""
    order = np.argsort(of_class)
    return np.asarray(order[np.searchsorted(of_class[order], classes)])


def _first_pairs(
    rows: Rows, is_first: Bools, new: Ints
) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints, Ints]]:
    """Pairs inside rounds and between them whose waiter is the first of its class, renamed, each once."""
    awaited, waiter, shift = (column[is_first[rows.inner[1]]] for column in rows.inner)
    inner = np.unique(np.stack([new[awaited], new[waiter], shift]), axis=1)
    awaited, at, waiter, times = (column[is_first[rows.outer[2]]] for column in rows.outer)
    outer = np.unique(np.stack([new[awaited], at, new[waiter], times]), axis=1)
    return (inner[0], inner[1], inner[2]), (outer[0], outer[1], outer[2], outer[3])


def reduce_by_symmetry(
    program: Program,
    routed: Mapping[str, RoutedCollective],
    rows: Callable[[RoutedCollective], Rows],
    speeds: Sequence[float],
    capacity: Floats,
) -> Quotient | None:
    """Find what stands for what; None where ranks are not alike.

    Parameters
    ----------
    program : Program
    routed : mapping of str to RoutedCollective
        Collectives whose transfers are played, by name.
    rows : callable (RoutedCollective) -> Rows
    speeds : sequence of float
        By rank, as in Cluster.
    capacity : float array
        Of every link [B/s].
    """
    sites, lists = _sites(program)
    placed: list[Placed] = []
    number_of: dict[str, int] = {}
    known: dict[object, int] = {}
    for site, own in enumerate(sites):
        key = tuple((id(routed.get(op.name)), op.group, op.duration, op.startup, op.together) for op in own)
        first = known.setdefault(key, len(placed))
        if first == len(placed):
            for op in own:
                lies = routed.get(op.name)
                placed.append(Placed(site, op, None if lies is None else rows(lies), lies))
        number_of |= {op.name: first + place for place, op in enumerate(own)}
    facts = np.stack([lists, np.array(speeds or np.ones(len(lists)))])
    partition = equitable_partition(placed, np.unique(facts, axis=1, return_inverse=True)[1].ravel(), capacity)
    return None if partition is None else Quotient(partition, placed, number_of, sites, capacity)


def _sites(program: Program) -> tuple[list[Sequence[Collective]], Ints]:
    """The collectives of each place of each list, one a group, and by rank which list it plays.

    What ranks of several lists carry out together is a site of the first of them.
    """
    lists = program.lists()
    sites: dict[str, Sequence[Collective]] = {}
    for number, ops in enumerate(lists.lists):
        for place, op in enumerate(ops):
            if isinstance(op, Collective):
                own = lists.groups(number, place)
                sites.setdefault(own[0].name, own)
    return list(sites.values()), np.array(lists.list_of)


__all__ = ["Quotient", "Reduced", "reduce_by_symmetry", "reduced_rows"]
