"""Which ranks, transfers, channels and links behave alike when collectives share links, by colour refinement.

The collectives are a graph: its vertices are participants, transfers, channels, collectives and links; its edges say
who sends what to whom, on which channel, over which links, after which other transfers. Vertices start with a colour of
what they are (bytes, latency, capacity, ready time), and each pass mixes into every colour those of the neighbours.
When no class splits any more the partition is equitable: all vertices of a class have as many neighbours of each class,
by edges of each label. So whatever happens to one of a class happens to all of it at the same time, because everything
that decides it is of the same classes. Like twins: who knows one's day knows the other's.

Max-min fair shares may be solved on classes for the same reason: each link of a class carries as many flows of every
class [1]_.

References
----------
.. [1] Grohe, Kersting, Mladenov & Selman, "Dimension reduction via colour refinement", ESA 2014, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.colours import Colours, bits, mixed, summed
from simulator.engine.compiled.transfer_table import TransferTable, transfer_table
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.program import Collective

# One odd link sets its neighbours apart in the first pass, theirs in the second, and so on. More than 64 passes means
# that classes are nearly singletons; give up.
_MAX_PASSES: Final = 64


@dataclass(frozen=True, slots=True)
class PlacedCollective:
    """A process group's collective on its links.

    Attributes
    ----------
    spmd_op : int
        Of which of the co-scheduled operations it is.
    op : Collective
    traffic : Traffic or None
        None if the collective's duration is given; then there are no routes either.
    routes : Routes or None
        With the fabric's numbers of links.
    """

    spmd_op: int
    op: Collective
    traffic: Traffic | None
    routes: Routes | None


@dataclass(frozen=True, slots=True)
class Partition:
    """Equivalence classes as numbers from 0.

    Attributes
    ----------
    rank : int array, shape (ranks,)
    auxiliary, transfer, channel : tuple of int array
        By collective: classes of its servers and switches, of its transfers (those of a repeated round once, one round
        behind the other), and of its channels.
    collective : int array, shape (collectives,)
    link : int array, shape (links,)
    weights : tuple of int array, int array, float array
        A class of transfers, a link that is the first of its class, and what all flows of the class of transfers take
        together of that link if each has a rate of 1.
    """

    rank: Ints
    auxiliary: tuple[Ints, ...]
    transfer: tuple[Ints, ...]
    channel: tuple[Ints, ...]
    collective: Ints
    link: Ints
    weights: tuple[Ints, Ints, Floats]


def equitable_partition(
    collectives: Sequence[PlacedCollective], ready_classes: Ints, capacity: Floats
) -> Partition | None:
    """The coarsest equitable partition of co-scheduled collectives.

    Parameters
    ----------
    collectives : sequence of PlacedCollective
    ready_classes : int array, shape (ranks,)
        Equal for ranks that are ready at the same times.
    capacity : float array
        Of every link [B/s].

    Returns
    -------
    Partition or None
        None if refinement does not end soon, or if a transfer carries more in one repetition of its round than in
        another.
    """
    traffics = {id(placed.traffic): placed.traffic for placed in collectives if placed.traffic is not None}
    tables = {number: transfer_table(traffic) for number, traffic in traffics.items()}
    if None in tables.values():
        return None
    graph = _GraphTables(len(ready_classes))
    for placed in collectives:
        graph.add(placed, tables.get(id(placed.traffic)))
    return _ColourRefinement.of(graph, ready_classes, capacity).partition()


@dataclass(slots=True)
class _GraphTables:
    """All collectives' tables one behind the other.

    Attributes
    ----------
    ranks : int
    cuts : dict of str to list of int
        By kind of vertex where each collective's vertices begin and, at last, where the last one's end. Participants
        are all ranks, which collectives have in common, and behind them each collective's servers and switches.
    pieces : dict of str to list of array
        By column one piece for each collective.
    facts : list of int
        By collective a number for all that it is by itself.
    """

    ranks: int
    cuts: dict[str, list[int]] = field(init=False)
    pieces: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    facts: list[int] = field(default_factory=list)
    _known_facts: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cuts = {"participant": [self.ranks], "transfer": [0], "channel": [0]}

    def add(self, placed: PlacedCollective, table: TransferTable | None) -> None:
        """Add a collective; one whose duration is given has no transfers."""
        op, number = placed.op, len(self.facts)
        own = (
            placed.spmd_op,
            id(placed.traffic),
            op.startup,
            op.together,
            op.duration,
            len(op.group),
            len(op.auxiliaries),
        )
        self.facts.append(self._known_facts.setdefault(own, len(self._known_facts)))
        participant, transfer, channel = (cut[-1] for cut in self.cuts.values())
        members = np.concatenate([np.array(op.group, np.int64), participant + np.arange(len(op.auxiliaries))])
        self._put(member=members, member_of=np.full(len(members), number))
        if table is not None and placed.routes is not None:
            latency, rate = (bits(column[table.route]) for column in (placed.routes.latency, placed.routes.rate))
            facts = mixed(mixed(table.facts, latency), rate)
            self._put(facts=facts, collective=np.full(len(table.route), number))
            self._put(src=members[table.src], dst=members[table.dst], channel=table.channel + channel)
            self._put(waiter=table.waits[0] + transfer, awaited=table.waits[1] + transfer, wait_facts=table.wait_facts)
            route, link, weight = placed.routes.watched
            which, place = rows_with_keys(route, table.route)
            self._put(crossing=which + transfer, link=link[place], weight=weight[place])
            transfer, channel = transfer + len(table.route), channel + int(table.channel.max(initial=-1)) + 1
        ends = ("participant", participant + len(op.auxiliaries)), ("transfer", transfer), ("channel", channel)
        for name, end in ends:
            self.cuts[name].append(end)

    def _put(self, **columns: npt.NDArray[Any]) -> None:
        for name, column in columns.items():
            self.pieces.setdefault(name, []).append(column)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        dtype = {"facts": np.uint64, "wait_facts": np.uint64, "weight": np.float64}.get(name, np.int64)
        return np.concatenate([np.zeros(0, dtype), *self.pieces.get(name, [])])


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges (vertex, neighbour, label) along which labels are refined.

    Attributes
    ----------
    kind, neighbour_kind : str
        Of vertex on either side.
    vertex, neighbour : int array, shape (edges,)
    label : uint64 array, shape (edges,), or int
        One for all edges, or each one's own: what the neighbour is to the vertex.
    """

    kind: str
    neighbour_kind: str
    vertex: Ints
    neighbour: Ints
    label: Colours | int


