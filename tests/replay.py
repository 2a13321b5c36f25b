"""A schedule's transfers as rows that can be changed, and their replay with numbers.

Rule: knows nothing of the package's own proof.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.records.schedule import Round, Schedule
from simulator.records.transfers import Transfers

Values = list[list[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One transfer."""

    src: int
    dst: int
    first: int
    count: int
    step: int
    channel: int
    reduce: bool
    waits: tuple[int, ...]


def rows_of(transfers: Transfers) -> list[Row]:
    waits = transfers.waits_of()
    return [
        Row(
            src=int(transfers.src[i]),
            dst=int(transfers.dst[i]),
            first=int(transfers.first[i]),
            count=int(transfers.count[i]),
            step=int(transfers.step[i]),
            channel=int(transfers.channel[i]),
            reduce=bool(transfers.reduce[i]),
            waits=tuple(waits[i]),
        )
        for i in range(len(transfers))
    ]


def columns_of(rows: list[Row]) -> Transfers:
    last: dict[int, int] = {}
    before = []
    for number, row in enumerate(rows):
        before.append(last.get(row.channel, -1))
        last[row.channel] = number

    def column(values: list[Any]) -> npt.NDArray[np.int32]:
        return np.array(values, np.int32)

    pairs = [(awaited, number) for number, row in enumerate(rows) for awaited in row.waits]
    return Transfers(
        src=column([r.src for r in rows]),
        dst=column([r.dst for r in rows]),
        first=column([r.first for r in rows]),
        count=column([r.count for r in rows]),
        step=column([r.step for r in rows]),
        channel=column([r.channel for r in rows]),
        reduce=np.array([r.reduce for r in rows], np.bool_),
        before_on_channel=column(before),
        pairs=lambda: (column([a for a, _ in pairs]), column([w for _, w in pairs])),
    )


def rounds_of(rows: list[Row]) -> Iterator[Round]:
    """Each row as a round of its own."""
    for row in rows:
        columns = (np.array([value]) for value in (row.src, row.dst, row.first, row.count, row.reduce, row.channel))
        yield Round(*columns, after=np.array([row.waits or (-1,)]), step=row.step)


# -- numbers -----------------------------------------------------------------------------------------------------------


def first_values(schedule: Schedule, kind: str, seed: int) -> Values:
    """values[participant][chunk]: one random number each; None where there is nothing yet."""
    draw = random.Random(seed)
    n, operation, root = schedule.world_size, schedule.operation, schedule.root
    found: Values = []
    for rank in range(n + schedule.auxiliaries):
        row: list[Any] = []
        for chunk in range(schedule.chunks):
            has = {
                "all_gather": chunk // schedule.pieces == rank,
                "gather": chunk == rank,
                "broadcast": rank == root,
                "scatter": rank == root,
                "all_to_all": chunk // n == rank,
            }.get(operation, True)
            number = draw.getrandbits(64) if kind == "int" else np.float32(draw.gauss(0, 1))
            row.append(number if has and rank < n else None)
        found.append(row)
    return found


def promised_values(schedule: Schedule, start: Values) -> dict[tuple[int, int], int]:
    """What rank and chunk must hold at the end, in integers modulo 2^64."""
    n, operation, root = schedule.world_size, schedule.operation, schedule.root
    wanted: dict[tuple[int, int], int] = {}
    for rank in range(n):
        for chunk in range(schedule.chunks):
            total = sum(row[chunk] for row in start[:n] if row[chunk] is not None) % 2**64
            mine = {
                "all_reduce": True,
                "all_gather": True,
                "broadcast": True,
                "reduce_scatter": chunk // schedule.pieces == rank,
                "scatter": chunk == rank,
                "reduce": rank == root,
                "gather": rank == root,
                "all_to_all": chunk % n == rank,
            }[operation]
            if mine:
                wanted[rank, chunk] = total
    return wanted


def replayed(schedule: Schedule, rows: list[Row], order: list[int], start: Values) -> Values | None:
    """Values after the transfers, one at a time in this order; None if one sends what its source does not have."""
    held = [list(row) for row in start]
    for number in order:
        row = rows[number]
        for i in range(row.count):
            chunk = (row.first + i * row.step) % schedule.chunks
            value, there = held[row.src][chunk], held[row.dst][chunk]
            if value is None:
                return None
            if row.reduce and there is not None:
                value = np.float32(there + value) if isinstance(value, np.float32) else (there + value) % 2**64
            held[row.dst][chunk] = value
    return held


def keeps_the_promise(schedule: Schedule, rows: list[Row], order: list[int], seed: int) -> bool:
    start = first_values(schedule, "int", seed)
    end = replayed(schedule, rows, order, start)
    wanted = promised_values(schedule, start)
    return end is not None and all(end[rank][chunk] == total for (rank, chunk), total in wanted.items())


def same_float_bits(schedule: Schedule, rows: list[Row], one: list[int], other: list[int], seed: int) -> bool:
    start = first_values(schedule, "float", seed)
    a, b = replayed(schedule, rows, one, start), replayed(schedule, rows, other, start)
    places = promised_values(schedule, first_values(schedule, "int", seed))
    return a is not None and b is not None and all(a[r][c] == b[r][c] for r, c in places)
