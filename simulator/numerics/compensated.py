"""Sums of squares with twice float64's digits: the rounded sum does not depend on an array's sharding.

Each float64 operation's rounding error is computed and stored beside its result.

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
    """Return the sum of squares over the arrays, and the remainder beyond float64, together about 100 bits.

    The remainder is 0 if a number is not finite or too large to be squared.

    >>> squares([np.array([1.0, 2.0**-40])])
    (1.0, 8.271806125530277e-25)
    """
    # A leading zero keeps the sum defined for a rank without elements.
    numbers = np.concatenate([np.zeros(1), *(part.astype(np.float64).ravel() for part in parts)])
    with np.errstate(over="ignore", invalid="ignore"):
        total = _folded(*_squared(numbers))
        # An overflow makes the error terms NaN; report the plain sum (infinite or NaN), by which the caller recognises
        # the overflow.
        return total if np.isfinite(total).all() else (float((numbers**2).sum()), 0.0)


def _squared(x: Array) -> tuple[Array, Array]:
    """Return the square of each number, rounded to float64, and the rounding error of each square [1]_."""
    square, split = x * x, x * _SPLITTER
    # x = high + low, both short enough that high^2, 2 high low and low^2 are exact in float64; their sum minus the
    # rounded square is the rounding error.
    high = split - (split - x)
    low = x - high
    return square, ((high * high - square) + 2.0 * high * low) + low * low


def _folded(high: Array, low: Array) -> tuple[float, float]:
    """Return the sum over pairs `high` + `low`, and the remainder; halves are added to each other repeatedly."""
    while len(high) > 1:
        # An odd length is padded with a zero: 5 -> 3 -> 2 -> 1 numbers.
        odd = len(high) % 2
        high, low = np.pad(high, (0, odd)), np.pad(low, (0, odd))
        half = len(high) // 2
        high, error = _added(high[:half], high[half:])
        # Carry along the errors of both halves and this addition, then renormalise: `low` stays below `high`'s last
        # bit.
        high, low = _added(high, low[:half] + low[half:] + error)
    return float(high[0]), float(low[0])


def _added(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the elementwise sums a + b, rounded to float64, and their rounding errors [2]_."""
    total = a + b
    # Knuth's two-sum: exact whichever number is larger.
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
