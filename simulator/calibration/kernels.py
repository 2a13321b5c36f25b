"""Which constants make simulated matmuls of a GPU as fast as the measured ones, and how far off do they stay?

Rule: reads the catalog, writes nothing; scipy is needed here alone. The form of the law is fixed (matmul_time), only
its constants are fitted, and some rows are kept back to test them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.basics.measured_tables import read_table
from simulator.step.kernels.kernel_model import REFERENCE, KernelModel
from simulator.step.kernels.matmul_time import MatmulConstants, matmul_times

if TYPE_CHECKING:
    pass

DTYPES: Final = ("bfloat16", "tf32", "float8_e4m3fn")
# The constants that the table determines, and the bounds of each: seconds, exponents, B/s, passes.
BOUNDS: Final = {
    "launch": (1e-6, 7e-6),
    "matmul_prologue": (0.0, 4e-6),
    "matmul_bfloat16_overlap": (1.0, 8.0),
    "matmul_tf32_overlap": (1.0, 8.0),
    "matmul_tf32_operand_rate": (4e12, 60e12),
    "matmul_float8_e4m3fn_copies": (0.0, 4.0),
}
# The value of each at which it has no effect: an exponent of 30 hides the shorter time fully, 1e30 B/s is no bound.
NEUTRAL: Final = {
    "launch": 0.0,
    "matmul_prologue": 0.0,
    "matmul_bfloat16_overlap": 30.0,
    "matmul_tf32_overlap": 30.0,
    "matmul_tf32_operand_rate": 1e30,
    "matmul_float8_e4m3fn_copies": 0.0,
}


@dataclass(frozen=True, slots=True)
class MatmulTable:
    """Rows of the table at one dtype.

    Attributes
    ----------
    shapes : int array, shape (t, 4)
        Columns batch, m, n, k.
    seconds : float array, shape (t,)
        [s]
    """

    shapes: Ints
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, chosen: Bools) -> MatmulTable:
        """Some of the rows."""
        return MatmulTable(self.shapes[chosen], self.seconds[chosen])


@dataclass(frozen=True, slots=True)
class Misfit:
    """Relative errors |ln(simulated / measured)|: the middle one, the one that 90 % stay below, the largest."""

    median: float
    most: float
    largest: float


def measured(dtype: str, gpu: str = REFERENCE) -> MatmulTable:
    """Read a GPU's rows at one dtype: "bfloat16", "tf32" or "float8_e4m3fn"; "b200" and "mi300x" have fewer."""
    import numpy as np

    if gpu == REFERENCE:
        rows, column = list(read_table("gemm.csv")), dtype
    else:
        rows, column = [row for row in read_table("gemm_other.csv") if (row["gpu"], row["dtype"]) == (gpu, dtype)], ""
    shapes = np.array([[int(row[c]) for c in ("batch", "m", "n", "k")] for row in rows], np.int64)
    return MatmulTable(shapes, np.array([float(row[column or "microseconds"]) * 1e-6 for row in rows]))


def possible(rows: MatmulTable, constants: MatmulConstants, hbm_bandwidth: float) -> Bools:
    """Which rows are no faster than the GPU's peak and an HBM bandwidth [B/s] for all reads and writes allow."""
    import numpy as np

    batch, m, n, k = rows.shapes.T.astype(float)
    moved = batch * (constants.itemsize * k * (m + n) + constants.output_itemsize * m * n)
    flops = 2 * batch * m * n * k
    slow_enough = (flops <= constants.peak_flops * rows.seconds) & (moved <= hbm_bandwidth * rows.seconds)
    return np.asarray(slow_enough, np.bool_)


def errors(constants: MatmulConstants, rows: MatmulTable) -> Floats:
    """ln(simulated / measured) of each row."""
    import numpy as np

    return np.asarray(np.log(matmul_times(constants, rows.shapes) / rows.seconds))


def misfit(constants: MatmulConstants, rows: MatmulTable) -> Misfit:
    """Summarize the errors of rows."""
    return _summed(errors(constants, rows))


def own_spread(rows: MatmulTable) -> Misfit:
    """How much measured times of (m, n, k) and (n, m, k) differ, which are the same work transposed.

    No smooth law can come nearer to the table than this.
    """
    import numpy as np

    shapes: list[tuple[int, ...]] = [tuple(row) for row in rows.shapes.tolist()]
    time = dict(zip(shapes, rows.seconds.tolist(), strict=True))
    pairs = [(shape, (shape[0], shape[2], shape[1], shape[3])) for shape in shapes if shape[1] < shape[2]]
    return _summed(np.log([time[one] / time[other] for one, other in pairs if other in time]))


def fit(
    tables: Mapping[str, MatmulTable],
    start: KernelModel,
    *,
    fixed: Mapping[str, float] | None = None,
    seed: int = 3,
    rounds: int = 120,
) -> dict[str, float]:
    """Find the constants that lie closest to the rows of several dtypes together.

    Parameters
    ----------
    tables : mapping of str to MatmulTable
        By dtype.
    start : KernelModel
        Gives the data sheet's figures and the best matmuls found, which stay.
    fixed : mapping of str to float, optional
        Constants that are not fitted, with their values.
    seed, rounds : int
        Of the search (differential evolution, Storn & Price 1997).

    Returns
    -------
    dict of str to float
        The fixed ones too.

    Notes
    -----
    The search minimizes the sum over dtypes of median + 0.8 x 90 % quantile of |ln(simulated / measured)|. So most
    shapes fit well, and the few for which the library picked an odd kernel have no influence on the others.
    """
    import numpy as np
    from scipy.optimize import differential_evolution  # type: ignore[import-untyped]

    constants = dict(fixed or {})
    used = ("launch", "matmul_prologue", *(f"matmul_{dtype}_" for dtype in tables))
    free = [name for name in BOUNDS if name not in constants and name.startswith(used)]

    def loss(values: Sequence[float]) -> float:
        model = start.changed(constants | dict(zip(free, map(float, values), strict=True)))
        off_by_dtype = (np.abs(errors(model.matmul(dtype), rows)) for dtype, rows in tables.items())
        return sum(float(np.median(off) + 0.8 * np.quantile(off, 0.9)) for off in off_by_dtype)

    limits = [BOUNDS[name] for name in free]
    best = differential_evolution(loss, limits, maxiter=rounds, popsize=8, seed=seed, polish=False, tol=1e-6)
    return constants | dict(zip(free, map(float, best.x), strict=True))


def left_out(
    tables: Mapping[str, MatmulTable], start: KernelModel, *, seed: int = 3, rounds: int = 120
) -> dict[str, tuple[Misfit, Misfit]]:
    """Fit on half of each table's shapes, drawn at random; the misfits on those, and on the others."""
    import numpy as np

    random = np.random.default_rng(seed)
    halves = {dtype: random.permutation(len(rows)) < len(rows) // 2 for dtype, rows in tables.items()}
    fitted = {dtype: tables[dtype].where(half) for dtype, half in halves.items()}
    model = start.changed(fit(fitted, start, seed=seed, rounds=rounds))
    return {
        dtype: (misfit(model.matmul(dtype), fitted[dtype]), misfit(model.matmul(dtype), tables[dtype].where(~half)))
        for dtype, half in halves.items()
    }


def _summed(off: Floats) -> Misfit:
    import numpy as np

    size = np.abs(off)
    return Misfit(float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max()))
