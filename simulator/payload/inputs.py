"""Draws seeded input numbers for a collective, fills every rank's buffer with them, and cuts out each rank's result.

Rule: rank r's numbers depend on the seed and r alone, so that adding a rank does not change those of the others.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import Dtype
from simulator.collectives.verify import holders
from simulator.records.chunks import chunk_starts
from simulator.records.schedule import Schedule

# Small enough that the int8 sum of a few ranks does not overflow; with more ranks it may, and that is counted.
_INTEGERS: Final = 16
# Numbers that are drawn for a rank. A prime, so that no two chunks of an array begin at the same place of the sequence
# unless there are as many chunks between them: one that is taken for another shows.
_DRAWN: Final = 262_139
# From this size on numpy asks Linux for huge pages (numpy release notes 1.22, NUMPY_MADVISE_HUGEPAGE).
_LARGE: Final = 4 * 2**20


def draw(rank: int, into: Array, dtype: Dtype, seed: int) -> None:
    """Fill an array with rank r's numbers: unit normals, or integers from -16 to 16 (unsigned: 0 to 16).

    A long array repeats its first 262,139 numbers: copying them takes a tenth of the time of drawing more.
    """
    _draw(rank, into[:_DRAWN], dtype, seed)
    done = min(_DRAWN, len(into))
    while done < len(into):
        # Twice as many at a time; what is there begins at a multiple of the period, so it goes on where it ends.
        more = min(done, len(into) - done)
        into[done : done + more] = into[:more]
        done += more


def _draw(rank: int, into: Array, dtype: Dtype, seed: int) -> None:
    generator = np.random.default_rng([seed, rank])
    if dtype.name in ("float64", "float32"):
        # Draw straight into the buffer: a second array would take as much time as the numbers.
        generator.standard_normal(out=into, dtype=into.dtype)
    elif dtype.is_float:
        into[...] = generator.standard_normal(len(into), dtype=np.float32).astype(dtype.numpy)
    else:
        low = 0 if dtype.kind == "uint" else -_INTEGERS
        into[...] = generator.integers(low, _INTEGERS + 1, len(into))


def buffers(schedule: Schedule, elements: int, dtype: Dtype, seed: int) -> list[Array]:
    """Every rank's buffer before the operation: all chunks in order, with zeros in those that it does not hold yet.

    Returns
    -------
    list of array, shape (elements,); (world_size x elements,) in all_to_all
    """
    starts = _starts(schedule, elements)
    made = []
    for rank, part in enumerate(_held(schedule, starts)):
        whole = part == slice(0, starts[-1])
        buffer = np.empty(starts[-1], dtype.numpy) if whole else _zeros(starts[-1], dtype, part)
        draw(rank, buffer[part], dtype, seed)
        made.append(buffer)
    return made


class Drawn:
    """What `draw` gave one rank, kept while its buffer changes: the numbers that it repeats.

    Parameters
    ----------
    buffer : array
        Of the rank, before the operation.
    part : slice
        Of the buffer that was drawn.
    """

    __slots__ = ("_first", "_length", "_period")

    def __init__(self, buffer: Array, part: slice) -> None:
        self._first, self._length = part.start, len(buffer)
        self._period = buffer[part][:_DRAWN].copy()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Array:
        """Numbers that were drawn, from `part.start` to before `part.stop`."""
        period, count = len(self._period), part.stop - part.start
        if not count:
            return self._period[:0]
        begin = (part.start - self._first) % period
        if begin + count <= period:
            return self._period[begin : begin + count]
        if begin + count <= 2 * period:
            return np.concatenate([self._period[begin:], self._period[: begin + count - period]])
        return np.tile(self._period, -(-(begin + count) // period))[begin : begin + count]


def drawn(schedule: Schedule, elements: int, buffers: Sequence[Array]) -> list[Drawn]:
    """What `buffers` drew, by rank, before anybody changes it."""
    held = _held(schedule, _starts(schedule, elements))
    return [Drawn(buffer, part) for buffer, part in zip(buffers, held, strict=True)]


def _starts(schedule: Schedule, elements: int) -> list[int]:
    starts: list[int] = chunk_starts(schedule, elements).tolist()
    return starts


def _held(schedule: Schedule, starts: list[int]) -> list[slice]:
    """The part of its buffer that each rank holds before the operation: from its first chunk to its last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for chunk in range(schedule.chunks):
        for rank in holders(schedule, chunk):
            first.setdefault(rank, chunk)
            last[rank] = chunk
    ranks = range(schedule.world_size)
    return [slice(starts[first[r]], starts[last[r] + 1]) if r in first else slice(0, 0) for r in ranks]


def _zeros(elements: int, dtype: Dtype, part: slice) -> Array:
    """Zeros whose memory Linux allocates page by page when it is written, with huge pages only for `part`.

    In all_to_all a rank writes only its row and its column of a square of chunks. numpy asks for huge pages everywhere,
    and writing a column of small chunks would allocate every one of them.
    """
    itemsize = dtype.itemsize
    if elements * itemsize < _LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(elements, dtype.numpy)
    memory = mmap.mmap(-1, elements * itemsize)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    first = part.start * itemsize // mmap.PAGESIZE * mmap.PAGESIZE
    if part.stop * itemsize > first:
        memory.madvise(mmap.MADV_HUGEPAGE, first, part.stop * itemsize - first)
    return np.frombuffer(memory, dtype.numpy)


def result(schedule: Schedule, buffer: Array, rank: int, elements: int) -> Array:
    """The array that the operation gives a rank; empty where it gives this rank nothing."""
    starts = _starts(schedule, elements)
    if schedule.operation in ("reduce_scatter", "scatter"):
        return buffer[starts[rank * schedule.pieces] : starts[(rank + 1) * schedule.pieces]].copy()
    if schedule.operation in ("reduce", "gather") and rank != schedule.root:
        return buffer[:0].copy()
    if schedule.operation == "all_to_all":
        n = schedule.world_size
        return np.concatenate([buffer[starts[i * n + rank] : starts[i * n + rank + 1]] for i in range(n)])
    return buffer