@dataclass(slots=True)
class _ColourRefinement:
    """The graph, and the colours of its vertices so far.

    Attributes
    ----------
    ranks : int
    cuts : dict of str to list of int
        As in _GraphTables.
    colours : dict of str to uint64 array
        By kind of vertex.
    edges : tuple of _Edges
    crossing : tuple of int array, int array, float array
        A transfer, a link of its route that matters, and what a flow at rate 1 takes of it.
    """

    ranks: int
    cuts: dict[str, list[int]]
    colours: dict[str, Colours]
    edges: tuple[_Edges, ...]
    crossing: tuple[Ints, Ints, Floats]

    @classmethod
    def of(cls, graph: _GraphTables, ready_classes: Ints, capacity: Floats) -> _ColourRefinement:
        src, dst, channel, collective = (graph[name] for name in ("src", "dst", "channel", "collective"))
        crossing = graph["crossing"], graph["link"], graph["weight"]
        transfer, weight = np.arange(len(src)), bits(crossing[2])
        auxiliary = np.full(graph.cuts["participant"][-1] - len(ready_classes), -1)
        colours = {
            "participant": mixed(np.concatenate([ready_classes, auxiliary]), 0),
            "transfer": graph["facts"],
            "channel": np.zeros(graph.cuts["channel"][-1], np.uint64),
            "collective": mixed(np.array(graph.facts, np.int64), 0),
            "link": mixed(bits(capacity), 0),
        }
        edges = (
            _Edges("transfer", "participant", transfer, src, 1),
            _Edges("transfer", "participant", transfer, dst, 2),
            _Edges("transfer", "channel", transfer, channel, 3),
            _Edges("transfer", "collective", transfer, collective, 4),
            _Edges("transfer", "transfer", graph["waiter"], graph["awaited"], graph["wait_facts"]),
            _Edges("transfer", "link", crossing[0], crossing[1], weight),
            _Edges("participant", "transfer", src, transfer, 5),
            _Edges("participant", "transfer", dst, transfer, 6),
            _Edges("participant", "collective", graph["member"], graph["member_of"], 7),
            _Edges("collective", "participant", graph["member_of"], graph["member"], 8),
            _Edges("channel", "transfer", channel, transfer, 9),
            _Edges("link", "transfer", crossing[1], crossing[0], weight),
        )
        return cls(len(ready_classes), graph.cuts, colours, edges, crossing)

    def partition(self) -> Partition | None:
        """Refine until a pass splits no class; None if that takes too many passes.

        A new colour depends on the old one, so classes only split: a pass that leaves their number leaves them all.
        """
        before = 0
        for _ in range(_MAX_PASSES):
            for edges in self.edges:
                self._refine_along(edges)
            count = sum(len(np.unique(colour)) for colour in self.colours.values())
            if count == before:
                classes = {name: np.unique(colour, return_inverse=True)[1] for name, colour in self.colours.items()}
                auxiliary, transfer, channel = (
                    self._by_collective(classes[name], name) for name in ("participant", "transfer", "channel")
                )
                # Ranks' classes are numbered apart from those of servers and switches, for these numbers become the
                # ranks of the program that is played in place of this one.
                rank = np.unique(self.colours["participant"][: self.ranks], return_inverse=True)[1]
                weights = self._class_weights(classes["transfer"], classes["link"])
                return Partition(rank, auxiliary, transfer, channel, classes["collective"], classes["link"], weights)
            before = count
        return None

    def _refine_along(self, edges: _Edges) -> None:
        """Mix into each vertex's colour the multiset of its neighbours' colours."""
        own = self.colours[edges.kind]
        seen = mixed(self.colours[edges.neighbour_kind][edges.neighbour], edges.label)
        self.colours[edges.kind] = mixed(own, summed(edges.vertex, seen, len(own)))

    def _by_collective(self, classes: Ints, kind: str) -> tuple[Ints, ...]:
        return tuple(classes[begin:end] for begin, end in pairwise(self.cuts[kind]))

    def _class_weights(self, transfer_class: Ints, link_class: Ints) -> tuple[Ints, Ints, Floats]:
        """For each link that is the first of its class, what each class of transfers takes of it together.

        One link stands for its class, because in an equitable partition every class of transfers takes as much of each
        link of a class.
        """
        transfer, link, weight = self.crossing
        first = np.zeros(len(link_class), np.bool_)
        first[np.unique(link_class, return_index=True)[1]] = True
        there = first[link]
        pair, place = np.unique(transfer_class[transfer[there]] * len(first) + link[there], return_inverse=True)
        taken = np.bincount(place, weight[there], len(pair)).astype(np.float64)
        return pair // len(first), pair % len(first), taken


def rows_with_keys(key: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """All rows of a rising column that have one of the wanted keys: which wanted entry it is, and the row."""
    low, high = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
    count = high - low
    which = np.repeat(np.arange(len(wanted)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - low, count)
