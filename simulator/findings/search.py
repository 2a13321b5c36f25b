"""Between two points of a numeric axis, where does a difference change its sign?

Rule: found by playing points in between, to 2 % or to the next whole number; never by a straight line between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# The two ends of what is told differ by at most this share.
WIDTH: Final = 0.02
# Estimates are moved by less than half of it, so that the next one brackets the place from the other side.
_ASIDE: Final = 0.008
_MOST_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class Bracket:
    """Where a sign changes.

    Attributes
    ----------
    low, high : int
        The last value known with the first sign, the first known with the other.
    step : int
        Values are multiples of it.
    """

    low: int
    high: int
    step: int = 1

    @property
    def exact(self) -> bool:
        """Whether no value lies between."""
        return self.high - self.low <= self.step

    @property
    def at(self) -> float | None:
        """The place: the first value with the other sign, or the middle of ends that lie within 2 %.

        None where the search had to end before, so that nothing but the two ends is known.
        """
        if self.exact:
            return float(self.high)
        return math.sqrt(self.low * self.high) if self.high <= (1 + WIDTH) * self.low else None


def sign_change(difference: Callable[[int], float | None], low: int, high: int, step: int = 1) -> Bracket | None:
    """Search for the place where a difference changes its sign.

    Parameters
    ----------
    difference : function (int) -> float or None
        None where it is not known; the search then ends with what it has.
    low, high : int
        Multiples of `step` above 0.
    step : int

    Returns
    -------
    Bracket or None
        None where both ends have one sign, or are not known.

    Examples
    --------
    >>> found = sign_change(lambda x: x - 122880, 65536, 1048576, 64)
    >>> found.low <= 122880 <= found.high <= 1.02 * found.low
    True
    """
    before, after = difference(low), difference(high)
    if before is None or after is None or (before > 0) == (after > 0):
        return None
    for number in range(_MOST_STEPS):
        if high - low <= step or high <= (1 + WIDTH) * low:
            break
        middle = _estimate(low, high, before, after) if number % 4 < 3 else math.sqrt(low * high)
        here = min(max(round(middle / step) * step, low + step), high - step)
        value = difference(here)
        if value is None:
            break
        if (value > 0) == (before > 0):
            low, before = here, value
        else:
            high, after = here, value
    return Bracket(low, high, step)


def _estimate(low: int, high: int, before: float, after: float) -> float:
    """Where a straight line over ln x crosses zero, moved a little towards the wider side."""
    share = before / (before - after)
    at = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return at * (1 + _ASIDE) if high / at > at / low else at / (1 + _ASIDE)
