"""A Schedule: the transfers of one collective, and what each waits for. Pure data.

Rule: nothing here knows a link, a clock or an array's values. Like sheet music: who hands which part to whom, after
what; how fast it is played is somebody else's business.

Words. A *participant* is a rank of the group (0 .. world_size - 1, its place in the group) or one of the `auxiliaries`
behind them: a server or a reducing switch. The array is cut into `chunks` pieces; a transfer carries `count` of them,
starting with `first` and going on in steps of `step`, modulo `chunks`. A transfer's *number* is its place in the
schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Bools, Ints
from simulator.basics.errors import TooLargeError
from simulator.basics.this_machine import lacking
from simulator.records.reduction_order import ReductionOrder

# Seen where everybody sends to everybody: planning takes 40 B of each row, playing 600 B with the events engine and
# 1000 B with the compiled one; rows that are noted one by one take some 400 B before they are played.
_BYTES_A_ROW: Final = 500


@dataclass(frozen=True, slots=True)
class Round:
    """A few equal-length arrays, one entry a transfer.

    Attributes
    ----------
    src, dst : int array, shape (t,)
        Participants.
    first, count : int array, shape (t,)
        The chunks carried: first, first + step, ... (count of them), modulo the schedule's chunks.
    reduce : bool array, shape (t,)
        Whether the receiver adds what arrives to what it has (else it replaces).
    channel : int array, shape (t,)
        The FIFO that it queues in. Channels are private to the schedule.
    after : int array, shape (t, w) or (gates, w)
        Numbers of earlier transfers that must have ended; -1 where there are fewer than w.
    step : int
        Distance between the chunks carried.
    gate : int array, shape (t,), or None
        Row of `after` that each transfer waits for, where many wait for the same: N that each send to N - 1 others what
        N - 1 have brought would else have N^3 numbers. None where every transfer has a row of its own.
    """

    src: Ints
    dst: Ints
    first: Ints
    count: Ints
    reduce: Bools
    channel: Ints
    after: Ints
    step: int = 1
    gate: Ints | None = None

    def __len__(self) -> int:
        return len(self.src)

    @property
    def waits(self) -> Ints:
        """What each transfer waits for, shape (t, w)."""
        return self.after if self.gate is None else self.after[self.gate]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A round that is played `times` times, moving on regularly.

    In repetition i `after` is moved on by i x the round's length, and transfers carry the chunk
    table[(round.first + i x moves) mod len(table)].
    """

    round: Round
    times: int
    moves: int
    table: Ints

    def hands_on(self, behind: Ints) -> bool:
        """Whether each transfer carries next what the one behind it, shape (t,), carries in a repetition."""
        own = self.round
        alike = all(bool((column[behind] == column).all()) for column in (own.count, own.reduce))
        return alike and bool(((own.first + self.moves - own.first[behind]) % len(self.table) == 0).all())


@dataclass(frozen=True, slots=True)
class Schedule:
    """All transfers of a collective, round by round, lazily.

    Attributes
    ----------
    operation, algorithm : str
    world_size : int
        Ranks of the group.
    auxiliaries : int
        How many participants there are behind the ranks (servers, reducing switches).
    chunks : int
        Pieces into which the array is cut.
    reduction_order : ReductionOrder
        In which order a participant adds what arrives for one chunk.
    parts : callable () -> iterator of Round or Repeat
        A fresh walk over the transfers.
    root : int
        The root of rooted operations.
    pieces : int
        Chunks that each rank's part is cut into, where ranks have parts: chunk c is of the part of rank c // pieces.
    rows : int
        Transfers that `parts` writes down, those of a repeated round once; known before any is. 0 where nobody says.
    """

    operation: str
    algorithm: str
    world_size: int
    auxiliaries: int
    chunks: int
    reduction_order: ReductionOrder
    parts: Callable[[], Iterator[Round | Repeat]]
    root: int = 0
    pieces: int = 1
    rows: int = 0

    def refuse_too_long(self) -> None:
        """Raise TooLargeError if this machine cannot hold the schedule, before any transfer is written down."""
        shortage = lacking(self.rows * _BYTES_A_ROW)
        if shortage:
            raise TooLargeError(
                f"{self.algorithm} over {self.world_size} ranks: {self.rows:.3g} transfers that are looked at one by "
                f"one take about {shortage}; take another algorithm, or fewer ranks or pieces"
            )

    def has_more_than(self, transfers: int) -> bool:
        """Whether there are more transfers than that; nothing is written out where it is sure."""
        return self.rows > transfers or self.length() > transfers

    def rounds(self) -> Iterator[Round]:
        """Walk over all rounds, repeated ones written out.

        Examples
        --------
        >>> from simulator.collectives.algorithm import Request
        >>> from simulator.collectives.ring import all_reduce
        >>> sum(len(r) for r in all_reduce(Request("all_reduce", 4, 8)).rounds())
        24
        """
        for part in self._walk():
            if isinstance(part, Round):
                yield part
                continue
            for i in range(part.times):
                yield self._moved(part, i)

    def repeats(self) -> Iterator[Repeat]:
        """The parts that have any transfers, a plain round as one that is played once."""
        parts = self._walk()
        # All plain rounds share one table: the memory of a table for each round grows with the square of their number.
        chunks = np.arange(self.chunks)
        for part in parts:
            repeat = Repeat(part, 1, 0, chunks) if isinstance(part, Round) else part
            if repeat.times and len(repeat.round):
                yield repeat

    def length(self) -> int:
        """How many transfers there are, without writing them out."""
        return sum(len(p) if isinstance(p, Round) else len(p.round) * p.times for p in self._walk())

    def _walk(self) -> Iterator[Round | Repeat]:
        self.refuse_too_long()
        return self.parts()

    @staticmethod
    def _moved(part: Repeat, i: int) -> Round:
        r = part.round
        after = np.where(r.after >= 0, r.after + i * len(r), -1)
        first = part.table[(r.first + i * part.moves) % len(part.table)]
        return replace(r, first=first, after=after)


def kept(make: Callable[[], Iterable[Round | Repeat]]) -> Callable[[], Iterator[Round | Repeat]]:
    """Parts that are made when somebody first walks over them and then kept, where making them takes long."""
    made = cache(lambda: tuple(make()))
    return lambda: iter(made())
