"""Between two points on a numeric axis, at which value does a difference change sign?

The search simulates points in between, down to 2 % or to the next whole number. A straight line between the two points
would be wrong: times bend, and the line misplaced a known crossover by 6 %.

    low                          high       difference has opposite signs at the ends
     |------x--------------------|          estimate: zero of the straight line, shifted slightly
     |------|                               replace the end with the same sign, and repeat until the ends are within 2 %
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# Both ends of a reported place differ by at most this share.
WIDTH: Final = 0.02
# Shift estimates by less than half of the width: the next estimate then brackets the place from the other side.
_ASIDE: Final = 0.008
# A guard: every fourth step bisects, so 40 steps always suffice.
_MOST_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class Bracket:
    """An interval containing a sign change."""

    # `low`, `high`: Last value known with the first sign; first value known with the other sign.
    low: int
    high: int
    step: int = 1  # values are multiples of this step

    @property
    def exact(self) -> bool:
        """Return True if there is no value to try between the ends of the interval."""
        return self.high - self.low <= self.step

    @property
    def at(self) -> float | None:
        """Place of the sign change: the first value with the other sign, or the geometric mean of ends within 2 %.

        None if the search ended early and only the two ends are known.
        """
        if self.exact:
            return float(self.high)
        return math.sqrt(self.low * self.high) if self.high <= (1 + WIDTH) * self.low else None


def sign_change(difference: Callable[[int], float | None], low: int, high: int, step: int = 1) -> Bracket | None:
    """Search between `low` and `high` for the value where a difference changes sign, and return its interval.

    Parameters
    ----------
    difference : function (int) -> float or None
        Returns None if unknown; the search then ends with the interval reached.
    low, high : int
        Multiples of `step`, at least 0.
    step : int
        Values tried are multiples of this step.

    Returns
    -------
    Bracket or None
        None if both ends have the same sign, or an end is unknown.

    Examples
    --------
    >>> bracket = sign_change(lambda x: x - 122880, 65536, 1048576, 64)
    >>> bracket.low <= 122880 <= bracket.high <= 1.02 * bracket.low
    True
    """
    before, after = difference(low), difference(high)
    if before is None or after is None or (before > 0) == (after > 0):
        return None
    for number in range(_MOST_STEPS):
        if high - low <= step or high <= (1 + WIDTH) * low:
            break
        if low == 0:
            # 0 has no logarithm.
            middle = high / 2
        else:
            # A bent curve can make estimates creep along from one end; every fourth step bisects (in the logarithm).
            middle = _estimate(low, high, before, after) if number % 4 < 3 else math.sqrt(low * high)
        # Stay strictly between the ends: each step narrows the interval.
        trial = min(max(round(middle / step) * step, low + step), high - step)
        value = difference(trial)
        if value is None:
            break
        if (value > 0) == (before > 0):
            low, before = trial, value
        else:
            high, after = trial, value
    return Bracket(low, high, step)


def _estimate(low: int, high: int, before: float, after: float) -> float:
    """Return the estimated zero between two values: on a straight line over ln x, shifted to the wider side."""
    share = before / (before - after)
    at = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return at * (1 + _ASIDE) if high / at > at / low else at / (1 + _ASIDE)
