"""How long does a matrix multiplication take on a GPU's SMs? Tiles, waves, slices of k, and the roofline.

This module turns numbers into seconds and knows no catalog. A library covers the output with tiles, and an SM computes
one tile at a time.

Wave quantisation, for example: a 4096 x 4096 output has 1024 tiles of 128 x 128. On 132 SMs they take ceil(1024 / 132)
= 8 waves; only 100 SMs work in the last wave, which takes as long as a full wave.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# Tile sizes for which matmul libraries are compiled (in the list of CUTLASS's profiler); an SM computes a tile at a
# time.
TILES: Final = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
# Further tiles of kernels with operands of four bytes (CUTLASS, library/generator.py: sizes of simt_sgemm). They decide
# for the narrow matrices of float32 adapters.
FLOAT32_TILES: Final = (*TILES, (128, 32), (32, 128))
# Numbers of slices of k (split-k): slices are computed in parallel and added afterwards.
SLICES: Final = (2, 4, 8, 16)
# The main loop advances in steps of 64 elements of k; an incomplete step takes as long as a full step.
STEP: Final = 64
# A slice's partial sums are float32, written once and read once by the kernel that adds them [B].
_FLOAT32: Final = 4
_PARTIAL: Final = 2 * _FLOAT32


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

    Libraries choose among tiles and slicings by a heuristic; here, the fastest on all SMs is taken, also beside a
    collective, of which a library knows nothing.

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
        Duration [s], never below the roofline of peak and HBM. With every SM free it never falls if m, n, k or batch
        grows.

    Notes
    -----
    t = launch + (compute^p + hbm^p)^(1/p) + copies x (bytes of b) / bandwidth

    hbm = bytes / bandwidth, each operand read once

    compute = min over tiles (u, v) and slices s of ceil(batch ceil(m/u) ceil(n/v) s / SMs) (prologue + k/s
    max(2uv/rate, (u+v) itemsize/operand rate)), with rates per SM.

    s > 1 costs another launch, and s float32 sums of the output, written and read; it is tried while SMs are idle.
    """
    return _time(constants, ((m, batch),), n, k, sms_taken, hbm_share, reread)


def grouped_time(constants: MatmulConstants, rows: Iterable[int], n: int, k: int) -> float:
    """Return the duration of a single kernel that multiplies groups of rows by a matrix [k, n] of each group [s].

    Groups are the tokens of a rank's experts, `rows` the number of tokens of each. Tiles of all groups share the SMs.

    Examples
    --------
    Groups of equal size take as long as a batch:

    >>> c = MatmulConstants(1e15, 132, 3e12, 2, 2, 2e-6, 1e-6, 0.8)
    >>> grouped_time(c, [512, 512], 4096, 2048) == matmul_time(c, 512, 4096, 2048, 2)
    True
    """
    return _time(constants, tuple(sorted(Counter(row for row in rows if row).items())), n, k)


def _time(
    constants: MatmulConstants,
    groups: tuple[tuple[int, int], ...],
    n: int,
    k: int,
    sms_taken: int = 0,
    hbm_share: float = 1.0,
    reread: int = 0,
) -> float:
    """Return the duration of matmuls [rows, k] [k, n] in a kernel [s]; `groups` has their rows and their number."""
    c = constants
    free = c.sms - sms_taken
    bandwidth = c.hbm_bandwidth * hbm_share
    steps = -(-k // STEP) * STEP
    # Rates of a single SM: seconds per multiply-add of the tile, and seconds per operand element.
    flop_time = 2.0 * c.sms / (c.efficiency * c.peak_flops)
    byte_time = c.itemsize * c.sms / c.operand_rate
    rows = sum(m * number for m, number in groups)
    matrices = sum(number for _, number in groups)
    sums = float(_PARTIAL) * rows * n / c.hbm_bandwidth
    # The choice is of the shortest time on all SMs; `best` is its time on the free ones.
    best = choice = math.inf
    for a, b in FLOAT32_TILES if c.itemsize == _FLOAT32 else TILES:
        tiles = sum(number * -(-m // a) for m, number in groups) * -(-n // b)
        # A small tile computes a b elements from a + b operands, and may wait for operands.
        step, fed = a * b * flop_time, (a + b) * byte_time
        if fed > step:
            step = fed
        tile = c.prologue + steps * step
        alone = -(-tiles // c.sms) * tile
        if alone < choice:
            choice, best = alone, -(-tiles // free) * tile
        for s in SLICES:
            # Once every SM is busy, a further slice only adds partial sums.
            if tiles * s >= 2 * c.sms:
                break
            length = -(-k // (s * STEP)) * STEP
            tile = c.prologue + length * step
            alone = -(-tiles * s // c.sms) * tile + c.launch + s * sums
            if alone < choice:
                choice, best = alone, -(-tiles * s // free) * tile + c.launch + s * sums / hbm_share
    moved = c.itemsize * k * (rows + matrices * n) + c.output_itemsize * rows * n - c.itemsize * reread
    moved /= bandwidth
    copied = c.copies * matrices * c.itemsize * k * n / bandwidth
    # For p = infinity the formula would give 1; its limit is max(c, h).
    if math.isinf(c.overlap):
        hidden = max(best, moved)
    else:
        hidden = float((best**c.overlap + moved**c.overlap) ** (1.0 / c.overlap))
    return c.launch + hidden + copied
