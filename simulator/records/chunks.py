"""How many elements does a chunk have, and how many does a transfer carry? This module only counts.

Schedules decide about transfers and their chunks.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.records.schedule import Schedule
from simulator.records.transfers import Transfers

# From this number of elements per chunk on, a part's pieces are timed as if they were equal. Libraries cut by bytes,
# and one element in 500 is invisible in any measured time. But ranks with unequal pieces are unlike, and the engine
# would have to follow each rank.
_ALIKE: Final = 512

Sizes = TypeVar("Sizes", Ints, Floats)


def split(elements: int, chunks: int) -> Ints:
    """Return the sizes when n elements are cut into k chunks: the first n mod k chunks have an additional element.

    >>> split(10, 4).tolist()
    [3, 3, 2, 2]
    """
    sizes = np.full(chunks, elements // chunks, np.int64)
    sizes[: elements % chunks] += 1
    return sizes


def chunk_sizes(schedule: Schedule, elements: int) -> Ints:
    """Return the number of elements in each chunk of a schedule's array, shape (chunks,).

    In all_to_all, part i x world_size + j goes from rank i to rank j and has the size of the array's j-th part. In any
    other operation the array is cut evenly into parts. Each part is cut evenly into pieces.
    """
    parts = _part_sizes(schedule, elements)
    if schedule.pieces == 1:
        return parts
    # The first (part mod pieces) pieces get an additional element.
    return (parts[:, None] // schedule.pieces + (np.arange(schedule.pieces) < parts[:, None] % schedule.pieces)).ravel()


def _part_sizes(schedule: Schedule, elements: int) -> Ints:
    """Return the number of elements in each part of a schedule's array, shape (chunks / pieces,)."""
    if schedule.operation == "all_to_all":
        return np.tile(split(elements, schedule.world_size), schedule.world_size)
    return split(elements, schedule.chunks // schedule.pieces)


def timed_sizes(schedule: Schedule, elements: int) -> Floats:
    """Return the number of elements in each chunk for timing, shape (chunks,), possibly fractions.

    In large arrays, the pieces of a part count equally.
    """
    if schedule.pieces == 1 or elements < _ALIKE * schedule.chunks:
        return chunk_sizes(schedule, elements).astype(np.float64)
    # Fractions are fine: these sizes determine times, never payload.
    return np.repeat(_part_sizes(schedule, elements) / schedule.pieces, schedule.pieces)


def chunk_starts(schedule: Schedule, elements: int) -> Ints:
    """Return each chunk's offset in a buffer with every chunk in order, then the length, shape (chunks + 1,)."""
    return np.concatenate([[0], np.cumsum(chunk_sizes(schedule, elements))])


def transfer_elements(transfers: Transfers, sizes: Sizes) -> Sizes:
    """Return the number of elements carried by each transfer, shape (t,), given each chunk's elements."""
    return run_elements(transfers.first, transfers.count, transfers.step, sizes)


def run_elements(first: npt.NDArray[Any], count: npt.NDArray[Any], step: npt.NDArray[Any] | int, sizes: Sizes) -> Sizes:
    """Return the elements in runs of chunks, shape (runs,): `count` chunks from `first` on, `step` apart.

    Chunks are numbered modulo their number; `sizes` has the elements of each.

    >>> run_elements(np.array([0, 3]), np.array([2, 2]), 1, np.array([5, 6, 7, 8]))
    array([11, 13])
    """
    step = np.broadcast_to(step, first.shape)
    carried = np.zeros(len(first), sizes.dtype)
    # Most transfers carry a single chunk, which needs no summing.
    single = count == 1
    carried[single] = sizes[first[single]]
    several = np.flatnonzero(~single)
    for stride in np.unique(step[several]).tolist():
        rows = several[step[several] == stride]
        carried[rows] = sums_of_runs(sizes, first[rows].astype(np.int64), count[rows], stride)
    return carried


def sums_of_runs(values: Sizes, first: Ints, count: npt.NDArray[Any], step: int) -> Sizes:
    """Return sums over runs: `count` values from `first` on, `step` apart, cyclic, shape (runs,).

    Partial sums over 1, 2, 4, ... values are combined: a run with 13 values adds runs with 1, 4 and 8.

    >>> sums_of_runs(np.array([1.0, 2.0, 4.0]), np.array([0, 2]), np.array([3, 2]), 1).tolist()
    [7.0, 5.0]
    """
    total, place = np.zeros(len(first), values.dtype), first % len(values)
    size, longest = 1, int(count.max(initial=0))
    while size <= longest:
        # Bit `size` in the run's length: add the partial sum over `size` values and move on.
        rows = np.flatnonzero(count & size)
        total[rows] += values[place[rows]]
        place[rows] = (place[rows] + size * step) % len(values)
        # values[i] now sums twice as many values from place i on.
        values = values + np.roll(values, -size * step)
        size *= 2
    return total
