"""Which ranks, transfers and links of a whole program behave alike, by colour refinement.

The program is a graph. Its vertices are participants (ranks, servers, switches), rows of schedules, collectives and
links; its edges say who sends what to whom, over which links, after which other rows. Vertices start with a colour of
what they are (list of operations, speed, bytes, latency, capacity), and each pass mixes into every colour those of the
neighbours. When no class splits any more, all vertices of a class have as many neighbours of each class by edges of
each label. So whatever happens to one of a class happens to all of it at the same time: everything that decides it is
of the same classes. Max-min fair shares may be solved on classes for the same reason [1]_.

Rule: a class is a proof, never a guess: what is not known to be alike (chunks that change their size from one
repetition to the next) gives no partition.

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
from simulator.engine.compiled.colours import Colours, bits, different, mixed, summed
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
    """Edges (vertex, neighbour, label) along which colours are mixed; a label is a number or one for each edge."""

    kind: str
    neighbour_kind: str
    vertex: Ints
    neighbour: Ints
    label: Colours | int


@dataclass(slots=True)
class _Graph:
    """The vertices' colours so far, by kind, and the edges.

    Attributes
    ----------
    ranks : int
    cuts : dict of str to list of int
        By kind where each collective's vertices begin, and at last where the last one's end; participants are all ranks
        and, behind them, each collective's servers and switches.
    colours : dict of str to uint64 array
    edges : list of _Edges
    crossing : tuple of int array, int array, float array
        A row, a link of its route that matters, and what a flow at rate 1 takes of it.
    """

    ranks: int
    cuts: dict[str, list[int]]
    colours: dict[str, Colours]
    edges: list[_Edges]
    crossing: tuple[Ints, Ints, Floats]

    @classmethod
    def of(cls, collectives: Sequence[Placed], ranks: Ints, capacity: Floats) -> _Graph:
        pieces = _Pieces(len(ranks))
        for together in _alike(collectives):
            pieces.add(together)
        row, member, crossing = (pieces.columns(name) for name in ("row", "member", "crossing"))
        of_row, src, dst, facts = row
        number, weight = np.arange(len(src)), bits(crossing[2].astype(np.float64))
        auxiliary = np.full(pieces.cuts["participant"][-1] - len(ranks), -1)
        colours = {
            "participant": mixed(np.concatenate([ranks, auxiliary]), 0),
            "row": facts.astype(np.uint64),
            "collective": mixed(np.array(pieces.facts, np.int64), 0),
            "link": mixed(bits(capacity), 0),
        }
        real = src >= 0
        edges = [
            _Edges("row", "participant", number[real], src[real], 1),
            _Edges("row", "participant", number[real], dst[real], 2),
            _Edges("row", "collective", number, of_row, 3),
            _Edges("participant", "row", src[real], number[real], 4),
            _Edges("participant", "row", dst[real], number[real], 5),
            _Edges("participant", "collective", member[0], member[1], 6),
            _Edges("collective", "participant", member[1], member[0], 7),
            _Edges("row", "link", crossing[0], crossing[1], weight),
            _Edges("link", "row", crossing[1], crossing[0], weight),
        ]
        for awaited, waiter, label, back in (pieces.columns(name) for name in ("follow", "wait")):
            edges.append(_Edges("row", "row", waiter, awaited, label.astype(np.uint64)))
            there = back > 0
            edges.append(_Edges("row", "row", awaited[there], waiter[there], back[there].astype(np.uint64)))
        return cls(len(ranks), pieces.cuts, colours, edges, (crossing[0], crossing[1], crossing[2].astype(np.float64)))

    def refined(self) -> Partition | None:
        """Refine until a pass splits no class.

        A new colour depends on the old one, so classes only split: a pass that leaves their number leaves them all.
        """
        before = 0
        for _ in range(_MAX_PASSES):
            for edges in self.edges:
                self._mix(edges)
            # Which class each is in takes four times as long, and is asked for once.
            count = sum(map(different, self.colours.values()))
            if 2 * different(self.colours["participant"][: self.ranks]) > self.ranks:
                return None
            if count == before:
                every = self.colours.items()
                return self._partition({name: np.unique(colour, return_inverse=True)[1] for name, colour in every})
            before = count
        return None

    def _mix(self, edges: _Edges) -> None:
        """Mix into each vertex's colour the multiset of its neighbours' colours."""
        own = self.colours[edges.kind]
        seen = mixed(self.colours[edges.neighbour_kind][edges.neighbour], edges.label)
        self.colours[edges.kind] = mixed(own, summed(edges.vertex, seen, len(own)))

    def _partition(self, classes: dict[str, Ints]) -> Partition:
        auxiliary, row = (
            tuple(classes[kind][a:b] for a, b in pairwise(self.cuts[kind])) for kind in ("participant", "row")
        )
        # Ranks' classes are numbered from 0, for they are the ranks of what is played.
        rank = np.unique(self.colours["participant"][: self.ranks], return_inverse=True)[1]
        weights = self._class_weights(classes["row"], classes["link"])
        return Partition(rank, auxiliary, row, classes["collective"], classes["link"], weights)

    def _class_weights(self, row_class: Ints, link_class: Ints) -> tuple[Ints, Ints, Floats]:
        """For each link that is the first of its class, what each class of rows takes of it together."""
        row, link, weight = self.crossing
        first = np.zeros(len(link_class), np.bool_)
        first[np.unique(link_class, return_index=True)[1]] = True
        there = first[link]
        pair, place = np.unique(row_class[row[there]] * len(first) + link[there], return_inverse=True)
        taken = np.bincount(place, weight[there], len(pair)).astype(np.float64)
        return pair // len(first), pair % len(first), taken


class _Pieces:
    """Tables of all collectives one behind the other."""

    def __init__(self, ranks: int) -> None:
        self.cuts: dict[str, list[int]] = {"participant": [ranks], "row": [0]}
        self.facts: list[int] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._pieces: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {}
        widths = {"row": 4, "member": 2, "crossing": 3, "follow": 4, "wait": 4}
        for name, width in widths.items():
            self._pieces[name] = [tuple(np.zeros(0, np.int64) for _ in range(width))]
        self._pieces["row"][0] = (*self._pieces["row"][0][:3], np.zeros(0, np.uint64))

    def add(self, together: Sequence[Placed]) -> None:
        """Add collectives that differ in their groups and routes alone; those whose duration is given have no rows."""
        first, count, number = together[0], len(together), len(self.facts)
        op, servers = first.op, len(first.op.auxiliaries)
        traffic = None if first.routed is None else first.routed.traffic
        own = first.kind, id(traffic), op.startup, op.together, op.duration, len(op.group), servers
        self.facts += [self._known.setdefault(own, len(self._known))] * count
        participant, row = self.cuts["participant"][-1], self.cuts["row"][-1]
        groups = np.array([placed.op.group for placed in together], np.int64)
        behind = participant + np.arange(count * servers).reshape(count, servers)
        members = np.concatenate([groups, behind], axis=1)
        self._pieces["member"].append((members.ravel(), np.repeat(np.arange(number, number + count), members.shape[1])))
        rows = 0
        if first.rows is not None:
            rows = len(first.rows)
            self._rows(first.rows, [placed.routed for placed in together if placed.routed], members, row, number)
        self.cuts["participant"] += (participant + servers * np.arange(1, count + 1)).tolist()
        self.cuts["row"] += (row + rows * np.arange(1, count + 1)).tolist()

    def _rows(self, rows: Rows, routed: Sequence[RoutedCollective], members: Ints, base: int, number: int) -> None:
        """Rows of collectives of one schedule, those of one behind those of the other."""
        count, real = len(routed), ~rows.is_gate
        each, at_real = np.arange(count), np.flatnonzero(real)
        bases = base + each * len(rows)
        traffic, routes = routed[0].traffic, route_of_rows(rows, routed[0])[real]
        facts = np.tile(mixed(rows.round_of, 8), (count, 1))
        carried = bits(np.concatenate([np.zeros(0), *(part.nbytes for part in traffic.parts)]))
        latency = bits(np.array([own.routes.latency for own in routed])[:, routes])
        rate = bits(np.array([own.routes.rate for own in routed])[:, routes])
        for column in (carried, latency, rate):
            facts[:, real] = mixed(facts[:, real], column)
        facts[:, ~real] = mixed(facts[:, ~real], 9)
        src, dst = (np.where(real, members[:, column], -1) for column in (rows.src, rows.dst))
        numbers = np.repeat(number + each, len(rows))
        self._pieces["row"].append((numbers, src.ravel(), dst.ravel(), facts.ravel()))
        for own, first in zip(routed, bases.tolist(), strict=True):
            if own.routes.can_contend:
                taken_route, link, weight = own.routes.watched
                which, place = rows_with_keys(taken_route, routes)
                self._pieces["crossing"].append((at_real[which] + first, link[place], weight[place]))
        follows = [(at_real, rows.next[real], 10 + rows.next_shift[real])]
        leaves = np.flatnonzero(rows.exit >= 0)
        follows.append((leaves, rows.exit[leaves], np.full(len(leaves), 12)))
        for before, after, label in follows:
            # Along a channel colours go both ways, so that classes of rows make chains as rows do.
            self._repeat("follow", bases, before, after, label, label + 10)
        none = np.zeros
        awaited, waiter, shift = rows.inner
        self._repeat("wait", bases, awaited, waiter, mixed(shift, 30), none(len(shift), np.int64))
        awaited, at, waiter, times = rows.outer
        self._repeat("wait", bases, awaited, waiter, mixed(mixed(at, times), 31), none(len(at), np.int64))

    def _repeat(
        self, name: str, bases: Ints, one: Ints, other: Ints, label: npt.NDArray[Any], back: npt.NDArray[Any]
    ) -> None:
        """Pairs of rows of one collective, for each of those that begin at these rows."""
        count = len(bases)
        columns = (bases[:, None] + one).ravel(), (bases[:, None] + other).ravel()
        self._pieces[name].append((*columns, np.tile(label, count), np.tile(back, count)))

    def columns(self, name: str) -> tuple[npt.NDArray[Any], ...]:
        """A table's columns."""
        return tuple(np.concatenate(column) for column in zip(*self._pieces[name], strict=True))


def _alike(collectives: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
    """Neighbours that differ in their groups and routes alone."""

    def facts(placed: Placed) -> tuple[object, ...]:
        op, traffic = placed.op, None if placed.routed is None else id(placed.routed.traffic)
        sizes = len(op.group), len(op.auxiliaries)
        return placed.kind, id(placed.rows), traffic, op.startup, op.together, op.duration, *sizes

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
