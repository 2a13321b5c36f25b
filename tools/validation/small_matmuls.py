"""How far are simulated matmuls from OpenXLA's tables, which have smaller shapes than the tables of models' kernels?

>>> print(small_matmuls().text().splitlines()[0])
error of OpenXLA's matmuls (simulated / measured - 1)
"""

from __future__ import annotations

from statistics import median
from typing import Final

import numpy as np

from simulator.calibration.measured_kernels import gpu_named
from simulator.calibration.table import Table
from simulator.model.kernel import Matmul
from simulator.step.kernels.kernel_time import duration
from tools.validation.kernel_constants import xla_rows

# Tables, and whether constants are fitted to them.
TABLES: Final = (
    ("h100_sxm", "bfloat16", True), ("h100_sxm", "tf32", True), ("h100_sxm", "float8_e4m3fn", False),
    ("b200", "tf32", True), ("b200", "bfloat16", False), ("b200", "float8_e4m3fn", False),
    ("mi300x", "bfloat16", True), ("mi300x", "tf32", True),
)  # fmt: skip
# Multiply-additions of a large matmul: about 17 GFLOP, 2048^3.
_LARGE: Final = 2**33


def ratios(gpu: str, dtype: str, least: int = 0) -> list[float]:
    """Return simulated / measured time of OpenXLA's matmuls with at least so many multiply-additions.

    XLA stores b in an order of its own choice, hence copies count.
    """
    return [
        duration(Matmul("", row.m, row.n, row.k, row.batch), gpu_named(gpu), dtype) / row.seconds
        for row in xla_rows(gpu, dtype)
        if row.batch * row.m * row.n * row.k >= least
    ]


def small_matmuls() -> Table:
    """Return the table of the errors, with a line for each GPU and format."""
    lines = []
    for gpu, dtype, fitted in TABLES:
        found = ratios(gpu, dtype)
        off = [abs(ratio - 1) for ratio in found]
        large = median(ratios(gpu, dtype, _LARGE)) - 1
        lines.append(
            (
                gpu, dtype, "yes" if fitted else "no", str(len(found)), f"{median(off):.1%}",
                f"{np.quantile(off, 0.9):.1%}", f"{median(found) - 1:+.1%}", f"{large:+.1%}",
            )
        )  # fmt: skip
    head = ("GPU", "format", "fitted", "rows", "median", "90 % below", "bias", "bias, large")
    return Table("error of OpenXLA's matmuls (simulated / measured - 1)", head, tuple(lines))
