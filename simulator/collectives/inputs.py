"""Seeded numbers for a collective to work on, different in every rank and element.

Rule: rank r's numbers depend on the seed and r alone, so that adding a rank does not change the others'.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.reduction import Array
from simulator.collectives.verify import initial
from simulator.dtypes import Dtype
from simulator.schedule import Schedule, chunk_sizes

# Small enough that a few ranks' int8 can be added; more may overflow, which is counted.
_INTEGERS = 16


def draw(rank: int, elements: int, dtype: Dtype, seed: int) -> Array:
    """Rank r's numbers: unit normals, or integers from -16 to 16 (unsigned: 0 to 16)."""
    generator = np.random.default_rng([seed, rank])
    if dtype.is_float:
        if dtype.bits == 64:
            return generator.standard_normal(elements)
        return generator.standard_normal(elements, dtype=np.float32).astype(dtype.numpy, copy=False)
    low = 0 if dtype.kind == "uint" else -_INTEGERS
    return generator.integers(low, _INTEGERS + 1, elements).astype(dtype.numpy)


def buffers(schedule: Schedule, elements: int, dtype: Dtype, seed: int) -> list[Array]:
    """Every rank's buffer before the operation: all chunks in order, those it does not hold yet zero.

    Returns
    -------
    list of array, shape (elements,); (world_size x elements,) in all_to_all
    """
    sizes = chunk_sizes(schedule, elements)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    held = initial(schedule)
    whole = np.arange(schedule.chunks)
    found = []
    for rank in range(schedule.world_size):
        has = whole[np.array(held[rank], dtype=object) != 0]
        if len(has) == schedule.chunks:
            found.append(draw(rank, int(starts[-1]), dtype, seed))
            continue
        buffer = np.zeros(int(starts[-1]), dtype.numpy)
        if len(has):
            part = slice(int(starts[has[0]]), int(starts[has[-1] + 1]))
            buffer[part] = draw(rank, part.stop - part.start, dtype, seed)
        found.append(buffer)
    return found


def result(schedule: Schedule, buffer: Array, rank: int, elements: int) -> Array:
    """What the operation gives a rank, as an array of its own; empty where it promises nothing."""
    starts = np.concatenate([[0], np.cumsum(chunk_sizes(schedule, elements))])
    if schedule.operation in ("reduce_scatter", "scatter"):
        return buffer[int(starts[rank]) : int(starts[rank + 1])].copy()
    if schedule.operation in ("reduce", "gather") and rank != schedule.root:
        return buffer[:0].copy()
    if schedule.operation == "all_to_all":
        n = schedule.world_size
        return np.concatenate([buffer[int(starts[i * n + rank]) : int(starts[i * n + rank + 1])] for i in range(n)])
    return buffer
