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
# From this size on numpy asks Linux for huge pages (numpy release notes 1.22, NUMPY_MADVISE_HUGEPAGE).
_LARGE: Final = 4 * 2**20


def draw(rank: int, into: Array, dtype: Dtype, seed: int) -> None:
    """Fill an array with rank r's numbers: unit normals, or integers from -16 to 16 (unsigned: 0 to 16)."""
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


def copies(schedule: Schedule, elements: int, drawn: Sequence[Array], dtype: Dtype) -> list[Array]:
    """Copy what `buffers` drew into new buffers, without touching memory of chunks that a rank does not hold."""
    starts = _starts(schedule, elements)
    made = []
    for part, buffer in zip(_held(schedule, starts), drawn, strict=True):
        if part == slice(0, starts[-1]):
            made.append(buffer.copy())
            continue
        copy = _zeros(starts[-1], dtype, part)
        copy[part] = buffer[part]
        made.append(copy)
    return made


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
