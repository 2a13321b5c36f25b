"""A rule between keys that is broken.

Rule: a rule looks at shapes, which are valid key by key, and names the key at which the fault is told and all keys that
it looked at; so a fault in a swept combination can be told at the right axis.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.document import Key


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rule between keys that is broken.

    Attributes
    ----------
    key : tuple
        Where it is told.
    message : str
    involved : tuple of str
        Dotted keys that the rule looked at; with another value of one of them it could hold.
    of_key : bool
        Whether the key itself should go, and not only its value change.
    """

    key: Key
    message: str
    involved: tuple[str, ...]
    of_key: bool = False


def repeated(values: list[int]) -> int | None:
    """Index of the first value that stood before; None where all are distinct."""
    seen: set[int] = set()
    for i, value in enumerate(values):
        if value in seen:
            return i
        seen.add(value)
    return None
