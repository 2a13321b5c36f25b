"""The report of a broken rule between keys.

Rules look at records, which are already valid key by key. A rule names the key for its report, and every key that it
looked at. If only one combination of a sweep breaks the rule, the report can therefore name the responsible axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.basics.document import Key


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A broken rule between keys."""

    key: Key  # key path for the report
    message: str  # text for the user: the value found, and the values allowed
    involved: tuple[str, ...]  # dotted keys that the rule looked at; another value for one may satisfy the rule
    of_key: bool = False  # whether the key itself should be removed, instead of changing its value


def first_duplicate(values: Sequence[int]) -> int | None:
    """Return the index of the first repeated value; None if every value is distinct.

    >>> first_duplicate([3, 1, 3]), first_duplicate([3, 1])
    (2, None)
    """
    # `values` may hold many thousands of ranks: a set keeps this linear.
    earlier: set[int] = set()
    for i, value in enumerate(values):
        if value in earlier:
            return i
        earlier.add(value)
    return None


def any_of(names: Iterable[str]) -> str:
    """Format names as advice: 'a, b or c'.

    >>> any_of(["zero1", "zero2", "zero3"])
    'zero1, zero2 or zero3'
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def any_listening(option: str) -> str:
    """Format the sharding strategies that read an option in `sharding`: 'a, b or c'.

    >>> any_listening("bucket_size")
    'ddp, parameter_server, zero1 or zero2'
    """
    # Imported late, because a collective has no strategy.
    from simulator.step.strategies.strategy import STRATEGIES

    # Strategies declare their options; advice therefore includes strategies added later.
    return any_of(STRATEGIES.listening(option))
