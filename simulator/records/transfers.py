"""Transfers: a Schedule written out in columns, for engines that simulate transfer by transfer.

Nothing here knows a link or a clock; numbers equal the Schedule's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools
from simulator.basics.errors import SimulationError, TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.records.schedule import Repeat, Round, Schedule

Pairs = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
# Most pairs of an awaited and a waiting transfer: 1 GiB.
MOST_PAIRS: Final = 2**27
# Memory per transfer written out, intermediate results included [B].
BYTES_WRITTEN_OUT: Final = 40


@dataclass(frozen=True, eq=False)
class Transfers:
    """A schedule written out: columns with a row per transfer.

    Attributes
    ----------
    src, dst, first, count, step, channel : int32 array, shape (t,)
        As in Round.
    reduce : bool array, shape (t,)
        True: the receiver adds the data to its own.
    before_on_channel : int32 array, shape (t,)
        Predecessor on the channel; -1 for the first transfer.
    pairs : callable () -> (awaited, waiter), int32 arrays of shape (w,)
        Transfer `waiter` waits for transfer `awaited`. Called once, on first access, because pairs may far outnumber
        transfers. Raises SimulationError if they would take GiB.
    """

    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    channel: npt.NDArray[np.int32]
    reduce: Bools
    before_on_channel: npt.NDArray[np.int32]
    pairs: Callable[[], Pairs]

    def __len__(self) -> int:
        return len(self.src)

    @cached_property
    def _pairs(self) -> Pairs:
        return self.pairs()

    @property
    def awaited(self) -> npt.NDArray[np.int32]:
        """Number of the awaited transfer in each pair (awaited transfer, waiting transfer)."""
        return self._pairs[0]

    @property
    def waiter(self) -> npt.NDArray[np.int32]:
        """Number of the waiting transfer in each pair (awaited transfer, waiting transfer)."""
        return self._pairs[1]

    def waits_of(self) -> list[list[int]]:
        """Return, for each transfer, the awaited transfers' numbers."""
        waits: list[list[int]] = [[] for _ in range(len(self))]
        for awaited, waiter in zip(self.awaited.tolist(), self.waiter.tolist(), strict=True):
            waits[waiter].append(awaited)
        return waits


def write_out(schedule: Schedule) -> Transfers:
    """Return a schedule's transfers as columns with a row per transfer, repetitions included.

    Raises
    ------
    TooLargeError
        This machine cannot hold the transfers.
    """
    short = shortage_text(schedule.length() * BYTES_WRITTEN_OUT)
    if short:
        transfers = f"{schedule.length():.3g} transfers, written out one by one,"
        raise TooLargeError(
            f"{schedule.algorithm} over {schedule.world_size} ranks: {transfers} would take about {short}; take "
            f"a size that {schedule.chunks} parts divide evenly, another algorithm, or fewer ranks"
        )
    parts = list(schedule.repeats())

    def column(name: str, kind: npt.DTypeLike = np.int32) -> npt.NDArray[Any]:
        columns = [np.broadcast_to(np.asarray(getattr(p.round, name), kind), len(p.round)) for p in parts]
        return _laid_out(columns, [p.times for p in parts], kind)

    first = [_first_chunks(p) for p in parts]
    channel = column("channel")
    return Transfers(
        src=column("src"),
        dst=column("dst"),
        first=np.concatenate(first) if first else np.zeros(0, np.int32),
        count=column("count"),
        step=column("step"),
        channel=channel,
        reduce=column("reduce", np.bool_),
        before_on_channel=_before(parts, channel),
        pairs=partial(_waits, schedule, parts),
    )


def _laid_out(columns: list[npt.NDArray[Any]], times: list[int], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return columns concatenated, column i repeated `times[i]` times; equal entries give one broadcast number."""
    if not columns:
        return np.zeros(0, kind)
    value = columns[0][0]
    # A broadcast number needs no memory; `step` and `reduce` are often constant.
    if all(bool((c == value).all()) for c in columns):
        return np.broadcast_to(value, sum(len(c) * t for c, t in zip(columns, times, strict=True)))
    return np.concatenate([np.tile(c, t) for c, t in zip(columns, times, strict=True)])


def _first_chunks(part: Repeat) -> npt.NDArray[np.int32]:
    """Return the first chunk that each transfer of a repeated round carries, repetition after repetition."""
    moves = np.arange(part.times, dtype=np.int32) * np.int32(part.moves)
    moved = (part.round.first.astype(np.int32)[None, :] + moves[:, None]) % np.int32(len(part.table))
    return part.table.astype(np.int32)[moved].ravel()


def _count_waits(round_: Round) -> int:
    """Return the number of pairs (awaited transfer, waiting transfer) in a round."""
    count = (round_.after >= 0).sum(axis=1)
    return int((count if round_.gate is None else count[round_.gate]).sum())


def _waits(schedule: Schedule, parts: list[Repeat]) -> Pairs:
    """Return the pairs (awaited transfer, waiting transfer) in a schedule's rounds; SimulationError if too many."""
    count = sum(_count_waits(part.round) * part.times for part in parts)
    if count > MOST_PAIRS:
        raise SimulationError(
            f"{schedule.algorithm} over {schedule.world_size} ranks: transfers wait for {count} others in all, more "
            f"than the {MOST_PAIRS} that can be followed; take another algorithm, or fewer ranks"
        )
    awaited = [np.zeros(0, np.int32)]
    waiter = [np.zeros(0, np.int32)]
    number = 0
    for part in parts:
        waits = part.round.waits
        # In a repeated round, both numbers of a pair advance by the round's length.
        row, place = np.nonzero(waits >= 0)
        moved = (np.arange(part.times, dtype=np.int32) * np.int32(len(part.round)))[:, None]
        awaited.append((waits[row, place].astype(np.int32)[None, :] + moved).ravel())
        waiter.append(((row + number).astype(np.int32)[None, :] + moved).ravel())
        number += len(part.round) * part.times
    return np.concatenate(awaited), np.concatenate(waiter)


def _before(parts: list[Repeat], channel: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the predecessor's number for each transfer on the same channel (FIFO), given the rounds; or -1."""
    before = np.full(len(channel), -1, np.int32)
    last = np.full(int(channel.max()) + 1 if len(channel) else 0, -1, np.int32)
    number = 0
    for part in parts:
        queue, length = part.round.channel, len(part.round)
        total = length * part.times
        numbers = np.arange(number, number + length, dtype=np.int32)
        before[number : number + length] = last[queue]
        last[queue] = numbers
        # Two transfers in the round share a channel: sort every transfer by channel instead.
        if np.any(last[queue] != numbers):
            return before_on_channel(channel)
        # In a repeated round, each transfer's predecessor is its own previous repetition.
        before[number + length : number + total] = np.arange(number, number + total - length, dtype=np.int32)
        last[queue] = numbers + (total - length)
        number += total
    return before


def before_on_channel(channel: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the predecessor's number for each transfer on the same channel (FIFO); -1 for the first transfer.

    >>> before_on_channel(np.array([5, 9, 5, 5], np.int32)).tolist()
    [-1, -1, 0, 2]
    """
    order = np.argsort(channel, kind="stable").astype(np.int32)
    before = np.full(len(channel), -1, np.int32)
    same = channel[order[1:]] == channel[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
