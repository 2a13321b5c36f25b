"""What a collective sends, whoever takes part: rounds with the ways that they take, bytes, and transfers if need be.

Rule: looks at rounds, never at transfers, which are written out for who asks for them. The same for all groups that do
the same side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simulator.chunks import chunk_sizes, run_elements, transfer_elements
from simulator.schedule import Repeat, Schedule
from simulator.transfers import Transfers, write_out

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """A round that is played so many times, and the way of each of its transfers, shape (t,)."""

    repeat: Repeat
    route: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cargo:
    """A schedule with sizes.

    Attributes
    ----------
    schedule : Schedule
    elements : int
        Of the whole array.
    itemsize, reduce_itemsize : int
        Bytes of an element on the wire where it is copied, and where it is reduced [B].
    """

    schedule: Schedule
    elements: int
    itemsize: int
    reduce_itemsize: int

    def __len__(self) -> int:
        """How many transfers there are; nothing is written out."""
        return sum(len(part.route) * part.repeat.times for part in self.parts)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Those with any transfers."""
        repeats = list(self.schedule.repeats())
        cuts = np.cumsum([0, *(len(repeat.round) for repeat in repeats)])
        rows = self._ways[1]
        return tuple(Part(repeat, rows[a:b]) for repeat, a, b in zip(repeats, cuts[:-1], cuts[1:], strict=True))

    @property
    def ways(self) -> Ints:
        """Source, destination and whether it is added there, for each different way; shape (ways, 3)."""
        return self._ways[0]

    @cached_property
    def _ways(self) -> tuple[Ints, npt.NDArray[np.int32]]:
        rounds = [repeat.round for repeat in self.schedule.repeats()]
        n = self.schedule.world_size + self.schedule.extras
        keys = [(r.src * n + r.dst) * 2 + r.reduce for r in rounds]
        found, row = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
        pair = found // 2
        return np.stack([pair // n, pair % n, found % 2], axis=1), row.astype(np.int32)

    @cached_property
    def channels(self) -> tuple[Ints, Ints, Ints]:
        """By way the lowest and the highest channel that takes it, and how many do."""
        channel = np.concatenate([np.zeros(0, np.int64), *(part.repeat.round.channel for part in self.parts)])
        row, count = self._ways[1], len(self.ways)
        low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(low, row, channel)
        np.maximum.at(high, row, channel)
        if bool((low == high).all()):
            return low, high, np.ones(count, np.int64)
        channels = int(channel.max()) + 1
        taken = np.unique(row.astype(np.int64) * channels + channel) // channels
        return low, high, np.bincount(taken, minlength=count)

    @cached_property
    def chunk_sizes(self) -> Ints:
        """Elements of each chunk."""
        return chunk_sizes(self.schedule, self.elements)

    @cached_property
    def even(self) -> bool:
        """Whether all chunks are of one size."""
        return int(self.chunk_sizes.min()) == int(self.chunk_sizes.max())

    def carried(self, part: Part) -> Iterator[tuple[Floats, int]]:
        """Bytes of each transfer of a round, shape (t,), and for how many rounds in a row they are just these [B]."""
        repeat = part.repeat
        width = np.where(repeat.round.reduce, self.reduce_itemsize, self.itemsize)
        if self.even:
            yield (repeat.round.count * (int(self.chunk_sizes[0]) * width)).astype(np.float64), repeat.times
            return
        # Chunks differ by an element: then every round is its own.
        for i in range(repeat.times):
            first = repeat.table[(repeat.round.first + i * repeat.moves) % len(repeat.table)]
            carried = run_elements(first, repeat.round.count, repeat.round.step, self.chunk_sizes)
            yield (carried * width).astype(np.float64), 1

    @cached_property
    def bytes_by_way(self) -> Floats:
        """What all transfers of each way carry [B]."""
        total = np.zeros(len(self.ways))
        for part in self.parts:
            for nbytes, times in self.carried(part):
                total += times * np.bincount(part.route, nbytes, len(self.ways))
        return total

    @cached_property
    def total_bytes(self) -> float:
        """On the wire, each transfer counted once [B]."""
        return float(self.nbytes.sum()) if "nbytes" in self.__dict__ else float(self.bytes_by_way.sum())

    @cached_property
    def transfers(self) -> Transfers:
        """All of them, written out when first asked for."""
        return write_out(self.schedule)

    @cached_property
    def nbytes(self) -> Floats:
        """Of each transfer, shape (transfers,) [B]."""
        carried = transfer_elements(self.transfers, self.chunk_sizes).astype(np.float64)
        if self.itemsize == self.reduce_itemsize:
            return carried * self.itemsize
        return carried * np.where(self.transfers.reduce, self.reduce_itemsize, self.itemsize)

    @cached_property
    def route(self) -> npt.NDArray[np.int32]:
        """The way of each transfer, shape (transfers,)."""
        return np.concatenate([np.zeros(0, np.int32), *(np.tile(p.route, p.repeat.times) for p in self.parts)])
