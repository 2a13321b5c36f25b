"""Adds arrays (or multiplies them, ...) as hardware does: one rounding for each addition, in the array's dtype.

Rule: functions take and give numpy arrays, in place where they say so; nothing here knows a rank or a clock.

16-bit and 8-bit floats are added in float32 and rounded. That gives the correctly rounded result: float32's 24 bits are
at least 2 p + 2 for p = 11 (float16), 8 (bfloat16), 4 and 3 (fp8), so the second rounding changes nothing (Figueroa,
"When is double rounding innocuous?", SIGNUM 1995).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Array
from simulator.basics.dtypes import Dtype

_OPERATORS: Final[dict[str, Callable[..., Array]]] = {
    "sum": np.add,
    "average": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
}
REDUCTIONS: Final = tuple(_OPERATORS)


def accumulate_into(into: Array, other: Array, reduction: str) -> None:
    """Add (or multiply, ...) `other` into `into`, in place, rounding to its dtype; integers wrap.

    Parameters
    ----------
    into, other : array, same shape and dtype
    reduction : {"sum", "average", "max", "min", "product"}
        For "average" this is the sum; `divide` is called once at the end.
    """
    operator = _OPERATORS[reduction]
    if into.dtype.itemsize <= 2 and into.dtype.kind not in "iu":
        with np.errstate(over="ignore", invalid="ignore"):
            into[...] = operator(into.astype(np.float32), other.astype(np.float32)).astype(into.dtype)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        operator(into, other, out=into)


def divide(total: Array, world_size: int) -> Array:
    """Divide by the world size, rounded once to the array's dtype."""
    if total.dtype.itemsize <= 2:
        return (total.astype(np.float32) / np.float32(world_size)).astype(total.dtype)
    quotient: Array = total / total.dtype.type(world_size)
    return quotient


def rounded(total: Array, dtype: npt.DTypeLike) -> Array:
    """Round to a dtype; what is too large for it becomes infinite (or NaN, where the dtype has no infinity)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return total.astype(dtype)


def finished(total: Array, reduction: str, world_size: int, dtype: npt.DTypeLike) -> Array:
    """The result of a complete sum: divided for an average, and rounded to the payload's dtype."""
    if reduction == "average":
        total = divide(total, world_size)
    return total if total.dtype == dtype else rounded(total, dtype)


def exact(inputs: list[Array], reduction: str) -> Array:
    """The reduction in extended precision, over ranks in order.

    Returns
    -------
    array of float64 or longdouble
        float64 for sums of numbers of up to 32 bits: exact for integers, to 1e-16 for floats. longdouble for all
        else: exact for integers up to 2^64, and beyond that only the overflow is counted.
    """
    narrow = inputs[0].dtype.itemsize <= 4 and reduction != "product"
    wide = np.dtype(np.float64 if narrow else np.longdouble)
    total = inputs[0].astype(wide)
    # numpy widens its own dtypes while it adds; those of ml_dtypes are widened before.
    native = inputs[0].dtype.kind in "iuf"
    for other in inputs[1:]:
        _OPERATORS[reduction](total, other if native else other.astype(wide), out=total)
    return total / len(inputs) if reduction == "average" and len(inputs) > 1 else total


def overflowed(result: Array, dtype: Dtype) -> int:
    """Number of elements of an exact result that the dtype cannot hold."""
    if dtype.is_float:
        with np.errstate(over="ignore", invalid="ignore"):
            held = result.astype(np.float64).astype(dtype.numpy).astype(np.float64)
        return int(np.count_nonzero(~np.isfinite(held) & np.isfinite(result)))
    limits = np.iinfo(dtype.numpy)
    return int(np.count_nonzero((result > limits.max) | (result < limits.min)))
