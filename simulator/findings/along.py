"""Where along an axis does one setting become better than another, or worse by a margin? Plays points in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from simulator.findings.comparison import Comparison, Settings, written
from simulator.findings.search import WIDTH, Bracket, sign_change
from simulator.records.measures import Measure

# Places of sizes and sequences are multiples of this where the scenario's own values are.
_GRAIN = 64
_FINEST = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """A numeric axis.

    Attributes
    ----------
    key : str
    numbers : tuple of int
        Its values, rising [count, or B].
    """

    key: str
    numbers: tuple[int, ...]

    @property
    def step(self) -> int:
        """What values between its own are multiples of."""
        if not self.key.endswith((".size", "seq_len", "bucket_size")):
            return 1
        step = math.gcd(*self.numbers, _GRAIN)
        # Finer where that would be more than 2 % of the least, but not finer than sequences are cut.
        while step > _FINEST and step > WIDTH * self.numbers[0]:
            step //= 2
        return step

    def settings(self, number: int) -> dict[str, Any]:
        """The axis set to a number, as a scenario writes it."""
        return {self.key: written(self.key, number)}


def log_ratio(
    compared: Comparison, measure: Measure, pair: tuple[Settings, Settings], place: Mapping[str, Any]
) -> float | None:
    """ln of a setting's measure over another's at one place; positive where the first is worse; None if unknown."""
    values = [_value(compared, measure, {**setting, **place}) for setting in pair]
    if values[0] is None or values[1] is None or min(values[0], values[1]) <= 0:
        return None
    ratio = math.log(values[0] / values[1])
    return ratio if measure.best == "least" else -ratio


def _value(compared: Comparison, measure: Measure, settings: Settings) -> float | None:
    report = compared.known(settings)
    return None if report is None else measure.value(report)


def changes(
    compared: Comparison,
    measure: Measure,
    pair: tuple[Settings, Settings],
    axis: Axis,
    fixed: Mapping[str, Any],
    *,
    margin: float = 0.0,
) -> list[tuple[Bracket, bool]]:
    """Places where the first of a pair becomes worse than the other by a margin, or ceases to be.

    Returns
    -------
    list of (Bracket, bool)
        Along the axis; whether the first is worse from there on.
    """
    bar = math.log1p(margin)

    def difference(number: int) -> float | None:
        ratio = log_ratio(compared, measure, pair, {**fixed, **axis.settings(number)})
        return None if ratio is None else ratio - bar

    return sign_changes(difference, axis)


def sign_changes(difference: Callable[[int], float | None], axis: Axis) -> list[tuple[Bracket, bool]]:
    """Sign changes between neighbouring values of an axis at which a difference is known, and the sign after each."""
    known = [(number, value) for number in axis.numbers if (value := difference(number)) is not None]
    found: list[tuple[Bracket, bool]] = []
    for (low, before), (high, after) in pairwise(known):
        if (before > 0) != (after > 0):
            bracket = sign_change(difference, low, high, axis.step)
            found += [(bracket, after > 0)] if bracket is not None else []
    return found


def axis_of(compared: Comparison, key: str, between: Sequence[Any] | None) -> Axis | None:
    """The numbers of a key: those that are swept, or the two ends that were given; None where they are no numbers."""
    from simulator.findings.comparison import amount

    if between is not None:
        ends = [amount(value) for value in between]
        numbers = tuple(end for end in ends if end is not None)
        return Axis(key, numbers) if len(numbers) == 2 and 0 < numbers[0] < numbers[1] else None
    return Axis(key, compared.numbers(key)) if key in compared.numeric_axes else None
