"""What must a collective give to each rank? Worked out with numpy alone, without a schedule.

The numbers of a rank are different from the numbers of every other rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from simulator.basics import dtypes
from simulator.basics.arrays import Array
from simulator.collectives.algorithm import REDUCING, CollectiveRequest

# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF: Final = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def draw(rank: int, elements: int, dtype: str) -> Array:
    """Return random numbers of a rank: unit normals, or integers of the dtype's whole range, whose sums wrap round."""
    generator = np.random.default_rng([2_026, rank])
    kind = dtypes.find(dtype)
    if kind.is_float:
        return generator.standard_normal(elements).astype(kind.numpy)
    limits = np.iinfo(kind.numpy)
    return generator.integers(limits.min, limits.max, elements, dtype=kind.numpy, endpoint=True)


def parts(elements: int, pieces: int) -> list[slice]:
    """Return the slices of an array cut into pieces that differ by at most one element.

    >>> parts(7, 3)
    [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    """
    borders = [sum(elements // pieces + (j < elements % pieces) for j in range(i)) for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(borders)]


def starts(request: CollectiveRequest, dtype: str) -> list[Array]:
    """Return the whole buffer of each rank before the operation, with zeros where the rank has no data yet."""
    n, elements, operation = request.world_size, request.elements, request.operation
    kind = dtypes.find(dtype).numpy
    buffers = []
    for rank in range(n):
        if operation == "all_to_all":
            buffer = np.zeros(n * elements, kind)
            buffer[rank * elements : (rank + 1) * elements] = draw(rank, elements, dtype)
        else:
            buffer = np.zeros(elements, kind)
            part = _own_slice(request, rank)
            buffer[part] = draw(rank, elements, dtype)[part]
        buffers.append(buffer)
    return buffers


def _own_slice(request: CollectiveRequest, rank: int) -> slice:
    """Return the slice of the array that a rank has before the operation."""
    if request.operation in ("all_gather", "gather"):
        return parts(request.elements, request.world_size)[rank]
    rooted = request.operation in ("broadcast", "scatter")
    return slice(0, 0) if rooted and rank != request.root else slice(0, request.elements)


def share_of(request: CollectiveRequest, outcome: Array | list[Array]) -> list[Array]:
    """Return the part of the reduced, gathered or sent array that the operation promises to each rank."""
    n, elements, operation = request.world_size, request.elements, request.operation
    if operation == "all_to_all":
        rows = [np.asarray(buffer)[r * elements : (r + 1) * elements] for r, buffer in enumerate(outcome)]
        return [np.concatenate([row[part] for row in rows]) for part in parts(elements, n)]
    array = np.asarray(outcome)
    if operation in ("reduce_scatter", "scatter"):
        return [array[part] for part in parts(elements, n)]
    if operation in ("reduce", "gather"):
        return [array if rank == request.root else array[:0] for rank in range(n)]
    return [array] * n


def wrapped_sum(arrays: Sequence[Array]) -> Array:
    """Return the exact sum of integers modulo 2^bits, in unsigned arithmetic of 64 bits.

    >>> wrapped_sum([np.array([100], np.int8)] * 2)
    array([-56], dtype=int8)
    """
    unsigned = sum((a.astype(np.int64).view(np.uint64) for a in arrays), np.zeros(len(arrays[0]), np.uint64))
    bits = 8 * arrays[0].dtype.itemsize
    low = (unsigned & np.uint64(2**bits - 1)).astype(f"u{arrays[0].dtype.itemsize}")
    return low.view(arrays[0].dtype)


def same_bits(a: Array, b: Array) -> bool:
    """Return True if two arrays are equal in every bit.

    >>> same_bits(np.array([0.0]), np.array([-0.0])), same_bits(np.array([np.nan]), np.array([np.nan]))
    (False, True)
    """
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def truth(request: CollectiveRequest, inputs: list[Array]) -> list[Array] | None:
    """Return the exact result of each rank for copies and integers; None for sums of floats (any order)."""
    if request.operation == "all_to_all":
        return share_of(request, inputs)
    if request.operation in REDUCING:
        return share_of(request, wrapped_sum(inputs)) if inputs[0].dtype.kind in "iu" else None
    if request.operation in ("broadcast", "scatter"):
        return share_of(request, inputs[request.root])
    gathered = [inputs[rank][part] for rank, part in enumerate(parts(request.elements, request.world_size))]
    return share_of(request, np.concatenate(gathered))


def error_bound(request: CollectiveRequest, inputs: list[Array], dtype: str) -> tuple[list[Array], list[Array]]:
    """Return, for each rank, the exact sums of floats and the largest error of any order of N - 1 additions.

    |error| <= ((1 + u)^(N-1) - 1) sum |x| (Higham 2002, section 4.2), plus half a unit in the last place for float64's
    own rounding and for subnormal float16.
    """
    wide = [a.astype(np.float64) for a in inputs]
    zero = np.zeros(len(wide[0]))
    sums, magnitudes = share_of(request, sum(wide, zero)), share_of(request, sum(map(np.abs, wide), zero))
    bound = (1 + ROUNDOFF[dtype]) ** (request.world_size - 1) - 1
    return sums, [bound * magnitude + 2.0**-24 * ROUNDOFF[dtype] for magnitude in magnitudes]
