"""Which constants make a GPU's simulated matmuls as fast as the measurements?

The module reads the catalog and writes nothing. The law is fixed (`matmul_time`); only its constants are fitted, and
cross-validation fits half of the shapes and tests the rest. This is the only module that needs scipy.

    gemm.csv -> measured() -> MatmulTable per dtype -> fit() -> constants -> errors(), misfit()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.basics.measured_tables import read_table
from simulator.step.kernels.kernel_model import REFERENCE, KernelModel
from simulator.step.kernels.matmul_time import MatmulConstants, matmul_times

DTYPES: Final = ("bfloat16", "tf32", "float8_e4m3fn")
# Constants determined by the table, each with its bounds [s, exponent, B/s, passes].
BOUNDS: Final = {
    "launch": (1e-6, 7e-6),
    "matmul_prologue": (0.0, 4e-6),
    "matmul_bfloat16_overlap": (1.0, 8.0),
    "matmul_tf32_overlap": (1.0, 8.0),
    "matmul_tf32_operand_rate": (4e12, 60e12),
    "matmul_float8_e4m3fn_copies": (0.0, 4.0),
}
# Values without effect: an exponent of 30 hides the shorter time fully, and 1e30 B/s bounds nothing.
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
    """Measured matmuls on a GPU in a single dtype: shapes and times.

    Attributes
    ----------
    shapes : int array, shape (t, 4)
        Columns batch, m, n, k.
    seconds : float array, shape (t,)
        Measured times [s].
    """

    shapes: Ints
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, mask: Bools) -> MatmulTable:
        """Return the measured matmuls that a boolean mask selects."""
        return MatmulTable(self.shapes[mask], self.seconds[mask])


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Summary of absolute errors |ln(simulated / measured)|: median, 90 % quantile, maximum."""

    median: float
    most: float
    largest: float


def measured(dtype: str, gpu: str = REFERENCE) -> MatmulTable:
    """Return a GPU's measured matmuls for a dtype: "bfloat16", "tf32" or "float8_e4m3fn"; "b200" and "mi300x" have
    fewer dtypes.
    """
    import numpy as np

    if gpu == REFERENCE:
        rows, column = list(read_table("gemm.csv")), dtype
    else:
        rows, column = [row for row in read_table("gemm_other.csv") if (row["gpu"], row["dtype"]) == (gpu, dtype)], ""
    shapes = np.array([[int(row[c]) for c in ("batch", "m", "n", "k")] for row in rows], np.int64)
    return MatmulTable(shapes, np.array([float(row[column or "microseconds"]) * 1e-6 for row in rows]))


def possible(rows: MatmulTable, constants: MatmulConstants, hbm_bandwidth: float) -> Bools:
    """Return a boolean mask of the measured matmuls that are no faster than the roofline of peak and HBM bandwidth
    [B/s] allows.
    """
    import numpy as np

    # Least traffic: each operand read once, the result written once.
    batch, m, n, k = rows.shapes.T.astype(float)
    moved = batch * (constants.itemsize * k * (m + n) + constants.output_itemsize * m * n)
    flops = 2 * batch * m * n * k
    # Rows faster than the roofline cannot be correct measurements.
    slow_enough = (flops <= constants.peak_flops * rows.seconds) & (moved <= hbm_bandwidth * rows.seconds)
    return np.asarray(slow_enough, np.bool_)


def errors(constants: MatmulConstants, rows: MatmulTable) -> Floats:
    """Return ln(simulated / measured) for each measured matmul's time under these constants."""
    import numpy as np

    return np.asarray(np.log(matmul_times(constants, rows.shapes) / rows.seconds))


def misfit(constants: MatmulConstants, rows: MatmulTable) -> FitErrors:
    """Return an error summary for measured matmuls, simulated with these constants."""
    return _summed(errors(constants, rows))


def fit(
    tables: Mapping[str, MatmulTable],
    start: KernelModel,
    *,
    fixed: Mapping[str, float] | None = None,
    seed: int = 3,
    rounds: int = 120,
    advance: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Return the matmul constants with which simulated times are closest to measured times, for several dtypes
    together.

    Parameters
    ----------
    tables : mapping of str to MatmulTable
        Rows for each dtype.
    start : KernelModel
        Data sheet figures and the best measured matmuls; these stay unchanged.
    fixed : mapping of str to float, optional
        Constants with a given value, not fitted.
    seed, rounds : int
        Seed and rounds of the search (differential evolution, Storn & Price 1997).
    advance : function, optional
        Called after each round; there are at most `rounds` of them.

    Returns
    -------
    dict of str to float
        Every constant, including the fixed ones.

    Notes
    -----
    The search minimises the sum over dtypes of median + 0.8 x 90 % quantile of |ln(simulated / measured)|. Most shapes
    therefore fit well; the few shapes with an odd choice of kernel by the library have no influence.
    """
    import numpy as np
    from scipy.optimize import differential_evolution  # type: ignore[import-untyped]

    # Only constants for the dtypes present: without fp8 rows, nothing determines an fp8 constant.
    constants = dict(fixed or {})
    # Launch and prologue are common to every dtype.
    used = ("launch", "matmul_prologue", *(f"matmul_{dtype}_" for dtype in tables))
    free = [name for name in BOUNDS if name not in constants and name.startswith(used)]

    def loss(values: Sequence[float]) -> float:
        model = start.changed(constants | dict(zip(free, map(float, values), strict=True)))
        off_by_dtype = (np.abs(errors(model.matmul(dtype), rows)) for dtype, rows in tables.items())
        return sum(float(np.median(off) + 0.8 * np.quantile(off, 0.9)) for off in off_by_dtype)

    limits = [BOUNDS[name] for name in free]
    # No polishing: the loss has medians and is not smooth.
    callback = advance and (lambda *_, **__: advance())
    best = differential_evolution(
        loss, limits, maxiter=rounds, popsize=8, seed=seed, polish=False, tol=1e-6, callback=callback
    )
    return constants | dict(zip(free, map(float, best.x), strict=True))


def left_out(
    tables: Mapping[str, MatmulTable], start: KernelModel, *, seed: int = 3, rounds: int = 120
) -> dict[str, tuple[FitErrors, FitErrors]]:
    """Return by dtype the errors on a random half of the matmuls, to which constants are fitted, and on the
    other half.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    # The same random numbers for every dtype, drawn in order.
    halves = {dtype: random.permutation(len(rows)) < len(rows) // 2 for dtype, rows in tables.items()}
    fitted = {dtype: tables[dtype].where(half) for dtype, half in halves.items()}
    model = start.changed(fit(fitted, start, seed=seed, rounds=rounds))
    return {
        dtype: (misfit(model.matmul(dtype), fitted[dtype]), misfit(model.matmul(dtype), tables[dtype].where(~half)))
        for dtype, half in halves.items()
    }


def _summed(off: Floats) -> FitErrors:
    import numpy as np

    size = np.abs(off)
    return FitErrors(float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max()))
