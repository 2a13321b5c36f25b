"""Sums of squares with twice float64's digits, so that the rounded sum does not depend on how an array is sharded.

Rule: the rounding error of each float64 operation is computed, and kept beside its result.

References
----------
.. [1] Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 18, 1971.
.. [2] Ogita, Rump & Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from simulator.basics.arrays import Array

# Splits 53 bits into halves whose products are exact: 2^27 + 1 [1]_.
_SPLITTER: Final = 2.0**27 + 1.0


def squares(parts: Iterable[Array]) -> tuple[float, float]:
    """Sum of the squares of all numbers, and its remainder beyond float64: some 100 bits together.

    The remainder is 0 where a number is not finite, or too large to be squared.

    Examples
    --------
    >>> squares([np.array([1.0, 2.0**-40])])
    (1.0, 8.271806125530277e-25)
    """
    numbers = np.concatenate([np.zeros(1), *(part.astype(np.float64).ravel() for part in parts)])
    with np.errstate(over="ignore", invalid="ignore"):
        total = _folded(*_squared(numbers))
        return total if np.isfinite(total).all() else (float((numbers**2).sum()), 0.0)


def _squared(x: Array) -> tuple[Array, Array]:
    """Each square as float64 rounds it, and its rounding error [1]_."""
    square, split = x * x, x * _SPLITTER
    high = split - (split - x)
    low = x - high
    return square, ((high * high - square) + 2.0 * high * low) + low * low


def _folded(high: Array, low: Array) -> tuple[float, float]:
    """Add all numbers up: add the second half to the first until one number remains."""
    while len(high) > 1:
        odd = len(high) % 2
        high, low = np.pad(high, (0, odd)), np.pad(low, (0, odd))
        half = len(high) // 2
        high, error = _added(high[:half], high[half:])
        high, low = _added(high, low[:half] + low[half:] + error)
    return float(high[0]), float(low[0])


def _added(a: Array, b: Array) -> tuple[Array, Array]:
    """Sums as float64 rounds them, and their rounding errors [2]_."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
