"""Draws seeded input numbers for a collective, fills every rank's buffer, and cuts out each rank's result.

Rank r's numbers depend only on the seed and r. Adding a rank leaves every other rank's numbers unchanged.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import Dtype
from simulator.collectives.verify import holders
from simulator.records.chunks import chunk_starts
from simulator.records.schedule import Schedule

# Small enough to keep the int8 sum over a few ranks from overflowing; with more ranks, overflows are counted.
_INTEGERS: Final = 16
# Numbers drawn per rank. A prime: two chunks only begin at the same place in the sequence if there are as many chunks
# between them. Mistaking a chunk for another therefore changes the result.
_DRAWN: Final = 262_139
# From this size on, numpy asks Linux for huge pages (numpy release notes 1.22, NUMPY_MADVISE_HUGEPAGE).
_LARGE: Final = 4 * 2**20


def draw(rank: int, into: Array, dtype: Dtype, seed: int) -> None:
    """Fill the array `into` with a rank's random numbers: unit normals, or integers from -16 to 16 (unsigned: 0 to 16).

    A long array repeats its first 262,139 numbers: copying takes a tenth of the time needed for drawing.
    """
    done = min(_DRAWN, len(into))
    into[:done] = _period(rank, done, dtype, seed)
    while done < len(into):
        # Double the filled part each time; it starts at a multiple of the period, so the sequence continues.
        more = min(done, len(into) - done)
        into[done : done + more] = into[:more]
        done += more


# Points of a sweep have the same ranks and sizes with other algorithms: 64 ranks with two sizes are kept, 128 MiB of
# float32 at most.
@lru_cache(maxsize=128)
def _period(rank: int, count: int, dtype: Dtype, seed: int) -> Array:
    """Return the first `count` numbers drawn from the seed and the rank, shape (count,); do not write into them."""
    generator = np.random.default_rng([seed, rank])
    if dtype.name in ("float64", "float32"):
        numbers = np.empty(count, dtype.numpy)
        # Draw straight into the array: converting from another dtype would take as long as drawing.
        generator.standard_normal(out=numbers, dtype=numbers.dtype)
    elif dtype.is_float:
        numbers = generator.standard_normal(count, dtype=np.float32).astype(dtype.numpy)
    else:
        low = 0 if dtype.kind == "uint" else -_INTEGERS
        numbers = generator.integers(low, _INTEGERS + 1, count).astype(dtype.numpy)
    numbers.flags.writeable = False
    return numbers


def buffers(schedule: Schedule, elements: int, dtype: Dtype, seed: int) -> list[Array]:
    """Return the random buffer of every rank before a collective: every chunk in order, zeros in chunks not yet held.

    Returns
    -------
    list of array
        Shape (elements,) each; (world_size x elements,) in all_to_all.
    """
    starts = _starts(schedule, elements)
    arrays = []
    for rank, part in enumerate(_parts(schedule, starts)):
        # A rank that holds every chunk fills its buffer completely: zeroing first would be wasted.
        full = part == slice(0, starts[-1])
        buffer = np.empty(starts[-1], dtype.numpy) if full else _zeros(starts[-1], dtype, part)
        draw(rank, buffer[part], dtype, seed)
        arrays.append(buffer)
    return arrays


class RandomInput:
    """A rank's random input numbers, kept while its buffer changes.

    Only a single period is stored.

    Parameters
    ----------
    buffer : array
        The rank's buffer before the operation.
    part : slice
        Drawn part of the buffer.
    """

    __slots__ = ("_first", "_length", "_period")

    def __init__(self, buffer: Array, part: slice) -> None:
        self._first, self._length = part.start, len(buffer)
        self._period = buffer[part][:_DRAWN].copy()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Array:
        """Return the input numbers of the given slice of the buffer; the slice must lie in the drawn part."""
        period, count = len(self._period), part.stop - part.start
        if not count:
            return self._period[:0]
        begin = (part.start - self._first) % period
        if begin + count <= period:
            return self._period[begin : begin + count]
        if begin + count <= 2 * period:
            return np.concatenate([self._period[begin:], self._period[: begin + count - period]])
        return np.tile(self._period, -(-(begin + count) // period))[begin : begin + count]


def drawn(schedule: Schedule, elements: int, buffers: Sequence[Array]) -> list[RandomInput]:
    """Return a copy of each rank's random input numbers; call before the collective changes the buffers."""
    parts = _parts(schedule, _starts(schedule, elements))
    return [RandomInput(buffer, part) for buffer, part in zip(buffers, parts, strict=True)]


def _starts(schedule: Schedule, elements: int) -> list[int]:
    """Return the offset of each chunk in a rank's buffer, then the buffer's length."""
    starts: list[int] = chunk_starts(schedule, elements).tolist()
    return starts


def _parts(schedule: Schedule, starts: list[int]) -> list[slice]:
    """Return the slice of the buffer held by each rank before a collective: from the first chunk to the last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for chunk in range(schedule.chunks):
        for rank in holders(schedule, chunk):
            first.setdefault(rank, chunk)
            last[rank] = chunk
    ranks = range(schedule.world_size)
    return [slice(starts[first[r]], starts[last[r] + 1]) if r in first else slice(0, 0) for r in ranks]


def _zeros(elements: int, dtype: Dtype, part: slice) -> Array:
    """Return an array of zeros whose memory Linux allocates on first write, with huge pages only in the slice `part`.

    In all_to_all a rank writes only its row and its column in a square of chunks. numpy asks for huge pages everywhere;
    writing a column of small chunks would then allocate every page.
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
    """Return the part of a rank's buffer that is the collective's result for the rank; possibly empty."""
    starts = _starts(schedule, elements)
    if schedule.operation in ("reduce_scatter", "scatter"):
        return buffer[starts[rank * schedule.pieces] : starts[(rank + 1) * schedule.pieces]].copy()
    if schedule.operation in ("reduce", "gather") and rank != schedule.root:
        return buffer[:0].copy()
    if schedule.operation == "all_to_all":
        n, pieces = schedule.world_size, schedule.pieces
        firsts = ((i * n + rank) * pieces for i in range(n))
        return np.concatenate([buffer[starts[first] : starts[first + pieces]] for first in firsts])
    return buffer
