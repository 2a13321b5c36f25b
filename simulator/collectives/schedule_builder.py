"""Builds a schedule's rounds from transfers that an algorithm adds step by step.

A builder exists only while a schedule is made; the Schedule itself is immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from simulator.basics.arrays import Ints
from simulator.records.schedule import Repeat, Round

# src, dst, first chunk, chunk count, reduce, channel, numbers of the awaited transfers.
Row = tuple[int, int, int, int, bool, int, tuple[int, ...]]


@dataclass(slots=True)
class ScheduleBuilder:
    """Builder for a collective's schedule from transfers; later transfers can wait for the number returned by `send`.

    A chain of two transfers: the second waits for the first, number 0.

    >>> builder = ScheduleBuilder()
    >>> first = builder.send(0, 1, 0, 1, reduce=False, channel=0)
    >>> builder.send(1, 2, 0, 1, reduce=False, channel=1, after=[first])
    1
    >>> next(builder.parts()).after.tolist()
    [[-1], [0]]
    """

    step: int = 1  # distance between the chunks of a transfer
    _rounds: list[list[Row] | Round | Repeat] = field(default_factory=list)
    _open: list[Row] = field(default_factory=list)  # transfers of the round that is still open
    _count: int = 0  # transfers so far, repetitions included

    def send(
        self,
        src: int,
        dst: int,
        first: int,
        count: int,
        *,
        reduce: bool,
        channel: int,
        after: Iterable[int | None] = (),
    ) -> int:
        """Add a transfer of `count` chunks from `first` on to the open round, on FIFO `channel`; return its number.

        The transfer waits for the transfers in `after`; None entries are ignored.
        """
        waits = tuple(sorted({number for number in after if number is not None}))
        self._open.append((src, dst, first, count, reduce, channel, waits))
        self._count += 1
        return self._count - 1

    def send_round(self, round_: Round, times: int = 1, moves: int = 0, table: Ints | None = None) -> Ints:
        """Add a whole round, with `table` repeated `times` times; return the last repetition's transfer numbers."""
        self.end_round()
        self._rounds.append(round_ if table is None else Repeat(round_, times, moves, table))
        self._count += len(round_) * times
        return np.arange(self._count - len(round_), self._count)

    def end_round(self) -> None:
        """Close the round to which `send` adds transfers, unless the round is empty."""
        if self._open:
            self._rounds.append(self._open)
            self._open = []

    def parts(self) -> Iterator[Round | Repeat]:
        """Yield the schedule's rounds, each as arrays over the transfers."""
        self.end_round()
        for round_ in self._rounds:
            yield _round(round_, self.step) if isinstance(round_, list) else round_


def _round(rows: list[Row], step: int) -> Round:
    # Lists of waits differ in length: shorter lists are padded with -1.
    width = max(1, *(len(row[6]) for row in rows))
    after = np.full((len(rows), width), -1, np.int64)
    for i, row in enumerate(rows):
        after[i, : len(row[6])] = row[6]
    src, dst, first, count, reduce, channel = (np.array(column) for column in list(zip(*rows, strict=True))[:6])
    return Round(src, dst, first, count, reduce.astype(np.bool_), channel, after, step)
