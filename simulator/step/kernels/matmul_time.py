"""How long a matrix multiplication takes on a GPU's SMs: tiles, waves, slices of k, and the roofs.

Rule: numbers in, seconds out; nothing here knows a catalog. Like tiling a floor with a fixed crew: every tile takes
its time, the last row of tiles keeps only some hands busy, and nobody lays faster than the lorry brings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.arrays import Floats

if TYPE_CHECKING:
    import numpy.typing as npt

# Output tiles that one SM computes at a time: what matmul libraries are compiled for (CUTLASS's profiler lists these).
TILES: Final = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
# Slices of k that are computed side by side and added afterwards.
SLICES: Final = (2, 4, 8, 16)
# k is walked in steps of this many elements; a shorter rest takes as long as a whole one.
STEP: Final = 64
# Partial sums of slices are float32; each is written once and read once by the kernel that adds them [B].
_PARTIAL: Final = 2 * 4
# Of the search for an efficiency: to 1e-9.
_HALVINGS: Final = 30


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
        Paid once a kernel: its start and end [s]. Slices of k need a second kernel that adds them.
    prologue : float
        Paid once a tile: filling the pipeline, writing the result [s].
    efficiency : float
        Share of the peak in a tile's main loop, 0 to 1.
    overlap : float
        How well computing and HBM hide each other: 1 not at all, infinite perfectly. t = (c^p + h^p)^(1/p).
    operand_rate : float
        How fast operands reach all SMs together [B/s]: small tiles are bound by it. Infinite where nothing tells.
    copies : float
        Passes over HBM, at its rate, of a copy of b in the order that the kernel asks for; 0 where it takes any.
    best_flops : float
        What no matmul exceeds, since a search over shapes found none that does [FLOP/s].
    """

    peak_flops: float
    sms: int
    hbm_bandwidth: float
    itemsize: int
    output_itemsize: int
    launch: float
    prologue: float
    efficiency: float
    overlap: float = math.inf
    operand_rate: float = math.inf
    copies: float = 0.0
    best_flops: float = math.inf


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
    t = max(launch + (compute^p + hbm^p)^(1/p), flops / best) + copies x (bytes of b) / bandwidth, hbm = bytes /
    bandwidth, each operand once; compute = min over tiles (a, b) and slices s of
    ceil(batch ceil(m/a) ceil(n/b) s / SMs) (prologue + k/s max(2ab/rate, (a+b) itemsize/operand rate)),
    the rates per SM; s > 1 costs another launch and s float32 sums of the output, written and read, and is tried while
    SMs are idle.
    """
    c = constants
    free = c.sms - sms_taken
    bandwidth = c.hbm_bandwidth * hbm_share
    steps = -(-k // STEP) * STEP
    flop_time = 2.0 * c.sms / (c.efficiency * c.peak_flops)
    byte_time = c.itemsize * c.sms / c.operand_rate
    sums = float(_PARTIAL) * batch * m * n / bandwidth
    best = math.inf
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
            length = -(-k // (s * STEP)) * STEP
            sliced = -(-tiles * s // free) * (c.prologue + length * step) + c.launch + s * sums
            if sliced < best:
                best = sliced
    moved = batch * (c.itemsize * k * (m + n) + c.output_itemsize * m * n) / bandwidth
    copied = c.copies * batch * c.itemsize * k * n / bandwidth
    if math.isinf(c.overlap):
        hidden = max(best, moved)
    else:
        hidden = float((best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap))
    return max(c.launch + hidden, 2.0 * batch * m * n * k / c.best_flops) + copied


def matmul_times(constants: MatmulConstants, shapes: npt.ArrayLike) -> Floats:
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
    sums = _PARTIAL * batch * m * n / c.hbm_bandwidth
    best: npt.NDArray[Any] = np.full(len(m), np.inf)
    for a, b in TILES:
        tiles = batch * np.ceil(m / a) * np.ceil(n / b)
        step = max(2.0 * a * b * c.sms / (c.efficiency * c.peak_flops), (a + b) * c.itemsize * c.sms / c.operand_rate)
        for s in (1, *SLICES):
            length = np.ceil(k / (s * STEP)) * STEP
            time = np.ceil(tiles * s / c.sms) * (c.prologue + length * step)
            if s > 1:
                time = np.where(tiles * s < 2 * c.sms, time + c.launch + s * sums, np.inf)
            best = np.minimum(best, time)
    moved = batch * (c.itemsize * k * (m + n) + c.output_itemsize * m * n) / c.hbm_bandwidth
    copied = c.copies * batch * c.itemsize * k * n / c.hbm_bandwidth
    if math.isinf(c.overlap):
        hidden = np.maximum(best, moved)
    else:
        hidden = (best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap)
    return np.asarray(np.maximum(c.launch + hidden, 2.0 * batch * m * n * k / c.best_flops) + copied)


def efficiency_of(constants: MatmulConstants, shape: tuple[int, int, int], flops: float) -> float:
    """The main loop's share of the peak, at most 1, at which a matmul of shape (m, n, k) runs at so many FLOP/s.

    Like telling a runner's pace from the time on the clock, once the start and the finish are taken off.
    """
    m, n, k = shape
    wanted = 2.0 * m * n * k / flops
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if matmul_time.__wrapped__(replace(constants, efficiency=middle), m, n, k) > wanted:
            low = middle
        else:
            high = middle
    return high
