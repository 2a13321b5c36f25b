"""How does hardware add arrays (or multiply them, ...)? With a single rounding per addition, in the array's dtype.

Functions take and return numpy arrays, in place where stated; nothing here knows a rank or a clock.

16-bit and 8-bit floats are added in float32 and rounded, which gives the correctly rounded result: float32 has 24 bits,
at least 2 p + 2 for p = 11 (float16), 8 (bfloat16), 4 and 3 (fp8), therefore the second rounding changes nothing
(Figueroa, "When is double rounding innocuous?", SIGNUM 1995).
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
    """Reduce (add, multiply, ...) the array `other` into the array `into`, in place, rounding to its dtype.

    Integers wrap.

    Parameters
    ----------
    into, other : arrays of equal shape and dtype
        Accumulator, and the array to add.
    reduction : {"sum", "average", "max", "min", "product"}
        For "average" this is the sum; `divide` is called once at the end.

    Examples
    --------
    >>> total = np.array([100, 1], np.int8)
    >>> accumulate_into(total, np.array([100, 1], np.int8), "sum")
    >>> total.tolist()
    [-56, 2]
    """
    operator = _OPERATORS[reduction]
    # Integers add natively; small floats take the detour through float32.
    if into.dtype.itemsize <= 2 and into.dtype.kind not in "iu":
        with np.errstate(over="ignore", invalid="ignore"):
            into[...] = operator(into.astype(np.float32), other.astype(np.float32)).astype(into.dtype)
        return
    # Overflow is a result, reported by `overflowed`, not a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        operator(into, other, out=into)


def divide(total: Array, world_size: int) -> Array:
    """Return a sum divided by the number of ranks, rounded once to the sum's dtype.

    >>> divide(np.array([1, 2], np.float16), 4)
    array([0.25, 0.5 ], dtype=float16)
    """
    if total.dtype.itemsize <= 2:
        return (total.astype(np.float32) / np.float32(world_size)).astype(total.dtype)
    quotient: Array = total / total.dtype.type(world_size)
    return quotient


def rounded(total: Array, dtype: npt.DTypeLike) -> Array:
    """Return an array rounded to a dtype; overflow gives infinity, or NaN in dtypes without infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return total.astype(dtype)


def finished(total: Array, reduction: str, world_size: int, dtype: npt.DTypeLike) -> Array:
    """Return a complete sum as the collective's result: divided for an average, and rounded to the payload's dtype."""
    if reduction == "average":
        total = divide(total, world_size)
    return total if total.dtype == dtype else rounded(total, dtype)


def exact(inputs: list[Array], reduction: str) -> Array:
    """Return the reduction of the inputs in extended precision, in rank order.

    Returns
    -------
    array of float64 or longdouble
        float64 for sums over numbers with up to 32 bits: exact for integers, to 1e-16 for floats. Otherwise longdouble:
        exact for integers up to 2^64; beyond, only overflows are counted.

    Examples
    --------
    >>> exact([np.array([100], np.int8)] * 2, "sum")
    array([200.])
    """
    narrow = inputs[0].dtype.itemsize <= 4 and reduction != "product"
    # Sums over numbers with up to 32 bits fit float64; products and 64-bit numbers need more digits.
    wide = np.dtype(np.float64 if narrow else np.longdouble)
    total = inputs[0].astype(wide)
    # numpy widens its own dtypes during the addition; ml_dtypes' dtypes are widened before.
    native = inputs[0].dtype.kind in "iuf"
    for other in inputs[1:]:
        _OPERATORS[reduction](total, other if native else other.astype(wide), out=total)
    return total / len(inputs) if reduction == "average" and len(inputs) > 1 else total


def overflowed(result: Array, dtype: Dtype) -> int:
    """Return the number of finite elements in an exact result outside the dtype's range."""
    if dtype.is_float:
        with np.errstate(over="ignore", invalid="ignore"):
            stored = result.astype(np.float64).astype(dtype.numpy).astype(np.float64)
        return int(np.count_nonzero(~np.isfinite(stored) & np.isfinite(result)))
    limits = np.iinfo(dtype.numpy)
    return int(np.count_nonzero((result > limits.max) | (result < limits.min)))
