"""How does one rank per class replace the whole program? The quotient has a single rank, row and link per class.

Each class's first member stands for the class. A quotient row connects participant classes and waits for row classes.
On each link it weighs like the flows of its class together.

Example: ranks 0 to 3 in a node send over an uplink with 40 B/s at the same time::

    program                              quotient
    rank 0 ---+                          rank 0 --- weight 4 --- uplink, 40 B/s
    rank 1 ---+--- uplink, 40 B/s
    rank 2 ---+                          rate = 40 / 4 = 10 B/s, as each flow of the program
    rank 3 ---+
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.compiled.columns import begins
from simulator.engine.compiled.partition import Partition, Placed, equitable_partition, route_of_rows, rows_with_keys
from simulator.engine.compiled.rows import Rows
from simulator.engine.compiled.simulated_kinds import SimulatedKind
from simulator.engine.compiled.sized_collective import SizedCollective, may_be_in_order, units_by_row
from simulator.engine.routes import Routes
from simulator.records.operation import Collective
from simulator.records.program import Program


@dataclass(frozen=True, eq=False)
class Representative:
    """The reduced collective that represents a class of equally behaving collectives."""

    playable: SizedCollective  # the collective with one row for each class of rows
    # Class of each row of `playable`; shape (reduced rows,).
    of_class: Ints


@dataclass(frozen=True, eq=False)
class Quotient:
    """The reduced program, and the map from ranks, collectives and transfers to the members that represent them."""

    partition: Partition  # classes of all vertices
    collectives: Sequence[Placed]  # members of the first family of each kind, kind after kind
    # Number of the first member of each kind, then the number of all members; shape (kinds + 1,).
    first: Ints
    # Capacity of each link [B/s]; shape (links,).
    capacity: Floats
    _numbers: dict[int, Ints] = field(default_factory=dict)
    _ranks: dict[int, Ints] = field(default_factory=dict)
    _shapes: dict[tuple[int, int, bytes, bytes, bytes], tuple[Rows, Ints]] = field(default_factory=dict)
    _carried: _Carried = field(default_factory=lambda: _Carried())

    @cached_property
    def first_rank(self) -> Ints:
        """Return the first rank's number in each class of equal ranks."""
        return np.unique(self.partition.rank, return_index=True)[1]

    @cached_property
    def representative(self) -> Ints:
        """Return, for each collective, the representative's number: the first collective in the same class."""
        return np.unique(self.partition.collective, return_index=True)[1][self.partition.collective]

    def played(self, kind: int, members: Sequence[Collective]) -> SimulatedKind:
        """Return a collective kind with a single process group for each class of equal collectives among `members`."""
        numbers = self._played_numbers(kind)
        first, representatives = int(self.first[kind]), numbers.tolist()
        groups = [tuple(self.ranks_of(number).tolist()) for number in representatives]
        playables = [self.reduced[number].playable if number in self.reduced else None for number in representatives]
        which, place = np.zeros((2, len(self.first_rank)), np.int64)
        group_of = np.full(len(self.partition.rank), -1)
        for number, op in enumerate(members):
            group_of[list(op.group)] = number
        # For each rank class, the member that contains its first rank; -1 if none does.
        member = group_of[self.first_rank]
        joining = np.flatnonzero(member >= 0)
        # Each simulated rank joins its own collective's representative, at its class's place in the group.
        numbers_of_ranks = self.representative[first + member[joining]]
        which[joining] = np.searchsorted(numbers, numbers_of_ranks)
        for rank_class, number in zip(joining.tolist(), numbers_of_ranks.tolist(), strict=True):
            place[rank_class] = np.searchsorted(self.ranks_of(number), rank_class)
        return SimulatedKind([members[number - first] for number in representatives], groups, playables, which, place)

    def _played_numbers(self, kind: int) -> Ints:
        """Return the numbers given to a kind's representative collectives, in rising order."""
        if kind not in self._numbers:
            self._numbers[kind] = np.unique(self.representative[self.first[kind] : self.first[kind + 1]])
        return self._numbers[kind]

    def played_member(self, kind: int, member: int) -> int:
        """Return the index for the simulated process group that represents group `member` in a collective kind."""
        representative = self.representative[self.first[kind] + member]
        return int(np.searchsorted(self._played_numbers(kind), representative))

    def played_rows(self, kind: int, member: int) -> Ints:
        """Return, for each row in process group `member`'s collective, the simulated row that represents it."""
        number = int(self.first[kind]) + member
        reduced = self.reduced[int(self.representative[number])]
        return reduced_rows(reduced.of_class, self.partition.row[number])

    def ranks_of(self, number: int) -> Ints:
        """Return the classes of the ranks in collective `number`, sorted and without duplicates."""
        if number not in self._ranks:
            self._ranks[number] = np.unique(self.partition.rank[list(self.collectives[number].op.group)])
        return self._ranks[number]

    @cached_property
    def reduced(self) -> dict[int, Representative]:
        """Return the simulated (reduced) collectives by number; collectives with a given duration are omitted."""
        reduced = {}
        for number in np.unique(self.representative).tolist():
            placed = self.collectives[number]
            if placed.rows is not None and placed.routed is not None:
                reduced[number] = self._reduce(number, placed.rows, placed.routed)
        return reduced

    def _reduce(self, number: int, rows_of_all: Rows, routed: RoutedCollective) -> Representative:
        """Return the reduced collective for collective `number`: one row per class of rows, with bytes and routes."""
        classes = self.partition.row[number]
        # Classes are sorted by first row, which keeps rounds in order.
        first = np.sort(np.unique(classes, return_index=True)[1])
        of_class = classes[first]
        rows, route_of = self._shape(number, rows_of_all, first, reduced_rows(of_class, classes))
        real = ~rows.is_gate
        units = self._carried.of(rows_of_all, routed, first)
        routes = self._routes(routed, of_class[real], route_of_rows(rows_of_all, routed)[first[real]])
        # The representative stands for several groups on a stream. Computing without the clock is allowed only if these
        # groups never contend with each other (wide lane) and the collective's own flows never contend.
        in_order = routed.wide_lane and not routed.contends and may_be_in_order(self.collectives[number].op)
        return Representative(SizedCollective(rows, route_of, units, True, routes, in_order, routed.lane), of_class)

    def _shape(self, number: int, rows_of_all: Rows, first: Ints, new: Ints) -> tuple[Rows, Ints]:
        """Return the reduced rows for collective `number`, one per row class, and each row's route.

        Collectives with equal results share the objects.
        """
        participant, ranks = self._participants(number), len(self.ranks_of(number))
        # Collectives with equal rows and equal classes share a shape, hence the core's arrays too.
        key = id(rows_of_all), ranks, first.tobytes(), new.tobytes(), participant.tobytes()
        if key not in self._shapes:
            rows = _reduced(rows_of_all, ranks, participant, first, new)
            route_of = np.zeros(len(rows), np.int64)
            # Each transfer class has its own route (`_routes`).
            route_of[~rows.is_gate] = np.arange(int((~rows.is_gate).sum()))
            self._shapes[key] = rows, route_of
        return self._shapes[key]

    def _participants(self, number: int) -> Ints:
        """Return each participant's index in the reduced collective, for collective `number`."""
        ranks, auxiliary = self.ranks_of(number), self.partition.auxiliary[number]
        # A group may contain several ranks in a class; they share a representative.
        classes = self.partition.rank[list(self.collectives[number].op.group)]
        behind = np.unique(auxiliary, return_inverse=True)[1]
        return np.concatenate([np.searchsorted(ranks, classes), len(ranks) + behind])

    def _routes(self, routed: RoutedCollective, of_class: Ints, route: Ints) -> Routes:
        """Return a route for each transfer class, given each class's number and an original route.

        A route takes the first link in each link class, with the total weight of the transfer class there.
        """
        row_class, link, weight = self.partition.weights
        route_of_pair, place = rows_with_keys(row_class, of_class)
        link, weight = link[place], weight[place]
        rate = routed.routes.rate[route]
        # `rate` belongs to each single flow. The class's flows together take `weight` times more, therefore a link may
        # be a tighter bound than the route's own rate.
        np.minimum.at(rate, route_of_pair, self.capacity[link] / weight)
        return Routes(
            route_of_pair, link, weight, routed.routes.latency[route], rate, np.ones(len(route_of_pair), np.bool_)
        )


