"""Choosing an algorithm by its foreseen time, and saying why.

Rule: decided when planning, from closed forms alone; what has none is named, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.units import format_time


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm and its time on an idle network [s]; None where it has no exact form here."""

    name: str
    predicted: float | None


def choose(candidates: Sequence[Candidate]) -> tuple[str, str]:
    """Name the fastest algorithm, and why; ties go to the first name. Without any form the ring, if it can.

    Examples
    --------
    >>> choose([Candidate("ring", 2e-3), Candidate("tree", 5e-3), Candidate("chain", None)])
    ('ring', 'fastest by closed form: ring 2 ms, tree 5 ms; no exact form here: chain')
    """
    if not candidates:
        raise ValueError("no algorithm can carry this operation out here")
    known = sorted((c.predicted, c.name) for c in candidates if c.predicted is not None)
    unknown = [c.name for c in candidates if c.predicted is None]
    left = f"; no exact form here: {', '.join(unknown)}" if unknown else ""
    if known:
        told = ", ".join(f"{name} {format_time(time)}" for time, name in known[:3])
        return known[0][1], f"fastest by closed form: {told}{left}"
    names = [c.name for c in candidates]
    fallback = "ring" if "ring" in names else names[0]
    return fallback, f"no closed form is exact on this network, so {fallback}, the usual choice{left}"
