"""How long does a matrix multiplication take on a GPU's SMs? Tiles, waves, slices of k, and the roofline.

This module turns numbers into seconds and knows no catalog. A library covers the output with tiles, and an SM computes
one tile at a time.

Wave quantisation, for example: a 4096 x 4096 output has 1024 tiles of 128 x 128. On 132 SMs they take ceil(1024 / 132)
= 8 waves; only 100 SMs work in the last wave, which takes as long as a full wave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from simulator.basics.arrays import Floats

if TYPE_CHECKING:
    import numpy.typing as npt

# Tile sizes for which matmul libraries are compiled (in the list of CUTLASS's profiler); an SM computes a tile at a
# time.
TILES: Final = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
# Numbers of slices of k (split-k): slices are computed in parallel and added afterwards.
SLICES: Final = (2, 4, 8, 16)
# The main loop advances in steps of 64 elements of k; an incomplete step takes as long as a full step.
STEP: Final = 64
# A slice's partial sums are float32, written once and read once by the kernel that adds them [B].
_PARTIAL: Final = 2 * 4
# Shares that `efficiency_of` tells apart; 2^-30 is about 1e-9.
_SHARES: Final = 2**30


@dataclass(frozen=True, slots=True)
class MatmulConstants:
    """Constants of matrix multiplications on a GPU, for a dtype."""

    peak_flops: float  # peak rate of the whole GPU [FLOP/s]
    sms: int  # number of SMs
    hbm_bandwidth: float  # HBM bandwidth reached by kernels [B/s]
    itemsize: float  # bytes of an input element [B]: 0.5 for four bits
    output_itemsize: int  # bytes of an output element [B]
    launch: float  # Launch overhead, paid once per kernel [s]. Slices of k need a second kernel for the addition.
    prologue: float  # overhead paid once per tile: filling the software pipeline and writing the result [s]
    efficiency: float  # share of the peak in a tile's main loop, 0 to 1
    # Exponent p in t = (c^p + h^p)^(1/p) for compute c and HBM h: 1 for no overlap, infinite for perfect overlap
    overlap: float = math.inf
    # Rate at which operands reach every SM together [B/s], a bound on small tiles. Infinite if not fitted.
    operand_rate: float = math.inf
    # Passes over HBM, at its rate, to copy b into the order needed by the kernel; 0 if any order is accepted
    copies: float = 0.0
    best_flops: float = math.inf  # rate of the best matmul found by a search over shapes, an upper bound [FLOP/s]


@lru_cache(maxsize=65536)
def matmul_time(
    constants: MatmulConstants,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    sms_taken: int = 0,
    hbm_share: float = 1.0,
    reread: int = 0,
) -> float:
    """Return the duration of out[m, n] = a[m, k] b[k, n], `batch` times [s], with the best tile and slicing.

    Libraries choose among tiles and slicings by a heuristic; here, the fastest is taken.

    Parameters
    ----------
    m, n, k, batch : int
        Sizes, at least 1.
    sms_taken : int
        SMs taken by a collective.
    hbm_share : float
        Share of HBM bandwidth left to the kernel, above 0.
    reread : int
        Elements of the operands, of all `batch` products together, that repeat other elements and are not read again.

    Returns
    -------
    float
        Duration [s]. It never falls if m, n, k or batch grows, and is never below the roofline of peak and HBM.

    Notes
    -----
    t = max(launch + (compute^p + hbm^p)^(1/p), flops / best) + copies x (bytes of b) / bandwidth

    hbm = bytes / bandwidth, each operand read once

    compute = min over tiles (u, v) and slices s of ceil(batch ceil(m/u) ceil(n/v) s / SMs) (prologue + k/s
    max(2uv/rate, (u+v) itemsize/operand rate)), with rates per SM.

    s > 1 costs another launch, and s float32 sums of the output, written and read; it is tried while SMs are idle.
    """
    c = constants
    free = c.sms - sms_taken
    bandwidth = c.hbm_bandwidth * hbm_share
    steps = -(-k // STEP) * STEP
    # Rates of a single SM: seconds per multiply-add of the tile, and seconds per operand element.
    flop_time = 2.0 * c.sms / (c.efficiency * c.peak_flops)
    byte_time = c.itemsize * c.sms / c.operand_rate
    sums = float(_PARTIAL) * batch * m * n / bandwidth
    best = math.inf
    for a, b in TILES:
        tiles = batch * -(-m // a) * -(-n // b)
        # A small tile computes a b elements from a + b operands, and may wait for operands.
        step, fed = a * b * flop_time, (a + b) * byte_time
        if fed > step:
            step = fed
        unsliced = -(-tiles // free) * (c.prologue + steps * step)
        if unsliced < best:
            best = unsliced
        for s in SLICES:
            # Once every SM is busy, a further slice only adds partial sums.
            if tiles * s >= 2 * free:
                break
            length = -(-k // (s * STEP)) * STEP
            sliced = -(-tiles * s // free) * (c.prologue + length * step) + c.launch + s * sums
            if sliced < best:
                best = sliced
    moved = (batch * (c.itemsize * k * (m + n) + c.output_itemsize * m * n) - c.itemsize * reread) / bandwidth
    copied = c.copies * batch * c.itemsize * k * n / bandwidth
    # For p = infinity the formula would give 1; its limit is max(c, h).
    if math.isinf(c.overlap):
        hidden = max(best, moved)
    else:
        hidden = float((best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap))
    return max(c.launch + hidden, 2.0 * batch * m * n * k / c.best_flops) + copied


def matmul_times(constants: MatmulConstants, shapes: npt.ArrayLike) -> Floats:
    """Return the durations of many shapes at once [s], equal to `matmul_time`'s.

    Parameters
    ----------
    shapes : int array, shape (t, 4)
        Columns batch, m, n, k.

    Returns
    -------
    float array, shape (t,)
        Durations [s].
    """
    import numpy as np

    c = constants
    batch, m, n, k = np.asarray(shapes, np.float64).T
    sums = _PARTIAL * batch * m * n / c.hbm_bandwidth
    # A row for each tile and number of slices, a column for each shape.
    a, b, s = np.array([(*tile, count) for tile in TILES for count in (1, *SLICES)], np.float64).T[:, :, None]
    tiles = batch * np.ceil(m / a) * np.ceil(n / b)
    step = np.maximum(
        2.0 * a * b * c.sms / (c.efficiency * c.peak_flops), (a + b) * c.itemsize * c.sms / c.operand_rate
    )
    time = np.ceil(tiles * s / c.sms) * (c.prologue + np.ceil(k / (s * STEP)) * STEP * step)
    # `matmul_time` stops at the same number of slices.
    sliced = np.where(tiles * s < 2 * c.sms, time + c.launch + s * sums, np.inf)
    best = np.where(s > 1, sliced, time).min(axis=0)
    moved = batch * (c.itemsize * k * (m + n) + c.output_itemsize * m * n) / c.hbm_bandwidth
    copied = c.copies * batch * c.itemsize * k * n / c.hbm_bandwidth
    if math.isinf(c.overlap):
        hidden = np.maximum(best, moved)
    else:
        hidden = (best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap)
    return np.asarray(np.maximum(c.launch + hidden, 2.0 * batch * m * n * k / c.best_flops) + copied)


def efficiency_of(constants: MatmulConstants, shape: tuple[int, int, int], flops: float) -> float:
    """Return the share of the peak, at most 1, in the main loop of a matmul (m, n, k) whose total rate is `flops`
    [FLOP/s].

    The duration falls with the efficiency, nearly as a + b / efficiency: secants in the reciprocal find the share.
    Every fourth step halves the interval, because the best tile changes with the efficiency.
    """
    m, n, k = shape
    target = 2.0 * m * n * k / flops

    def seconds(place: int) -> float:
        # Bypass the cache: these constants occur only once.
        return matmul_time.__wrapped__(replace(constants, efficiency=place / _SHARES), m, n, k)

    # The share is high / _SHARES; at low / _SHARES the matmul takes too long.
    low, high, last = 0, _SHARES, (1.0, seconds(_SHARES))
    if last[1] > target:
        return 1.0
    guess = _SHARES * last[1] / target
    steps = 0
    while high - low > 1:
        steps += 1
        place = (low + high) // 2 if steps % 4 == 0 else min(max(int(guess), low + 1), high - 1)
        now = _SHARES / place, seconds(place)
        if now[1] > target:
            low = place
        else:
            high = place
        if now[0] != last[0] and now[1] != last[1]:
            reciprocal = now[0] + (target - now[1]) * (now[0] - last[0]) / (now[1] - last[1])
            guess = _SHARES / max(reciprocal, 1.0)
        last = now
    return high / _SHARES
