"""Transfers: a Schedule written out as columns, for whoever plays it transfer by transfer.

Rule: nothing here knows a link or a clock; the numbers are those of the Schedule.
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
from simulator.basics.this_machine import lacking
from simulator.records.schedule import Repeat, Round, Schedule

Pairs = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
# Pairs of transfers of which one waits for the other: 1 GiB.
MOST_PAIRS: Final = 2**27
# Columns of a transfer that is written out, with intermediate results [B].
BYTES_WRITTEN_OUT: Final = 40


@dataclass(frozen=True, eq=False)
class Transfers:
    """A schedule written out: columns of equal length, one row a transfer.

    Attributes
    ----------
    src, dst, first, count, step, channel : int32 array, shape (t,)
    reduce : bool array, shape (t,)
    before_on_channel : int32 array, shape (t,)
        The transfer ahead in the channel's queue; -1 for the first.
    pairs : callable () -> (awaited, waiter), int32 arrays of shape (w,)
        `waiter` declares to wait for `awaited`. Asked once, when somebody wants to know: there may be far more pairs
        than transfers. SimulationError where they would take GiB.
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
        """What others wait for, a row a pair."""
        return self._pairs[0]

    @property
    def waiter(self) -> npt.NDArray[np.int32]:
        """Who waits for it."""
        return self._pairs[1]

    def waits_of(self) -> list[list[int]]:
        """For each transfer the numbers it waits for."""
        waits: list[list[int]] = [[] for _ in range(len(self))]
        for awaited, waiter in zip(self.awaited.tolist(), self.waiter.tolist(), strict=True):
            waits[waiter].append(awaited)
        return waits


def write_out(schedule: Schedule) -> Transfers:
    """Write a schedule out as columns, for whoever plays it transfer by transfer.

    Raises
    ------
    TooLargeError
        This machine cannot hold the transfers.
    """
    short = lacking(schedule.length() * BYTES_WRITTEN_OUT)
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


def _count_waits(round_: Round) -> int:
    count = (round_.after >= 0).sum(axis=1)
    return int((count if round_.gate is None else count[round_.gate]).sum())


def _waits(schedule: Schedule, parts: list[Repeat]) -> Pairs:
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
        row, place = np.nonzero(waits >= 0)
        moved = (np.arange(part.times, dtype=np.int32) * np.int32(len(part.round)))[:, None]
        awaited.append((waits[row, place].astype(np.int32)[None, :] + moved).ravel())
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
