"""Choosing an algorithm by its foreseen time, and saying why.

Rule: decided when planning, without a clock: from closed forms where they are exact, else from estimates, which are
called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.basics.units import format_time


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm and its foreseen time.

    Attributes
    ----------
    name : str
    predicted : float or None
        Time on an idle network [s]; None where nobody can say.
    exact : bool
        Whether that is a closed form's.
    """

    name: str
    predicted: float | None
    exact: bool = True


def choose(candidates: Sequence[Candidate]) -> tuple[str, str]:
    """Name the fastest algorithm, and why; ties go to an exact form, then to the first name.

    Examples
    --------
    >>> choose([Candidate("ring", 2e-3), Candidate("tree", 5e-3, exact=False), Candidate("chain", None)])
    ('ring', 'fastest foreseen: ring 2 ms, tree about 5 ms; not foreseen: chain')
    """
    if not candidates:
        raise ValueError("no algorithm can carry this operation out here")
    known = sorted((c.predicted, not c.exact, c.name) for c in candidates if c.predicted is not None)
    unknown = [c.name for c in candidates if c.predicted is None]
    left = f"; not foreseen: {', '.join(unknown)}" if unknown else ""
    if known:
        times = ", ".join(f"{name} {'about ' * about}{format_time(time)}" for time, about, name in known[:3])
        return known[0][2], f"fastest foreseen: {times}{left}"
    names = [c.name for c in candidates]
    fallback = "ring" if "ring" in names else names[0]
    return fallback, f"{fallback}, the usual choice{left}"