@dataclass(frozen=True, slots=True)
class _Carried:
    """Cache for the units of chosen rows: collectives with equal traffic and priority share an array."""

    known: dict[tuple[int, float, bytes], Floats] = field(default_factory=dict)

    def of(self, rows: Rows, routed: RoutedCollective, first: Ints) -> Floats:
        """Return the units of the rows `first` from a collective's schedule, in their first repetition."""
        key = id(routed.traffic), routed.priority, first.tobytes()
        if key not in self.known:
            self.known[key] = units_by_row(rows, routed)[first]
        return self.known[key]


def _reduced(rows: Rows, ranks: int, participant: Ints, first: Ints, new: Ints) -> Rows:
    """Return a schedule reduced to `first`, the first row of each class; `new` maps every row to its reduced row."""
    # Only waits by first rows are kept, because a first row's waits stand for its class.
    is_first = np.zeros(len(rows), np.bool_)
    is_first[first] = True

    def renamed(column: Ints) -> Ints:
        return np.where(column[first] >= 0, new[column[first]], -1)

    return Rows(
        ranks,
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


def reduced_rows(of_class: Ints, classes: Ints) -> Ints:
    """Return, for each row class in `classes`, the simulated row with this class: the index in `of_class`."""
    order = np.argsort(of_class)
    return np.asarray(order[np.searchsorted(of_class[order], classes)])


def _first_pairs(
    rows: Rows, is_first: Bools, new: Ints
) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints, Ints]]:
    """Return the waits for each class's first row, inside and between rounds, renumbered by `new`, not repeated."""
    awaited, waiter, shift = (column[is_first[rows.inner[1]]] for column in rows.inner)
    inner = np.unique(np.stack([new[awaited], new[waiter], shift]), axis=1)
    awaited, at, waiter, times = (column[is_first[rows.outer[2]]] for column in rows.outer)
    outer = np.unique(np.stack([new[awaited], at, new[waiter], times]), axis=1)
    return (inner[0], inner[1], inner[2]), (outer[0], outer[1], outer[2], outer[3])


