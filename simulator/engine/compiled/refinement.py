"""Who fares alike among collectives that share links: kinds of ranks, transfers, channels and links.

Rule: two are of one kind until something tells them apart: what they are, or the kinds of those that they have to do
with. What has happened to one of a kind has happened to all of it, for whatever decides it is of the same kinds. Like
twins: who knows one's day knows the other's.

Shares are solved on kinds because the split is equitable: each link of a kind is taken by as many flows of every kind
[1]_.

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

# One odd link tells neighbours apart, then theirs, and so on; who hopes longer pays more than is gained.
_MAX_PASSES: Final = 64


@dataclass(frozen=True, slots=True)
class PlacedCollective:
    """A group's collective on its links.

    Attributes
    ----------
    line : int
        Which of the lines that are played together it is of.
    op : Collective
    traffic : Traffic or None
        None where its time is given, and so are the routes.
    routes : Routes or None
        With the fabric's numbers of links.
    """

    line: int
    op: Collective
    traffic: Traffic | None
    routes: Routes | None


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition as numbers from 0.

    Attributes
    ----------
    rank : int array, shape (ranks,)
    extra, row, channel : tuple of int array
        By part: of its servers and switches; of its rounds' transfers, one round behind the other; of its channels.
    part : int array, shape (parts,)
    link : int array, shape (links,)
    takes : tuple of int array, int array, float array
        A kind of transfer, a link that is the first of its kind, and what all flows of that kind take of it at rate 1.
    """

    rank: Ints
    extra: tuple[Ints, ...]
    row: tuple[Ints, ...]
    channel: tuple[Ints, ...]
    part: Ints
    link: Ints
    takes: tuple[Ints, Ints, Floats]


def equitable_partition(parts: Sequence[PlacedCollective], bounds: Ints, capacity: Floats) -> Partition | None:
    """Tell apart what does not fare alike.

    Parameters
    ----------
    parts : sequence of PlacedCollective
    bounds : int array, shape (ranks,)
        Equal for ranks that come at the same times.
    capacity : float array
        Of every link [B/s].

    Returns
    -------
    Partition or None
        None where there is nothing to be gained, or where a transfer carries more in one
        repetition of its round than in another.
    """
    traffics = {id(part.traffic): part.traffic for part in parts if part.traffic is not None}
    known = {number: transfer_table(traffic) for number, traffic in traffics.items()}
    if None in known.values():
        return None
    tables = _GraphTables(len(bounds))
    for part in parts:
        tables.sit(part, known.get(id(part.traffic)))
    return _ColourRefinement.of(tables, bounds, capacity).kinds()


@dataclass(slots=True)
class _GraphTables:
    """All parts' tables one behind the other: columns as lists of pieces, and where each part's pieces begin."""

    ranks: int
    cuts: dict[str, list[int]] = field(init=False)
    pieces: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)
    _alike: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cuts = {"end": [self.ranks], "row": [0], "channel": [0]}

    def sit(self, part: PlacedCollective, rows: TransferTable | None) -> None:
        """Add a part; one whose time is given has no rows."""
        op, number = part.op, len(self.parts)
        own = part.line, id(part.traffic), op.startup, op.together, op.duration, len(op.group), len(op.auxiliaries)
        self.parts.append(self._alike.setdefault(own, len(self._alike)))
        end, row, channel = (cut[-1] for cut in self.cuts.values())
        ends = np.concatenate([np.array(op.group, np.int64), end + np.arange(len(op.auxiliaries))])
        self._put(member=ends, of=np.full(len(ends), number))
        if rows is not None and part.routes is not None:
            latency, rate = (bits(column[rows.route]) for column in (part.routes.latency, part.routes.rate))
            self._put(facts=mixed(mixed(rows.facts, latency), rate), part=np.full(len(rows.route), number))
            self._put(src=ends[rows.src], dst=ends[rows.dst], channel=rows.channel + channel)
            self._put(waiter=rows.waits[0] + row, awaited=rows.waits[1] + row, how=rows.how)
            route, link, weight = part.routes.watched
            which, place = rows_with_keys(route, rows.route)
            self._put(crossing=which + row, link=link[place], weight=weight[place])
            row, channel = row + len(rows.route), channel + int(rows.channel.max(initial=-1)) + 1
        for name, last in (("end", end + len(op.auxiliaries)), ("row", row), ("channel", channel)):
            self.cuts[name].append(last)

    def _put(self, **columns: npt.NDArray[Any]) -> None:
        for name, column in columns.items():
            self.pieces.setdefault(name, []).append(column)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        kind = {"facts": np.uint64, "how": np.uint64, "weight": np.float64}.get(name, np.int64)
        return np.concatenate([np.zeros(0, kind), *self.pieces.get(name, [])])


