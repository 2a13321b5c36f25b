"""At which value of an axis does a setting overtake another, or fall behind by a margin? Found by further points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from simulator.findings.axis_search import WIDTH, Bracket, sign_change
from simulator.findings.comparison import Comparison, Settings, written
from simulator.records.measures import Measure

# Sizes and sequence lengths between the scenario's values are multiples of 64, if the scenario's values are too.
_GRAIN = 64
_FINEST = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """A numeric axis of a scenario, on which crossovers are searched."""

    key: str  # dotted key of the axis
    numbers: tuple[int, ...]  # its values, rising [count, or B]

    @property
    def step(self) -> int:
        """Step of the search: values tried between the axis's own are multiples of this number."""
        if not self.key.endswith((".size", "seq_len", "bucket_size")):
            return 1
        step = math.gcd(*self.numbers, _GRAIN)
        # Refine the step if it exceeds 2 % of the smallest value, down to 8 (sequences are cut into pieces).
        while step > _FINEST and step > WIDTH * self.numbers[0]:
            step //= 2
        return step

    def settings(self, number: int) -> dict[str, Any]:
        """Return {axis key: number}, with the number as a scenario writes it."""
        return {self.key: written(self.key, number)}


def log_ratio(
    compared: Comparison, measure: Measure, pair: tuple[Settings, Settings], place: Mapping[str, Any]
) -> float | None:
    """Return ln(first setting's value / second's) of a measure at a place (other keys' values).

    The sign is such that positive means the first is worse; None if a value is unknown.
    """
    # The logarithm makes "twice as slow" and "twice as fast" equally far from 0, and the curve straighter for the
    # search.
    values = [_value(compared, measure, {**setting, **place}) for setting in pair]
    if values[0] is None or values[1] is None or min(values[0], values[1]) <= 0:
        return None
    ratio = math.log(values[0] / values[1])
    # For measures such as tokens/s, a smaller value is worse.
    return ratio if measure.best == "least" else -ratio


def _value(compared: Comparison, measure: Measure, settings: Settings) -> float | None:
    """Return a measure's value at the point with these settings, simulated if necessary; None if unknown."""
    # None: the point failed, or the limit of further points is reached.
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
    """Find where on an axis the first setting of a pair becomes worse than the second by a margin, or ceases to be.

    Returns
    -------
    list of (Bracket, bool)
        Places along the axis; True if the first setting is worse from there on.
    """
    # Worse by 5 % means a log ratio above ln 1.05.
    bar = math.log1p(margin)

    def difference(number: int) -> float | None:
        ratio = log_ratio(compared, measure, pair, {**fixed, **axis.settings(number)})
        return None if ratio is None else ratio - bar

    return sign_changes(difference, axis)


def sign_changes(difference: Callable[[int], float | None], axis: Axis) -> list[tuple[Bracket, bool]]:
    """Return the places on an axis where a difference changes sign, with the sign after each (True: positive).

    >>> [(bracket.at, after) for bracket, after in sign_changes(lambda n: n - 5.0, Axis("workers", (2, 4, 8)))]
    [(6.0, True)]
    """
    # Unknown values are skipped: the search then spans the failed point.
    points = [(number, value) for number in axis.numbers if (value := difference(number)) is not None]
    places: list[tuple[Bracket, bool]] = []
    for (low, before), (high, after) in pairwise(points):
        if (before > 0) != (after > 0):
            bracket = sign_change(difference, low, high, axis.step)
            places += [(bracket, after > 0)] if bracket is not None else []
    return places


def axis_of(compared: Comparison, key: str, between: Sequence[Any] | None) -> Axis | None:
    """Return a key's axis: its swept numbers, or the two ends in `between`; None if the values are not numbers."""
    from simulator.findings.comparison import amount

    if between is not None:
        ends = [amount(value) for value in between]
        numbers = tuple(end for end in ends if end is not None)
        return Axis(key, numbers) if len(numbers) == 2 and 0 < numbers[0] < numbers[1] else None
    return Axis(key, compared.numbers(key)) if key in compared.numeric_axes else None
