"""One of each kind of a group's transfers, written out for the events engine.

Rule: whatever a transfer of a group does, the one that stands for its kind does too: to kinds of ranks, after kinds of
transfers, over the first link of each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.compiled.refinement import Partition, PlacedCollective, rows_with_keys
from simulator.engine.path import Path
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.transfers import Transfers, before_on_channel


@dataclass(frozen=True, eq=False)
class QuotientSchedule:
    """What is played for a group; attributes are those of `engine.wiring.Wired`.

    Participants are kinds of ranks, then kinds of servers and switches; links are the first of their kinds.
    """

    transfers: Transfers
    nbytes: Floats
    route_of: npt.NDArray[np.int32]
    routes: Routes
    capacity: Floats
    vertices: tuple[str, ...] = ()

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """By kind of transfer."""
        return self.routes.paths(self.capacity)

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """By path."""
        return tuple(path.links for path in self.paths)


@dataclass(frozen=True, eq=False)
class Representatives:
    """Which transfers stand for those of a group, round by round.

    Attributes
    ----------
    traffic : Traffic
    row : tuple of int array
        By round the first row of each kind, rising: so what is ahead on a channel stays ahead.
    kind : tuple of int array
        By round the kinds of these rows.
    """

    traffic: Traffic
    row: tuple[Ints, ...]
    kind: tuple[Ints, ...]

    @classmethod
    def of(cls, traffic: Traffic, kinds: Ints) -> Representatives:
        """From the kinds of all rounds' rows."""
        rounds = _by_round(traffic, kinds)
        rows = [np.sort(np.unique(own, return_index=True)[1]) for own in rounds]
        return cls(traffic, tuple(rows), tuple(own[row] for own, row in zip(rounds, rows, strict=True)))

    @cached_property
    def bases(self) -> Ints:
        """By round the number of the first transfer that is played for it; then how many there are."""
        lengths = [len(kind) * part.repeat.times for kind, part in zip(self.kind, self.traffic.parts, strict=True)]
        return np.cumsum([0, *lengths])

    def __len__(self) -> int:
        return int(self.bases[-1])

    def numbers(self, kinds: Ints, wanted: Bools) -> Ints:
        """What stands for the wanted rows of a group whose rows are of these kinds, in all repetitions."""
        found = [np.zeros(0, np.int64)]
        rounds = zip(_by_round(self.traffic, kinds), _by_round(self.traffic, wanted), strict=True)
        for number, (own, chosen) in enumerate(rounds):
            turns = np.arange(self.traffic.parts[number].repeat.times)[:, None] * len(self.kind[number])
            found.append((self.bases[number] + turns + _places_in(self.kind[number], own[chosen])).ravel())
        return np.concatenate(found)

    def written(
        self, part: PlacedCollective, routes: Routes, number: int, kinds: Partition, capacity: Floats
    ) -> QuotientSchedule:
        """Write it out for a part, the `number`-th of all."""
        rounds = [own.repeat.round for own in self.traffic.parts]
        place = _places(part, number, kinds)
        src, dst, channel = (
            self._column([of[getattr(r, name)[row]] for r, row in zip(rounds, self.row, strict=True)])
            for name, of in (("src", place), ("dst", place), ("channel", kinds.channel[number]))
        )
        sizes = [own.nbytes[row] for own, row in zip(self.traffic.parts, self.row, strict=True)]
        none = np.zeros(len(src), np.int32)
        before = before_on_channel(channel)
        transfers = Transfers(
            src, dst, none, none, none, channel, none > 0, before, partial(self._waits, kinds.row[number])
        )
        first = np.cumsum([0, *map(len, self.kind)])
        route_of = self._column([a + np.arange(len(kind)) for a, kind in zip(first.tolist(), self.kind, strict=False)])
        nbytes = self._tiled(sizes).astype(np.float64)
        return QuotientSchedule(transfers, nbytes, route_of, self._ways(routes, kinds, capacity), capacity)

    def _waits(self, kinds: Ints) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Pairs of (awaited, waiter), each once."""
        parts, rows = self.traffic.parts, _by_round(self.traffic, kinds)
        lengths = np.array([len(own.route_of) for own in parts])
        own_lengths = np.array([len(kind) for kind in self.kind])
        begins = np.cumsum([0, *(len(own.route_of) * own.repeat.times for own in parts)])
        base = np.cumsum(lengths) - lengths
        place = _joined([_places_in(kind, row) for kind, row in zip(self.kind, rows, strict=True)])
        pairs = [np.zeros(0, np.int64)]
        for number, (own, row) in enumerate(zip(parts, self.row, strict=True)):
            round_ = own.repeat.round
            waits = round_.after[row if round_.gate is None else round_.gate[row]]
            one, column = np.nonzero(waits >= 0)
            turn = np.arange(own.repeat.times)[:, None]
            on = waits[one, column] + turn * lengths[number]
            other = np.searchsorted(begins, on, "right") - 1
            repetition, there = np.divmod(on - begins[other], lengths[other])
            awaited = self.bases[other] + repetition * own_lengths[other] + place[base[other] + there]
            waiter = self.bases[number] + turn * own_lengths[number] + one
            pairs.append((waiter * len(self) + awaited).ravel())
        waiter, awaited = np.divmod(np.unique(np.concatenate(pairs)), max(len(self), 1))
        return awaited.astype(np.int32), waiter.astype(np.int32)

    def _ways(self, routes: Routes, kinds: Partition, capacity: Floats) -> Routes:
        """By kind of transfer, in order of rounds: what all of a kind take of the first link of each kind."""
        kind, link, weight = kinds.takes
        own, place = rows_with_keys(kind, _joined(self.kind))
        link, weight = link[place], weight[place]
        route = _joined([part.route_of[row] for part, row in zip(self.traffic.parts, self.row, strict=True)])
        rate = routes.rate[route]
        np.minimum.at(rate, own, capacity[link] / weight)
        return Routes(own, link, weight, routes.latency[route], rate, np.ones(len(own), np.bool_))

    def _column(self, by_round: Sequence[Ints]) -> npt.NDArray[np.int32]:
        return self._tiled(by_round).astype(np.int32)

    def _tiled(self, by_round: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Columns of rounds, repeated as these are, one behind the other."""
        times = [own.repeat.times for own in self.traffic.parts]
        return np.concatenate([np.zeros(0), *(np.tile(own, n) for own, n in zip(by_round, times, strict=True))])


def members_of(part: PlacedCollective, number: int, kinds: Partition) -> tuple[Ints, Ints]:
    """Which kinds of ranks take part, and which of servers and switches; rising."""
    return np.unique(kinds.rank[list(part.op.group)]), np.unique(kinds.extra[number])


def _places(part: PlacedCollective, number: int, kinds: Partition) -> Ints:
    """By participant of a part the participant that stands for it."""
    ranks, auxiliaries = members_of(part, number, kinds)
    return np.concatenate(
        [
            np.searchsorted(ranks, kinds.rank[list(part.op.group)]),
            len(ranks) + np.searchsorted(auxiliaries, kinds.extra[number]),
        ]
    )


def _places_in(column: Ints, wanted: Ints) -> Ints:
    """Where each of those wanted stands in a column."""
    order = np.argsort(column)
    found: Ints = order[np.searchsorted(column[order], wanted)]
    return found


def _by_round(traffic: Traffic, rows: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    if not traffic.parts:
        return []
    return np.split(rows, np.cumsum([len(part.route_of) for part in traffic.parts])[:-1])


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
