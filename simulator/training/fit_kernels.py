"""Fit the matmul constants of the H100 to the measured table, and tell how far off they are.

Rule: reads the catalog, writes nothing; scipy is needed here alone. Like tailoring: the cut is fixed (matmul_time), a
few lengths are taken, and some of the cloth is kept back to see whether it fits.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.training.matmul_time import MatmulConstants, matmul_times

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_TABLE: Final = Path(__file__).parent.parent / "catalog" / "measured" / "gemm.csv"
DTYPES: Final = ("bfloat16", "tf32", "float8_e4m3fn")
# Where each constant may lie: seconds, shares, B/s, elements.
BOUNDS: Final = {
    "launch": (1e-6, 7e-6),
    "prologue": (0.0, 4e-6),
    "efficiency": (0.5, 1.0),
    "operand_rate": (4e12, 60e12),
    "slicing": (0.0, 12e-6),
    "slice_traffic": (0.0, 2.0),
    "shortest_slice": (64.0, 1100.0),
    "overlap": (1.0, 8.0),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows of the table at one dtype.

    Attributes
    ----------
    shapes : int array, shape (t, 4)
        Columns batch, m, n, k.
    seconds : float array, shape (t,)
        [s]
    """

    shapes: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Measured:
        """Some of the rows."""
        return Measured(self.shapes[chosen], self.seconds[chosen])


@dataclass(frozen=True, slots=True)
class Misfit:
    """Relative errors |ln(simulated / measured)|: the middle one, the one that 90 % stay below, the largest."""

    median: float
    most: float
    largest: float


def measured(dtype: str) -> Measured:
    """Read the table at one dtype: "bfloat16", "tf32" or "float8_e4m3fn"."""
    import numpy as np

    with _TABLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    shapes = np.array([[int(row[c]) for c in ("batch", "m", "n", "k")] for row in rows], np.int64)
    return Measured(shapes, np.array([float(row[dtype]) * 1e-6 for row in rows]))


def possible(rows: Measured, constants: MatmulConstants, hbm_bandwidth: float) -> npt.NDArray[np.bool_]:
    """Tell which rows respect the GPU's peak, and an HBM bandwidth [B/s] for all that is read and written."""
    import numpy as np

    batch, m, n, k = rows.shapes.T.astype(float)
    moved = batch * (constants.itemsize * k * (m + n) + constants.output_itemsize * m * n)
    flops = 2 * batch * m * n * k
    slow_enough = (flops <= constants.peak_flops * rows.seconds) & (moved <= hbm_bandwidth * rows.seconds)
    return np.asarray(slow_enough, np.bool_)


def errors(constants: MatmulConstants, rows: Measured) -> npt.NDArray[np.float64]:
    """ln(simulated / measured) of each row."""
    import numpy as np

    return np.asarray(np.log(matmul_times(constants, rows.shapes) / rows.seconds))


def misfit(constants: MatmulConstants, rows: Measured) -> Misfit:
    """Sum the errors up."""
    return _summed(errors(constants, rows))


def own_spread(rows: Measured) -> Misfit:
    """How far (m, n, k) and (n, m, k), the same work transposed, lie apart in the table itself."""
    import numpy as np

    shapes: list[tuple[int, ...]] = [tuple(row) for row in rows.shapes.tolist()]
    time = dict(zip(shapes, rows.seconds.tolist(), strict=True))
    pairs = [(shape, (shape[0], shape[2], shape[1], shape[3])) for shape in shapes if shape[1] < shape[2]]
    return _summed(np.log([time[one] / time[other] for one, other in pairs if other in time]))


def fit(rows: Measured, start: MatmulConstants, *, seed: int = 1, rounds: int = 200) -> MatmulConstants:
    """Find the constants that lie closest to the rows.

    Parameters
    ----------
    rows : Measured
    start : MatmulConstants
        Gives the datasheet's figures, which stay; its fitted constants are not looked at.
    seed, rounds : int
        Of the search (differential evolution, Storn & Price 1997).

    Notes
    -----
    Least is median + 0.3 x 90 % quantile + 0.1 x mean of |ln(simulated / measured)|: most shapes well, few badly, and
    the few whose library picked an odd kernel do not pull the others along.
    """
    import numpy as np
    from scipy.optimize import differential_evolution  # type: ignore[import-untyped]

    def loss(values: Sequence[float]) -> float:
        off = np.abs(errors(_with(start, values), rows))
        return float(np.median(off) + 0.3 * np.quantile(off, 0.9) + 0.1 * off.mean())

    found = differential_evolution(
        loss, list(BOUNDS.values()), maxiter=rounds, popsize=10, seed=seed, polish=False, tol=1e-7
    )
    return _with(start, found.x)


def left_out(rows: Measured, start: MatmulConstants, *, seed: int = 1, rounds: int = 200) -> tuple[Misfit, Misfit]:
    """Fit on every second shape drawn at random; the misfit on those, and on the others."""
    import numpy as np

    half = np.random.default_rng(seed).permutation(len(rows)) < len(rows) // 2
    seen, unseen = rows.where(half), rows.where(~half)
    constants = fit(seen, start, seed=seed, rounds=rounds)
    return misfit(constants, seen), misfit(constants, unseen)


def _with(start: MatmulConstants, values: Sequence[float]) -> MatmulConstants:
    named: dict[str, Any] = dict(zip(BOUNDS, map(float, values), strict=True))
    return replace(start, **named)


def _summed(off: npt.NDArray[np.float64]) -> Misfit:
    import numpy as np

    size = np.abs(off)
    return Misfit(float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max()))
