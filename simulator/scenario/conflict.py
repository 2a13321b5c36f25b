"""What a rule between keys reports when it is broken.

Rule: a rule looks at shapes, which are valid key by key. It names the key at which the fault is reported and all keys
that it looked at, so that a fault of one combination of a sweep can be reported at the axis that causes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.basics.document import Key
from simulator.step.strategies.strategy import STRATEGIES


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rule between keys that is broken.

    Attributes
    ----------
    key : tuple
        Where it is reported.
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


def repeated(values: Sequence[int]) -> int | None:
    """Index of the first value that stood before; None where all are distinct."""
    seen: set[int] = set()
    for i, value in enumerate(values):
        if value in seen:
            return i
        seen.add(value)
    return None


def any_of(names: Iterable[str]) -> str:
    """Names as advice.

    Examples
    --------
    >>> any_of(["zero1", "zero2", "zero3"])
    'zero1, zero2 or zero3'
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def any_listening(option: str) -> str:
    """Strategies that an option of `sharding` makes a difference to, as advice."""
    return any_of(STRATEGIES.listening(option))
