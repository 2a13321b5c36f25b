"""Weighted quantiles: the value up to which values have a given share of the total weight.

Values are not interpolated; the result is always a given value.
"""

from __future__ import annotations

from collections.abc import Sequence


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the weighted quantile: the smallest value v such that values up to v have at least `share` of the weight.

    >>> weighted_quantile([3.0, 1.0, 2.0], [1.0, 1.0, 2.0], 0.75)
    2.0
    """
    total, passed = sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        passed += weight
        if passed >= share * total:
            return value
    # Rounding may leave the sum of weights just below the total.
    return max(values)
