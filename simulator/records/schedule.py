"""A Schedule: a collective's transfers, and the transfers awaited by each. Pure data.

Nothing here knows a link, a clock or an array's values. A *participant* is a rank in the group (0 .. world_size - 1,
its place in the group) or one of the following `auxiliaries`: a server or a reducing switch. The array is cut into
`chunks` pieces. A transfer carries `count` chunks, starting at `first`, `step` apart, modulo `chunks`. A transfer's
*number* is its place in the schedule.

Example: reduce-scatter in a ring over ranks 0, 1, 2, with three chunks::

    number  src  dst  first  reduce  channel  after
       0     0    1     2     yes       0      -       round 0
       1     1    2     0     yes       1      -
       2     2    0     1     yes       2      -
       3     0    1     1     yes       0      2       round 1: waits for the chunk from the rank behind
       4     1    2     2     yes       1      0
       5     2    0     0     yes       2      1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Bools, Ints
from simulator.basics.errors import TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.records.reduction_order import ReductionOrder

# Measured for all-to-all exchanges: planning takes 40 B per row, simulating takes 600 B with the events engine and 1000
# B with the compiled engine. Rows recorded singly take about 400 B before the simulation.
_BYTES_A_ROW: Final = 500


@dataclass(frozen=True, slots=True)
class Round:
    """A round in a collective's schedule: arrays with an entry for each transfer."""

    # `src`, `dst`: Participants; shape (t,).
    src: Ints
    dst: Ints
    # `first`, `count`: Chunks carried: first, first + step, ... (`count` chunks), modulo the schedule's chunks; shape
    # (t,).
    first: Ints
    count: Ints
    # True: the receiver adds the data to its own. False: it replaces its own; shape (t,).
    reduce: Bools
    # FIFO in which the transfer queues. Channels are private to the schedule; shape (t,).
    channel: Ints
    # Numbers of earlier transfers that must have ended; -1 for unused entries; shape (t, w) or (gates, w).
    after: Ints
    step: int = 1  # distance between carried chunks
    # Row of `after` for each transfer, if many transfers wait for the same transfers: N ranks that each send to N - 1
    # ranks what they received from N - 1 ranks would otherwise need N^3 numbers. None if every transfer has its own
    # row; shape (t,).
    gate: Ints | None = None

    def __len__(self) -> int:
        return len(self.src)

    @property
    def waits(self) -> Ints:
        """Numbers of the transfers awaited by each transfer, shape (t, w); -1 for unused entries."""
        return self.after if self.gate is None else self.after[self.gate]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A round in a collective's schedule that is carried out `times` times, advancing regularly.

    In repetition i, `after` is increased by i x the round's length, and transfers carry chunk table[(round.first + i x
    moves) mod len(table)].
    """

    round: Round
    times: int
    moves: int
    table: Ints

    def hands_on(self, behind: Ints) -> bool:
        """Return True if each transfer hands on the chunks that another transfer carried one repetition earlier.

        `behind` names this other transfer.

        Parameters
        ----------
        behind : int array, shape (t,)
            Transfer behind each transfer.
        """
        rows = self.round
        # Equal runs, and equal kinds: a sum must not become a copy on its way.
        equal = all(bool((column[behind] == column).all()) for column in (rows.count, rows.reduce))
        return equal and bool(((rows.first + self.moves - rows.first[behind]) % len(self.table) == 0).all())


@dataclass(frozen=True, slots=True)
class Schedule:
    """A collective's transfers, round by round; the rounds are computed on demand."""

    # `operation`, `algorithm`: Names, such as "all_reduce" and "ring".
    operation: str
    algorithm: str
    world_size: int  # ranks of the group
    auxiliaries: int  # number of participants after the ranks (servers, reducing switches)
    chunks: int  # number of pieces of the array
    reduction_order: ReductionOrder  # order in which a participant adds arriving values to a chunk
    parts: Callable[[], Iterator[Round | Repeat]]  # starts a new walk over the transfers
    root: int = 0  # root of rooted operations
    pieces: int = 1  # chunks per rank's part, if ranks have parts: chunk c belongs to the part of rank c // pieces
    # Transfers written by `parts`, a repeated round counted once; known before any is written. 0 if unknown.
    rows: int = 0

    def refuse_too_long(self) -> None:
        """Raise TooLargeError if this machine's memory cannot hold the schedule; the check writes no transfer."""
        shortage = shortage_text(self.rows * _BYTES_A_ROW)
        if shortage:
            raise TooLargeError(
                f"{self.algorithm} over {self.world_size} ranks: {self.rows:.3g} transfers in a full list take "
                f"about {shortage}; take another algorithm, or fewer ranks or pieces"
            )

    def has_more_than(self, transfers: int) -> bool:
        """Return True if there are more transfers than the given number; writes nothing if `rows` decides."""
        # `rows` is a lower bound for the number of transfers; a walk may take long.
        return self.rows > transfers or self.length() > transfers

    def rounds(self) -> Iterator[Round]:
        """Yield every round in the schedule, with each repetition as a separate round.

        >>> from simulator.collectives.algorithm import CollectiveRequest
        >>> from simulator.collectives.ring import all_reduce
        >>> sum(len(r) for r in all_reduce(CollectiveRequest("all_reduce", 4, 8)).rounds())
        24
        """
        for part in self._walk():
            if isinstance(part, Round):
                yield part
                continue
            for i in range(part.times):
                yield self._moved(part, i)

    def repeats(self) -> Iterator[Repeat]:
        """Yield every round with transfers, with its number of repetitions; a plain round is repeated once."""
        parts = self._walk()
        # Plain rounds share a table: separate tables would need memory growing with the square of the number of rounds.
        chunks = np.arange(self.chunks)
        for part in parts:
            repeat = Repeat(part, 1, 0, chunks) if isinstance(part, Round) else part
            if repeat.times and len(repeat.round):
                yield repeat

    def length(self) -> int:
        """Return the number of transfers without writing them out."""
        return sum(len(p) if isinstance(p, Round) else len(p.round) * p.times for p in self._walk())

    def _walk(self) -> Iterator[Round | Repeat]:
        """Return an iterator over rounds and repeated rounds; TooLargeError if this machine cannot hold them."""
        self.refuse_too_long()
        return self.parts()

    @staticmethod
    def _moved(part: Repeat, i: int) -> Round:
        """Return the i-th repetition of a repeated round, as a plain round."""
        r = part.round
        after = np.where(r.after >= 0, r.after + i * len(r), -1)
        first = part.table[(r.first + i * part.moves) % len(part.table)]
        return replace(r, first=first, after=after)


def kept(make: Callable[[], Iterable[Round | Repeat]]) -> Callable[[], Iterator[Round | Repeat]]:
    """Return a function that gives an iterator over the rounds made by `make`, which is called once, on first use."""
    rounds = cache(lambda: tuple(make()))
    return lambda: iter(rounds())
