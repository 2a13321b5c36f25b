"""Chunks: into how many elements an array is cut, and what a transfer carries of them.

Rule: counting, and nothing else; who carries what is the schedule's business.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.records.schedule import Schedule
from simulator.records.transfers import Transfers

# From so many elements on pieces of a part are timed as if they were equal. Libraries cut by bytes, and no clock shows
# one element of 500; but ranks whose pieces differ by one are unlike, and an engine has to follow each of them.
_ALIKE: Final = 512

Sizes = TypeVar("Sizes", Ints, Floats)


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
    everywhere else the array is cut evenly, and so is each part where it has several pieces.
    """
    if schedule.operation == "all_to_all":
        return np.tile(split(elements, schedule.world_size), schedule.world_size)
    whole = split(elements, schedule.chunks // schedule.pieces)
    if schedule.pieces == 1:
        return whole
    # The first (elements of the part) mod pieces have one more, as everywhere.
    return (whole[:, None] // schedule.pieces + (np.arange(schedule.pieces) < whole[:, None] % schedule.pieces)).ravel()


def timed_sizes(schedule: Schedule, elements: int) -> Floats:
    """Elements of each chunk as transfers take time for them, shape (chunks,): pieces of a large part are equal."""
    if schedule.pieces == 1 or elements < _ALIKE * schedule.chunks:
        return chunk_sizes(schedule, elements).astype(np.float64)
    return np.repeat(split(elements, schedule.chunks // schedule.pieces) / schedule.pieces, schedule.pieces)


def chunk_starts(schedule: Schedule, elements: int) -> Ints:
    """Where each chunk begins in a buffer that holds all chunks in order, then its length, shape (chunks + 1,)."""
    return np.concatenate([[0], np.cumsum(chunk_sizes(schedule, elements))])


def transfer_elements(transfers: Transfers, sizes: Sizes) -> Sizes:
    """Elements that each transfer carries, shape (t,), for chunks of these sizes."""
    return run_elements(transfers.first, transfers.count, transfers.step, sizes)


def run_elements(first: npt.NDArray[Any], count: npt.NDArray[Any], step: npt.NDArray[Any] | int, sizes: Sizes) -> Sizes:
    """Elements of runs of chunks: `count` of them from `first` on, `step` apart, modulo their number."""
    step = np.broadcast_to(step, first.shape)
    carried = np.zeros(len(first), sizes.dtype)
    single = count == 1
    carried[single] = sizes[first[single]]
    several = np.flatnonzero(~single)
    for apart in np.unique(step[several]).tolist():
        rows = several[step[several] == apart]
        carried[rows] = sums_of_runs(sizes, first[rows].astype(np.int64), count[rows], apart)
    return carried


def sums_of_runs(values: Sizes, first: Ints, count: npt.NDArray[Any], step: int) -> Sizes:
    """Sums of so many values from `first` on, `step` apart, modulo their number, shape (runs,).

    Twice as many at a time: a run of 13 is one of 1, one of 4 and one of 8.
    """
    total, place = np.zeros(len(first), values.dtype), first % len(values)
    size, longest = 1, int(count.max(initial=0))
    while size <= longest:
        rows = np.flatnonzero(count & size)
        total[rows] += values[place[rows]]
        place[rows] = (place[rows] + size * step) % len(values)
        values = values + np.roll(values, -size * step)
        size *= 2
    return total
