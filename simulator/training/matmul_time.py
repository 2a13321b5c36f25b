"""How long a matrix multiplication takes on a GPU's SMs: tiles, waves, slices of k, and the roofs.

Rule: numbers in, seconds out; nothing here knows a catalog. Like tiling a floor with a fixed crew: every tile takes
its time, the last row of tiles keeps only some hands busy, and nobody lays faster than the lorry brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Output tiles that one SM computes at a time: what matmul libraries are compiled for (CUTLASS's profiler lists these).
TILES: Final = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
# Slices of k that are computed side by side and added afterwards.
SLICES: Final = (2, 4, 8, 16)
# k is walked in steps of this many elements; a shorter rest takes as long as a whole one.
STEP: Final = 64
# Partial sums of slices are float32 [B].
_PARTIAL: Final = 4


@dataclass(frozen=True, slots=True)
class MatmulConstants:
    """One GPU at one dtype, for matrix multiplications.

    Attributes
    ----------
    peak_flops : float
        Of the whole GPU [FLOP/s].
    sms : int
    hbm_bandwidth : float
        What kernels reach of it [B/s].
    itemsize, output_itemsize : int
        [B]
    launch : float
        Paid once: start and end of the kernel [s].
    prologue : float
        Paid once a tile: filling the pipeline, writing the result [s].
    efficiency : float
        Share of the peak in a tile's main loop, 0 to 1.
    operand_rate : float
        How fast operands reach all SMs together from L2 [B/s]: small tiles are bound by it.
    slicing : float
        Paid once where k is sliced [s].
    slice_traffic : float
        Times that a slice's float32 partial sums pass HBM.
    shortest_slice : float
        Slices with fewer elements of k take as long as one with so many.
    overlap : float
        How well computing and HBM hide each other: 1 not at all, infinite perfectly. t = (c^p + h^p)^(1/p).
    """

    peak_flops: float
    sustained_flops: float
    sms: int
    hbm_bandwidth: float
    itemsize: int
    output_itemsize: int
    launch: float
    prologue: float
    efficiency: float
    operand_rate: float
    slicing: float
    slice_traffic: float
    shortest_slice: float
    overlap: float


@lru_cache(maxsize=65536)
def matmul_time(
    constants: MatmulConstants,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    sms_taken: int = 0,
    hbm_share: float = 1.0,
) -> float:
    """Time out[m, n] = a[m, k] b[k, n], `batch` times, with the best tile and slicing.

    Like a kitchen that picks the pot by the number of guests: the library tries a few tiles and keeps the fastest.

    Parameters
    ----------
    constants : MatmulConstants
    m, n, k, batch : int
        At least 1.
    sms_taken : int
        SMs that others hold.
    hbm_share : float
        Share of HBM bandwidth that is left, above 0.

    Returns
    -------
    float
        [s]; never less in any of m, n, k, batch than for a smaller one, and never faster than peak or HBM.

    Notes
    -----
    t = launch + max((compute^p + hbm^p)^(1/p), flops / sustained), hbm = bytes / bandwidth, each operand once;
    compute = min over tiles (a, b) and slices s of
    ceil(batch ceil(m/a) ceil(n/b) s / SMs) (prologue + max(k/s, shortest) max(2ab/rate, (a+b) itemsize/operand rate)),
    the rates per SM; s > 1 costs slicing + slice_traffic x 4 s batch m n / bandwidth, and is tried while SMs are idle.
    """
    c = constants
    free = c.sms - sms_taken
    bandwidth = c.hbm_bandwidth * hbm_share
    steps = -(-k // STEP) * STEP
    flop_time = 2.0 * c.sms / (c.efficiency * c.peak_flops)
    byte_time = c.itemsize * c.sms / c.operand_rate
    sums = c.slice_traffic * _PARTIAL * batch * m * n / bandwidth
    best = float("inf")
    for a, b in TILES:
        tiles = batch * -(-m // a) * -(-n // b)
        step, fed = a * b * flop_time, (a + b) * byte_time
        if fed > step:
            step = fed
        whole = -(-tiles // free) * (c.prologue + steps * step)
        if whole < best:
            best = whole
        for s in SLICES:
            # With every SM at work another slice brings nothing but sums to add.
            if tiles * s >= 2 * free:
                break
            length: float = -(-k // (s * STEP)) * STEP
            if length < c.shortest_slice:
                length = c.shortest_slice
            sliced = -(-tiles * s // free) * (c.prologue + length * step) + c.slicing + s * sums
            if sliced < best:
                best = sliced
    moved = batch * (c.itemsize * k * (m + n) + c.output_itemsize * m * n) / bandwidth
    hidden = float((best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap))
    return c.launch + max(hidden, 2.0 * batch * m * n * k / c.sustained_flops)


def matmul_times(constants: MatmulConstants, shapes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Time many shapes at once; see `matmul_time`, which gives the same numbers.

    Parameters
    ----------
    constants : MatmulConstants
    shapes : int array, shape (t, 4)
        Columns batch, m, n, k.

    Returns
    -------
    float array, shape (t,)
        [s]
    """
    import numpy as np

    c = constants
    batch, m, n, k = np.asarray(shapes, np.float64).T
    sums = c.slice_traffic * _PARTIAL * batch * m * n / c.hbm_bandwidth
    best: npt.NDArray[Any] = np.full(len(m), np.inf)
    for a, b in TILES:
        tiles = batch * np.ceil(m / a) * np.ceil(n / b)
        step = max(2.0 * a * b * c.sms / (c.efficiency * c.peak_flops), (a + b) * c.itemsize * c.sms / c.operand_rate)
        for s in (1, *SLICES):
            length = np.ceil(k / (s * STEP)) * STEP
            if s > 1:
                length = np.maximum(length, c.shortest_slice)
            time = np.ceil(tiles * s / c.sms) * (c.prologue + length * step)
            if s > 1:
                time = np.where(tiles * s < 2 * c.sms, time + c.slicing + s * sums, np.inf)
            best = np.minimum(best, time)
    moved = batch * (c.itemsize * k * (m + n) + c.output_itemsize * m * n) / c.hbm_bandwidth
    hidden = (best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap)
    return np.asarray(c.launch + np.maximum(hidden, 2.0 * batch * m * n * k / c.sustained_flops))
