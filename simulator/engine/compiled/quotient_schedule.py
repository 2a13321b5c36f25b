"""The schedule of one representative of each class of a collective's transfers, written out for the events engine.

Whatever a transfer does, the representative of its class does too: it is sent from a class of participants to another,
waits for classes of transfers, and takes of the first link of each class what all flows of its class take there
together.
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
    """What is played in place of a collective; attributes are those of `engine.wiring.Wired`.

    Participants are classes of ranks, then classes of servers and switches; links are the first of their classes.
    """

    transfers: Transfers
    nbytes: Floats
    route_of: npt.NDArray[np.int32]
    routes: Routes
    capacity: Floats
    vertices: tuple[str, ...] = ()

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """By class of transfers."""
        return self.routes.paths(self.capacity)

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """By path."""
        return tuple(path.links for path in self.paths)


@dataclass(frozen=True, eq=False)
class Representatives:
    """Which transfers stand for all transfers of a traffic, round by round.

    Attributes
    ----------
    traffic : Traffic
    row : tuple of int array
        By round the first row of each class. Rows rise, so a transfer that is before another on its channel stays so.
    of_class : tuple of int array
        By round the classes of these rows.
    """

    traffic: Traffic
    row: tuple[Ints, ...]
    of_class: tuple[Ints, ...]

    @classmethod
    def of(cls, traffic: Traffic, classes: Ints) -> Representatives:
        """Choose them from the classes of all rounds' rows."""
        rounds = _by_round(traffic, classes)
        rows = [np.sort(np.unique(own, return_index=True)[1]) for own in rounds]
        return cls(traffic, tuple(rows), tuple(own[row] for own, row in zip(rounds, rows, strict=True)))

    @cached_property
    def bases(self) -> Ints:
        """By round the number of the first transfer that is played for it; then how many transfers are played."""
        lengths = [len(own) * part.repeat.times for own, part in zip(self.of_class, self.traffic.parts, strict=True)]
        return np.cumsum([0, *lengths])

    def __len__(self) -> int:
        return int(self.bases[-1])

    def numbers(self, classes: Ints, wanted: Bools) -> Ints:
        """Numbers of the transfers that stand for the wanted rows, in all repetitions, for rows of these classes."""
        by_round = [np.zeros(0, np.int64)]
        rounds = zip(_by_round(self.traffic, classes), _by_round(self.traffic, wanted), strict=True)
        for number, (own, chosen) in enumerate(rounds):
            turns = np.arange(self.traffic.parts[number].repeat.times)[:, None] * len(self.of_class[number])
            places = _places_in(self.of_class[number], own[chosen])
            by_round.append((self.bases[number] + turns + places).ravel())
        return np.concatenate(by_round)

    def schedule(
        self, placed: PlacedCollective, routes: Routes, number: int, classes: Partition, capacity: Floats
    ) -> QuotientSchedule:
        """Write them out for a collective, the `number`-th of all."""
        rounds = [own.repeat.round for own in self.traffic.parts]
        participant = _participants(placed, number, classes)
        src, dst, channel = (
            self._column([of[getattr(r, name)[row]] for r, row in zip(rounds, self.row, strict=True)])
            for name, of in (("src", participant), ("dst", participant), ("channel", classes.channel[number]))
        )
        sizes = [own.nbytes[row] for own, row in zip(self.traffic.parts, self.row, strict=True)]
        none = np.zeros(len(src), np.int32)
        before = before_on_channel(channel)
        waits = partial(self._waits, classes.transfer[number])
        # Chunks and reductions are of no use to the clock.
        transfers = Transfers(src, dst, none, none, none, channel, none > 0, before, waits)
        # Each round's classes have routes of their own, for `_routes` puts one row a class and round.
        first = np.cumsum([0, *map(len, self.of_class)])
        route_of = self._column(
            [a + np.arange(len(own)) for a, own in zip(first.tolist(), self.of_class, strict=False)]
        )
        nbytes = self._tiled(sizes).astype(np.float64)
        return QuotientSchedule(transfers, nbytes, route_of, self._routes(routes, classes, capacity), capacity)

    def _waits(self, classes: Ints) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Pairs of (awaited, waiter), each once: a representative waits for those of what its own row waits for."""
        parts, rows = self.traffic.parts, _by_round(self.traffic, classes)
        lengths = np.array([len(own.route_of) for own in parts])
        own_lengths = np.array([len(own) for own in self.of_class])
        begins = np.cumsum([0, *(len(own.route_of) * own.repeat.times for own in parts)])
        base = np.cumsum(lengths) - lengths
        place = _joined([_places_in(own, row) for own, row in zip(self.of_class, rows, strict=True)])
        pairs = [np.zeros(0, np.int64)]
        for number, (own, row) in enumerate(zip(parts, self.row, strict=True)):
            round_ = own.repeat.round
            waits = round_.after[row if round_.gate is None else round_.gate[row]]
            one, column = np.nonzero(waits >= 0)
            turn = np.arange(own.repeat.times)[:, None]
            # From a number in the traffic to its round, repetition and row there, and to the number of its class's
            # representative.
            on = waits[one, column] + turn * lengths[number]
            other = np.searchsorted(begins, on, "right") - 1
            repetition, there = np.divmod(on - begins[other], lengths[other])
            awaited = self.bases[other] + repetition * own_lengths[other] + place[base[other] + there]
            waiter = self.bases[number] + turn * own_lengths[number] + one
            pairs.append((waiter * len(self) + awaited).ravel())
        waiter, awaited = np.divmod(np.unique(np.concatenate(pairs)), max(len(self), 1))
        return awaited.astype(np.int32), waiter.astype(np.int32)

    def _routes(self, routes: Routes, classes: Partition, capacity: Floats) -> Routes:
        """By class of transfers, in order of rounds: what all of a class take of the first link of each class."""
        of_class, link, weight = classes.weights
        own, place = rows_with_keys(of_class, _joined(self.of_class))
        link, weight = link[place], weight[place]
        route = _joined([part.route_of[row] for part, row in zip(self.traffic.parts, self.row, strict=True)])
        rate = routes.rate[route]
        # The rate is each flow's of the class; as one they take `weight` times as much, so a link may bound it sooner.
        np.minimum.at(rate, own, capacity[link] / weight)
        return Routes(own, link, weight, routes.latency[route], rate, np.ones(len(own), np.bool_))

    def _column(self, by_round: Sequence[Ints]) -> npt.NDArray[np.int32]:
        return self._tiled(by_round).astype(np.int32)

    def _tiled(self, by_round: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Columns of rounds, each as often as its round is repeated, one behind the other."""
        times = [own.repeat.times for own in self.traffic.parts]
        return np.concatenate([np.zeros(0), *(np.tile(own, n) for own, n in zip(by_round, times, strict=True))])


def participants_of(placed: PlacedCollective, number: int, classes: Partition) -> tuple[Ints, Ints]:
    """Classes of the ranks that take part, and of the servers and switches; rising."""
    return np.unique(classes.rank[list(placed.op.group)]), np.unique(classes.auxiliary[number])


def _participants(placed: PlacedCollective, number: int, classes: Partition) -> Ints:
    """By participant of a collective the participant that stands for it."""
    ranks, auxiliary = participants_of(placed, number, classes)
    return np.concatenate(
        [
            np.searchsorted(ranks, classes.rank[list(placed.op.group)]),
            len(ranks) + np.searchsorted(auxiliary, classes.auxiliary[number]),
        ]
    )


def _places_in(column: Ints, wanted: Ints) -> Ints:
    """Where each of those wanted stands in a column."""
    order = np.argsort(column)
    places: Ints = order[np.searchsorted(column[order], wanted)]
    return places


def _by_round(traffic: Traffic, rows: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    if not traffic.parts:
        return []
    return np.split(rows, np.cumsum([len(part.route_of) for part in traffic.parts])[:-1])


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
