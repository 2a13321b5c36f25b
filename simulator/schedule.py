"""A Schedule: the transfers of one collective, and what each waits for. Pure data.

Rule: nothing here knows a link, a clock or an array's values. Like sheet music: who hands which part to whom, after
what; how fast it is played is somebody else's business.

Words. A *participant* is a rank of the group (0 .. world_size - 1, its place in the group) or one of the `extras` behind
them: a server or a reducing switch. The array is cut into `chunks` pieces; a transfer carries `count` of them, starting
with `first` and going on in steps of `step`, modulo `chunks`. A transfer's *number* is its place in the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Adds = Literal["in_sequence", "on_arrival", "held"]


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
    after : int array, shape (t, w)
        Numbers of earlier transfers that must have ended; -1 where there are fewer than w.
    step : int
        Distance between the chunks carried.
    """

    src: Ints
    dst: Ints
    first: Ints
    count: Ints
    reduce: Bools
    channel: Ints
    after: Ints
    step: int = 1

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A round that is played `times` times, all indices but `channel` moving on regularly.

    In repetition i, `first` is moved by i x `first_moves` (modulo chunks), and `after` by i x the round's length.
    """

    round: Round
    times: int
    first_moves: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """All transfers of a collective, round by round, lazily.

    Attributes
    ----------
    operation, algorithm : str
    world_size : int
        Ranks of the group.
    extras : int
        Participants behind the ranks (servers, reducing switches).
    chunks : int
        Pieces into which the array is cut.
    adds : {"in_sequence", "on_arrival", "held"}
        How adds into one chunk are ordered: each waits for the one before; as they arrive (ties by rank); buffered and
        added in rank order, the own part in its place, when the last is in.
    parts : callable () -> iterator of Round or Repeat
        A fresh walk over the transfers.
    root : int
        The root of rooted operations.
    """

    operation: str
    algorithm: str
    world_size: int
    extras: int
    chunks: int
    adds: Adds
    parts: Callable[[], Iterator[Round | Repeat]]
    root: int = 0

    def rounds(self) -> Iterator[Round]:
        """Walk over all rounds, repeated ones written out.

        Examples
        --------
        >>> from simulator.collectives.algorithm import Request
        >>> from simulator.collectives.ring import all_reduce
        >>> sum(len(r) for r in all_reduce(Request("all_reduce", 4, 8)).rounds())
        24
        """
        for part in self.parts():
            if isinstance(part, Round):
                yield part
                continue
            for i in range(part.times):
                yield self._moved(part, i)

    def _moved(self, part: Repeat, i: int) -> Round:
        r = part.round
        after = np.where(r.after >= 0, r.after + i * len(r), -1)
        return Round(r.src, r.dst, (r.first + i * part.first_moves) % self.chunks, r.count, r.reduce, r.channel, after, r.step)


@dataclass(frozen=True, slots=True)
class Transfers:
    """A schedule written out: columns of equal length, one row a transfer.

    Attributes
    ----------
    src, dst, first, count, step : int32 array, shape (t,)
    reduce : bool array, shape (t,)
    before_on_channel : int32 array, shape (t,)
        The transfer ahead in the channel's queue; -1 for the first.
    waits : int32 array, shape (t,)
        How many transfers it declares to wait for.
    waiter_start : int32 array, shape (t + 1,)
        Rows of `waiters` that wait for transfer i: waiter_start[i] to waiter_start[i + 1].
    waiters : int32 array
    round_of : int32 array, shape (t,)
    """

    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    reduce: Bools
    before_on_channel: npt.NDArray[np.int32]
    waits: npt.NDArray[np.int32]
    waiter_start: npt.NDArray[np.int32]
    waiters: npt.NDArray[np.int32]
    round_of: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.src)

    def waits_of(self) -> list[list[int]]:
        """For each transfer the numbers it waits for, in order."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        starts = self.waiter_start.tolist()
        waiters = self.waiters.tolist()
        for number in range(len(self)):
            for waiter in waiters[starts[number] : starts[number + 1]]:
                found[waiter].append(number)
        return found


def write_out(schedule: Schedule) -> Transfers:
    """Write a schedule out as columns, for whoever plays it transfer by transfer."""
    rounds = list(schedule.rounds())
    if not rounds:
        rounds = [Round(*(np.zeros(0, np.int64) for _ in range(4)), np.zeros(0, np.bool_), np.zeros(0, np.int64), np.zeros((0, 1), np.int64))]
    lengths = [len(r) for r in rounds]

    def column(name: str) -> npt.NDArray[np.int32]:
        return np.concatenate([getattr(r, name) for r in rounds], dtype=np.int32, casting="same_kind")

    total = sum(lengths)
    channel = column("channel")
    awaited, waiter = _waits(rounds)
    order = np.argsort(awaited, kind="stable")
    start = np.zeros(total + 1, np.int32)
    np.cumsum(np.bincount(awaited, minlength=total), out=start[1:])
    return Transfers(
        src=column("src"),
        dst=column("dst"),
        first=column("first"),
        count=column("count"),
        step=np.repeat([r.step for r in rounds], lengths).astype(np.int32),
        reduce=np.concatenate([r.reduce for r in rounds]),
        before_on_channel=_before(channel),
        waits=np.bincount(waiter, minlength=total).astype(np.int32),
        waiter_start=start,
        waiters=waiter[order].astype(np.int32),
        round_of=np.repeat(np.arange(len(rounds), dtype=np.int32), lengths),
    )


def _waits(rounds: list[Round]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    awaited: list[npt.NDArray[Any]] = []
    waiter: list[npt.NDArray[Any]] = []
    number = 0
    for r in rounds:
        row, column = np.nonzero(r.after >= 0)
        awaited.append(r.after[row, column].astype(np.int32))
        waiter.append((row + number).astype(np.int32))
        number += len(r)
    return np.concatenate(awaited), np.concatenate(waiter)


def _before(channel: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    order = np.argsort(channel, kind="stable").astype(np.int32)
    before = np.full(len(channel), -1, np.int32)
    same = channel[order[1:]] == channel[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def split(elements: int, chunks: int) -> Ints:
    """Cut n elements into k chunks: the first n mod k get one more.

    Examples
    --------
    >>> split(10, 4).tolist()
    [3, 3, 2, 2]
    """
    sizes = np.full(chunks, elements // chunks, np.int64)
    sizes[: elements % chunks] += 1
    return sizes


def chunk_sizes(schedule: Schedule, elements: int) -> Ints:
    """Elements of each chunk, shape (chunks,).

    In all_to_all chunk i x world_size + j is what rank i has for rank j, and its size is the j-th part of the array;
    everywhere else the array is cut evenly.
    """
    if schedule.operation == "all_to_all":
        return np.tile(split(elements, schedule.world_size), schedule.world_size)
    return split(elements, schedule.chunks)


def transfer_elements(transfers: Transfers, sizes: Ints) -> Ints:
    """Elements that each transfer carries, shape (t,), for chunks of these sizes."""
    k = len(sizes)
    first = transfers.first.astype(np.int64)
    carried = np.zeros(len(transfers), np.int64)
    contiguous = transfers.step == 1
    twice = np.concatenate([[0], np.cumsum(np.concatenate([sizes, sizes]))])
    carried[contiguous] = (twice[first + transfers.count] - twice[first])[contiguous]
    for row in np.flatnonzero(~contiguous):
        chunks = (first[row] + np.arange(transfers.count[row]) * transfers.step[row]) % k
        carried[row] = sizes[chunks].sum()
    return carried