@dataclass(frozen=True, slots=True)
class _Edges:
    """Pairs of one who sees and what is seen, each with a colour of its own."""

    sees: str
    seen: str
    who: Ints
    what: Ints
    how: Colours | int


@dataclass(slots=True)
class _ColourRefinement:
    """Colours of ranks and servers ("end"), rounds' transfers ("row"), channels, parts and links, and who sees whom."""

    ranks: int
    cuts: dict[str, list[int]]
    colours: dict[str, Colours]
    relations: tuple[_Edges, ...]
    crossing: tuple[Ints, Ints, Floats]

    @classmethod
    def of(cls, tables: _GraphTables, bounds: Ints, capacity: Floats) -> _ColourRefinement:
        src, dst, channel, part = (tables[name] for name in ("src", "dst", "channel", "part"))
        crossing = tables["crossing"], tables["link"], tables["weight"]
        row, takes = np.arange(len(src)), bits(crossing[2])
        colours = {
            "end": mixed(np.concatenate([bounds, np.full(tables.cuts["end"][-1] - len(bounds), -1)]), 0),
            "row": tables["facts"],
            "channel": np.zeros(tables.cuts["channel"][-1], np.uint64),
            "part": mixed(np.array(tables.parts, np.int64), 0),
            "link": mixed(bits(capacity), 0),
        }
        relations = (
            _Edges("row", "end", row, src, 1),
            _Edges("row", "end", row, dst, 2),
            _Edges("row", "channel", row, channel, 3),
            _Edges("row", "part", row, part, 4),
            _Edges("row", "row", tables["waiter"], tables["awaited"], tables["how"]),
            _Edges("row", "link", crossing[0], crossing[1], takes),
            _Edges("end", "row", src, row, 5),
            _Edges("end", "row", dst, row, 6),
            _Edges("end", "part", tables["member"], tables["of"], 7),
            _Edges("part", "end", tables["of"], tables["member"], 8),
            _Edges("channel", "row", channel, row, 9),
            _Edges("link", "row", crossing[1], crossing[0], takes),
        )
        return cls(len(bounds), tables.cuts, colours, relations, crossing)

    def kinds(self) -> Partition | None:
        """Colour until nothing is told apart any more; None where that takes long."""
        before = 0
        for _ in range(_MAX_PASSES):
            for relation in self.relations:
                self._refine_along(relation)
            count = sum(len(np.unique(colour)) for colour in self.colours.values())
            if count == before:
                found = {name: np.unique(colour, return_inverse=True)[1] for name, colour in self.colours.items()}
                extra, row, channel = (self._split(found[name], name) for name in ("end", "row", "channel"))
                # Ranks are numbered apart from servers and switches: of their kinds there are no more than ranks.
                rank = np.unique(self.colours["end"][: self.ranks], return_inverse=True)[1]
                takes = self._weights_of_classes(found["row"], found["link"])
                return Partition(rank, extra, row, channel, found["part"], found["link"], takes)
            before = count
        return None

    def _refine_along(self, relation: _Edges) -> None:
        """Who sees something takes on its colour."""
        own = self.colours[relation.sees]
        seen = mixed(self.colours[relation.seen][relation.what], relation.how)
        self.colours[relation.sees] = mixed(own, summed(relation.who, seen, len(own)))

    def _split(self, numbers: Ints, name: str) -> tuple[Ints, ...]:
        return tuple(numbers[a:b] for a, b in pairwise(self.cuts[name]))

    def _weights_of_classes(self, kind: Ints, link_kind: Ints) -> tuple[Ints, Ints, Floats]:
        """What is taken of each link that is the first of its kind."""
        row, link, weight = self.crossing
        first = np.zeros(len(link_kind), np.bool_)
        first[np.unique(link_kind, return_index=True)[1]] = True
        there = first[link]
        pair, place = np.unique(kind[row[there]] * len(first) + link[there], return_inverse=True)
        took = np.bincount(place, weight[there], len(pair)).astype(np.float64)
        return pair // len(first), pair % len(first), took


def rows_with_keys(key: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """For each entry of a rising column that is one of those wanted: which one, and the entry's place."""
    low, high = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
    count = high - low
    one = np.repeat(np.arange(len(wanted)), count)
    return one, np.arange(len(one)) - np.repeat(np.cumsum(count) - count - low, count)
