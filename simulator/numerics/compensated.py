"""Sums of squares with twice float64's digits: however an array is cut up, they round to one number.

Rule: what an operation on float64 rounds away is kept beside its result, as one keeps the change.

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
    """Sum of the squares of all numbers, and what is left of it beyond float64: some 100 bits together.

    What is no finite number, or too large to be squared, leaves nothing.

    Examples
    --------
    >>> squares([np.array([1.0, 2.0**-40])])
    (1.0, 8.271806125530277e-25)
    """
    numbers = np.concatenate([np.zeros(1), *(part.astype(np.float64).ravel() for part in parts)])
    with np.errstate(over="ignore", invalid="ignore"):
        found = _folded(*_squared(numbers))
        return found if np.isfinite(found).all() else (float((numbers**2).sum()), 0.0)


def _squared(x: Array) -> tuple[Array, Array]:
    """Each square as it is rounded, and its error [1]_."""
    square, split = x * x, x * _SPLITTER
    high = split - (split - x)
    low = x - high
    return square, ((high * high - square) + 2.0 * high * low) + low * low


def _folded(high: Array, low: Array) -> tuple[float, float]:
    """Add up, half upon half."""
    while len(high) > 1:
        odd = len(high) % 2
        high, low = np.pad(high, (0, odd)), np.pad(low, (0, odd))
        half = len(high) // 2
        high, error = _added(high[:half], high[half:])
        high, low = _added(high, low[:half] + low[half:] + error)
    return float(high[0]), float(low[0])


def _added(a: Array, b: Array) -> tuple[Array, Array]:
    """Sums as they are rounded, and their errors [2]_."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
