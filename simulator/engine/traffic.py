"""How many bytes does each transfer carry? Traffic is a schedule with sizes, for an array with given elements.

Bytes are counted round by round. Transfers are written out only on request, because there may be 10^10. Traffic knows
no ranks and no links, therefore process groups with equal schedules share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.records.chunks import run_elements, sums_of_runs, timed_sizes, transfer_elements
from simulator.records.operation import ElementSizes
from simulator.records.schedule import Repeat, Round, Schedule
from simulator.records.transfers import Transfers, write_out


@dataclass(frozen=True, slots=True)
class SizedRound:
    """A round in a collective's schedule with the transfers' bytes and the number of repetitions."""

    repeat: Repeat  # the round
    # Route of each transfer: row of `route_keys`; shape (t,).
    route_of: npt.NDArray[np.int32]
    # Bytes of each transfer in the first repetition [B]; shape (t,).
    nbytes: Floats
    steady: bool  # True if each transfer carries equal bytes in every repetition


@dataclass(frozen=True, eq=False)
class Traffic:
    """A collective's schedule with array sizes: each transfer's bytes."""

    schedule: Schedule  # the collective's transfers
    elements: int  # elements of the whole array
    sizes: ElementSizes

    def __len__(self) -> int:
        """Number of transfers, counted from the rounds without writing the transfers out."""
        return sum(len(part.route_of) * part.repeat.times for part in self.parts)

    @cached_property
    def parts(self) -> tuple[SizedRound, ...]:
        """Rounds of the schedule with their transfers' bytes."""
        repeats = list(self.schedule.repeats())
        # Offsets of each round in the concatenated rows.
        cuts = np.cumsum([0, *(len(repeat.round) for repeat in repeats)])
        rows = self._by_key[1]
        each = zip(repeats, cuts[:-1], cuts[1:], strict=True)
        return tuple(
            SizedRound(repeat, rows[a:b], self._carried(repeat, 0), self._is_steady(repeat)) for repeat, a, b in each
        )

    @property
    def route_keys(self) -> Ints:
        """The distinct routes: triples (source, destination, reduce) of the transfers, shape (routes, 3).

        A reduction at the destination takes a route different from a copy, because it uses HBM bandwidth.
        """
        return self._by_key[0]

    @cached_property
    def _by_key(self) -> tuple[Ints, npt.NDArray[np.int32]]:
        """Return the distinct triples (source, destination, reduce), and each transfer's index into them."""
        rounds = [repeat.round for repeat in self.schedule.repeats()]
        n = self.schedule.world_size + self.schedule.auxiliaries
        # A key packs source, destination and reduce into an integer.
        keys = [(r.src * n + r.dst) * 2 + r.reduce for r in rounds]
        different, row = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
        pair = different // 2
        return np.stack([pair // n, pair % n, different % 2], axis=1), row.astype(np.int32)

    @cached_property
    def channels(self) -> tuple[Ints, Ints, Ints]:
        """Lowest channel, highest channel and number of channels (FIFOs of transfers) on each route."""
        channel = np.concatenate([np.zeros(0, np.int64), *(part.repeat.round.channel for part in self.parts)])
        row, count = self._by_key[1], len(self.route_keys)
        low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(low, row, channel)
        np.maximum.at(high, row, channel)
        # Most schedules use a single channel per route: no counting needed.
        if bool((low == high).all()):
            return low, high, np.ones(count, np.int64)
        channels = int(channel.max()) + 1
        used_rows = np.unique(row.astype(np.int64) * channels + channel) // channels
        return low, high, np.bincount(used_rows, minlength=count)

    @cached_property
    def chunk_sizes(self) -> Floats:
        """Number of elements in each array chunk, shape (chunks,)."""
        return timed_sizes(self.schedule, self.elements)

    @cached_property
    def steady(self) -> bool:
        """Return True if every transfer carries equal bytes in each repetition of its round."""
        return all(part.steady for part in self.parts)

    def _carried(self, repeat: Repeat, i: int) -> Floats:
        """Return each transfer's bytes in repetition i, shape (t,) [B]."""
        round_ = repeat.round
        # See Repeat: chunks advance through the table.
        first = repeat.table[(round_.first + i * repeat.moves) % len(repeat.table)]
        elements = run_elements(first, round_.count, round_.step, self.chunk_sizes)
        return elements * self._width(round_)

    def _width(self, round_: Round) -> Ints:
        """Return bytes per element on the wire, for each transfer [B]."""
        return np.where(round_.reduce, self.sizes.reduced, self.sizes.copied)

    def _is_steady(self, repeat: Repeat) -> bool:
        """Return True if every transfer in a round carries equal bytes in each repetition of the round."""
        if repeat.times == 1:
            return True
        # A transfer visits places in the table this far apart. Example: a table with 6 chunks and moves 4 gives 2:
        # places 0, 4, 2, 0, ...
        period = math.gcd(repeat.moves, len(repeat.table))
        by_turn = (
            self._by_place(repeat, count).reshape(-1, period) for count in np.unique(repeat.round.count).tolist()
        )
        return all(bool((elements == elements[0]).all()) for elements in by_turn)

    def _by_place(self, repeat: Repeat, count: int) -> Floats:
        """Return the elements in `count` chunks, for each index in a round's chunk table as the first chunk."""
        return run_elements(repeat.table, np.full(len(repeat.table), count), repeat.round.step, self.chunk_sizes)

    @cached_property
    def bytes_by_route(self) -> Floats:
        """Total bytes on each route, shape (routes,) [B]."""
        total = np.zeros(len(self.route_keys))
        for part in self.parts:
            total += np.bincount(part.route_of, self._bytes_of_all(part), len(self.route_keys))
        return total

    def _bytes_of_all(self, part: SizedRound) -> Floats:
        """Return the bytes of each transfer in a round, summed over the round's repetitions, shape (t,) [B]."""
        repeat, round_ = part.repeat, part.repeat.round
        if part.steady:
            return part.nbytes * repeat.times
        elements = np.zeros(len(round_))
        # Runs with equal length share a table of sums.
        for count in np.unique(round_.count).tolist():
            mine = np.flatnonzero(round_.count == count)
            times = np.full(len(mine), repeat.times)
            elements[mine] = sums_of_runs(self._by_place(repeat, count), round_.first[mine], times, repeat.moves)
        return elements * self._width(round_)

    @cached_property
    def total_bytes(self) -> float:
        """Total bytes on the wire, each transfer counted once [B]."""
        # Sizes by transfer are only used if they exist already.
        return float(self.nbytes.sum()) if "nbytes" in self.__dict__ else float(self.bytes_by_route.sum())

    @cached_property
    def transfers(self) -> Transfers:
        """Every transfer of the schedule, written out on first access."""
        return write_out(self.schedule)

    @cached_property
    def nbytes(self) -> Floats:
        """Bytes carried by each transfer, shape (transfers,) [B]."""
        # A common width for copies and reductions saves a column.
        carried = transfer_elements(self.transfers, self.chunk_sizes)
        if self.sizes.copied == self.sizes.reduced:
            return carried * self.sizes.copied
        return carried * np.where(self.transfers.reduce, self.sizes.reduced, self.sizes.copied)

    @cached_property
    def route_of(self) -> npt.NDArray[np.int32]:
        """Route taken by each transfer, shape (transfers,): row in `route_keys`."""
        return np.concatenate([np.zeros(0, np.int32), *(np.tile(p.route_of, p.repeat.times) for p in self.parts)])