def reduce_by_symmetry(
    program: Program,
    routed: Sequence[Sequence[RoutedCollective | None]],
    rows: Callable[[RoutedCollective], Rows],
    speeds: Sequence[float],
    capacity: Floats,
) -> Quotient | None:
    """Return the program reduced to one rank per class of equal ranks, or None if too many ranks differ.

    Ranks with a common list take part in families with equal kinds at equal places. A single family per kind therefore
    separates ranks just like the whole program does.

    Parameters
    ----------
    program : Program
        The whole program.
    routed : sequence of sequence of RoutedCollective or None
        Routes by kind and member, as in `CoreProgram`.
    rows : callable (RoutedCollective) -> Rows
        Returns the rows of a collective's schedule.
    speeds : sequence of float
        Speed of each rank, as in `Cluster`; empty if all ranks are healthy.
    capacity : float array, shape (links,)
        Capacity of each link [B/s].
    """
    kinds = program.lists.kinds
    placed = [
        Placed(kind, op, None if lies is None else rows(lies), lies)
        for kind, (members, routed_members) in enumerate(zip(kinds, routed, strict=True))
        for op, lies in zip(members, routed_members, strict=True)
    ]
    lists = np.array(program.lists.list_of)
    # Two ranks may only be alike if list, speed and work are equal.
    facts = np.stack([lists, np.array(speeds or np.ones(len(lists))), *program.work])
    partition = equitable_partition(placed, np.unique(facts, axis=1, return_inverse=True)[1].ravel(), capacity)
    return None if partition is None else Quotient(partition, placed, begins(map(len, kinds)), capacity)


__all__ = ["Quotient", "Representative", "reduce_by_symmetry", "reduced_rows"]
