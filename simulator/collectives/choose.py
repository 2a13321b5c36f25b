"""Chooses the algorithm with the shortest predicted time, and gives the reason as text.

Rule: the choice is made when planning, without a clock: from closed forms where they are exact, else from estimates,
which the reason marks with "about".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.basics.units import format_time

# How much longer what was chosen by an estimate took when it was played, at worst in 600 drawn settings.
_ESTIMATES_OFF = 0.25


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm and its predicted time.

    Attributes
    ----------
    name : str
    predicted : float or None
        Time on an idle network [s]; None where neither a closed form nor an estimate gives one.
    exact : bool
        Whether the time comes from a closed form.
    in_libraries : bool
        Whether collective libraries run it.
    """

    name: str
    predicted: float | None
    exact: bool = True
    in_libraries: bool = False

    @property
    def at_worst(self) -> float:
        """The predicted time, longer by what estimates are off by where nothing else speaks for it [s]."""
        sure = self.exact or self.in_libraries
        return (self.predicted or 0.0) * (1.0 if sure else 1.0 + _ESTIMATES_OFF)


def choose(candidates: Sequence[Candidate]) -> tuple[str, str]:
    """Name the fastest algorithm, and the reason; ties go to an exact time, then to the first name in the alphabet.

    What no library runs is chosen by an estimate only if it promises clearly less.

    Examples
    --------
    >>> choose([Candidate("ring", 2e-3), Candidate("tree", 5e-3, exact=False), Candidate("chain", None)])
    ('ring', 'fastest foreseen: ring 2 ms, tree about 5 ms; not foreseen: chain')
    """
    if not candidates:
        raise ValueError("no algorithm can carry this operation out here")
    known = sorted((c.at_worst, not c.exact, c.name, c.predicted) for c in candidates if c.predicted is not None)
    unknown = [c.name for c in candidates if c.predicted is None]
    left = f"; not foreseen: {', '.join(unknown)}" if unknown else ""
    if known:
        times = ", ".join(f"{name} {'about ' * about}{format_time(time)}" for _, about, name, time in known[:3])
        return known[0][2], f"fastest foreseen: {times}{left}"
    names = [c.name for c in candidates]
    fallback = "ring" if "ring" in names else names[0]
    return fallback, f"{fallback}, the usual choice{left}"
