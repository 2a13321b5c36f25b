"""The value that a share of weighted values stays at or below.

Rule: nothing is interpolated; the answer is one of the values.
"""

from __future__ import annotations

from collections.abc import Sequence


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of the weights stays at or below.

    Examples
    --------
    >>> weighted_quantile([3.0, 1.0, 2.0], [1.0, 1.0, 2.0], 0.75)
    2.0
    """
    total, passed = sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        passed += weight
        if passed >= share * total:
            return value
    return max(values)
