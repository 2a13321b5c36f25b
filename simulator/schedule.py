"""A Schedule: the transfers of one collective, and what each waits for. Pure data.

Rule: nothing here knows a link, a clock or an array's values. Like sheet music: who hands which part to whom, after
what; how fast it is played is somebody else's business.

Words. A *participant* is a rank of the group (0 .. world_size - 1, its place in the group) or one of the `extras`
behind
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
    """A round that is played `times` times, moving on regularly.

    In repetition i `after` is moved on by i x the round's length, and transfers carry the chunk
    table[(round.first + i x moves) mod len(table)].
    """

    round: Round
    times: int
    moves: int
    table: Ints


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
        How adds into one chunk are ordered: each waits for the one before; as they arrive (ties by number, which is
        rank order where it matters); buffered and added in rank order, the own part in its place, when the last is in.
    parts : callable () -> iterator of Round or Repeat
        A fresh walk over the transfers.
    root : int
        The root of rooted operations.
    pieces : int
        Chunks that each rank's part is cut into, where ranks have parts: chunk c is of the part of rank c // pieces.
    """

    operation: str
    algorithm: str
    world_size: int
    extras: int
    chunks: int
    adds: Adds
    parts: Callable[[], Iterator[Round | Repeat]]
    root: int = 0
    pieces: int = 1

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

    def repeats(self) -> Iterator[Repeat]:
        """The parts that have any transfers, a plain round as one that is played once."""
        for part in self.parts():
            repeat = part if isinstance(part, Repeat) else _once(part)
            if repeat.times and len(repeat.round):
                yield repeat

    def length(self) -> int:
        """How many transfers there are, without writing them out."""
        return sum(len(p) if isinstance(p, Round) else len(p.round) * p.times for p in self.parts())

    @staticmethod
    def _moved(part: Repeat, i: int) -> Round:
        r = part.round
        after = np.where(r.after >= 0, r.after + i * len(r), -1)
        first = part.table[(r.first + i * part.moves) % len(part.table)]
        return Round(r.src, r.dst, first, r.count, r.reduce, r.channel, after, r.step)


@dataclass(frozen=True, slots=True)
class Transfers:
    """A schedule written out: columns of equal length, one row a transfer.

    Attributes
    ----------
    src, dst, first, count, step, channel : int32 array, shape (t,)
    reduce : bool array, shape (t,)
    before_on_channel : int32 array, shape (t,)
        The transfer ahead in the channel's queue; -1 for the first.
    awaited, waiter : int32 array, shape (w,)
        Pairs: `waiter` declares to wait for `awaited`.
    """

    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    channel: npt.NDArray[np.int32]
    reduce: Bools
    before_on_channel: npt.NDArray[np.int32]
    awaited: npt.NDArray[np.int32]
    waiter: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.src)

    def waits_of(self) -> list[list[int]]:
        """For each transfer the numbers it waits for."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        for awaited, waiter in zip(self.awaited.tolist(), self.waiter.tolist(), strict=True):
            found[waiter].append(awaited)
        return found


def _once(round_: Round) -> Repeat:
    return Repeat(round_, 1, 0, np.arange(int(round_.first.max(initial=0)) + 1))


def write_out(schedule: Schedule) -> Transfers:
    """Write a schedule out as columns, for whoever plays it transfer by transfer."""
    parts = list(schedule.repeats())

    def column(name: str, kind: npt.DTypeLike = np.int32) -> npt.NDArray[Any]:
        columns = [np.broadcast_to(np.asarray(getattr(p.round, name), kind), len(p.round)) for p in parts]
        return _laid_out(columns, [p.times for p in parts], kind)

    first = [_first_chunks(p) for p in parts]
    channel = column("channel")
    awaited, waiter = _waits(parts)
    return Transfers(
        src=column("src"),
        dst=column("dst"),
        first=np.concatenate(first) if first else np.zeros(0, np.int32),
        count=column("count"),
        step=column("step"),
        channel=channel,
        reduce=column("reduce", np.bool_),
        before_on_channel=_before(parts, channel),
        awaited=awaited,
        waiter=waiter,
    )


def _laid_out(columns: list[npt.NDArray[Any]], times: list[int], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Columns one behind the other, each repeated; a single number where all entries are the same."""
    if not columns:
        return np.zeros(0, kind)
    value = columns[0][0]
    if all(bool((c == value).all()) for c in columns):
        return np.broadcast_to(value, sum(len(c) * t for c, t in zip(columns, times, strict=True)))
    return np.concatenate([np.tile(c, t) for c, t in zip(columns, times, strict=True)])


def _first_chunks(part: Repeat) -> npt.NDArray[np.int32]:
    moves = np.arange(part.times, dtype=np.int32) * np.int32(part.moves)
    moved = (part.round.first.astype(np.int32)[None, :] + moves[:, None]) % np.int32(len(part.table))
    return part.table.astype(np.int32)[moved].ravel()


def _waits(parts: list[Repeat]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    awaited = [np.zeros(0, np.int32)]
    waiter = [np.zeros(0, np.int32)]
    number = 0
    for part in parts:
        row, place = np.nonzero(part.round.after >= 0)
        moved = (np.arange(part.times, dtype=np.int32) * np.int32(len(part.round)))[:, None]
        awaited.append((part.round.after[row, place].astype(np.int32)[None, :] + moved).ravel())
        waiter.append(((row + number).astype(np.int32)[None, :] + moved).ravel())
        number += len(part.round) * part.times
    return np.concatenate(awaited), np.concatenate(waiter)


def _before(parts: list[Repeat], channel: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    before = np.full(len(channel), -1, np.int32)
    last = np.full(int(channel.max()) + 1 if len(channel) else 0, -1, np.int32)
    number = 0
    for part in parts:
        queue, length = part.round.channel, len(part.round)
        total = length * part.times
        numbers = np.arange(number, number + length, dtype=np.int32)
        before[number : number + length] = last[queue]
        last[queue] = numbers
        if np.any(last[queue] != numbers):
            return before_on_channel(channel)
        # In a repeated round every transfer follows its own like of the repetition before.
        before[number + length : number + total] = np.arange(number, number + total - length, dtype=np.int32)
        last[queue] = numbers + (total - length)
        number += total
    return before


def before_on_channel(channel: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The number of the transfer ahead of each on its channel; -1 for the first."""
    order = np.argsort(channel, kind="stable").astype(np.int32)
    before = np.full(len(channel), -1, np.int32)
    same = channel[order[1:]] == channel[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
