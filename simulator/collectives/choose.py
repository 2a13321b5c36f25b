"""Chooses among candidate algorithms by the shortest predicted time (last step of `auto`), with a reason as text.

The choice is made during planning, without a clock: by exact closed forms, or else by estimated ones, whose times the
reason marks with "about".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.basics.units import format_time

# Largest relative excess of the simulated time over the estimate of the chosen algorithm, in 600 drawn settings.
_ESTIMATES_OFF = 0.25
# An estimate for an algorithm that libraries do not have counts as a tenth longer: most are off by less.
_MARGIN = 1.1
# Most algorithms whose times a reason contains.
_MOST = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A collective algorithm with a predicted time, as a candidate for the fastest algorithm."""

    name: str
    # Time on an idle network [s]; None if neither a closed form nor an estimate is known.
    predicted: float | None
    exact: bool = True  # True if the time comes from a closed form
    stands_in: bool = False  # True if the algorithm stands in for one of a library


def choose(candidates: Sequence[Candidate]) -> tuple[str, str]:
    """Return the fastest candidate algorithm's name, and the reason in words.

    Ties go to exact times, then to alphabetical order.

    >>> choose([Candidate("ring", 2e-3), Candidate("tree", 5e-3, exact=False)])
    ('ring', 'shortest time by formula: ring 2 ms, tree about 5 ms (about: up to 25 % too short)')
    """
    stand_ins = {c.name for c in candidates if c.stands_in}
    if not candidates:
        raise ValueError("no algorithm supports this operation here")
    # Sort keys: time, exact before estimated, name.
    ranking = sorted(
        ((c.predicted, not c.exact, c.name) for c in candidates if c.predicted is not None),
        key=lambda ranked: (ranked[0] * (_MARGIN if ranked[1] and ranked[2] in stand_ins else 1.0), *ranked[1:]),
    )
    unknown = [c.name for c in candidates if c.predicted is None]
    rest = f"; without a formula: {', '.join(unknown)}" if unknown else ""
    if ranking:
        times = ", ".join(f"{name} {'about ' * about}{format_time(time)}" for time, about, name in ranking[:_MOST])
        # Readers know neither which times are exact nor how far the others are off.
        estimated = any(about for _, about, _ in ranking[:_MOST])
        note = f" (about: up to {100 * _ESTIMATES_OFF:.0f} % too short)" if estimated else ""
        return ranking[0][2], f"shortest time by formula: {times}{note}{rest}"
    # Without any predicted time, take ring, the usual choice in libraries.
    names = [c.name for c in candidates]
    fallback = "ring" if "ring" in names else names[0]
    return fallback, f"{fallback}, the usual choice{rest}"
