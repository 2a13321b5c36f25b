"""Splits the texts of `--set` (KEY=VALUE) and `--ranks`.

`scenario/` decides which keys and values are valid, and which values make an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.basics.errors import ScenarioError, one_of

# No cluster has more ranks. A typing error such as 0-99999999999 must not fill the memory.
_MOST_RANKS: Final = 10_000_000


def as_overrides(settings: Sequence[str]) -> dict[str, str]:
    """Return the --set texts KEY=VALUE as {key: value}; raise ScenarioError without '='.

    >>> as_overrides(["collective.size=1 MiB"])
    {'collective.size': '1 MiB'}
    """
    overrides = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--set {text}: must be KEY=VALUE, such as --set collective.size='1 MiB'")
        overrides[key.strip()] = value.strip()
    return overrides


def as_ranks(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in a text of ranks and ranges of ranks, rising; raise ScenarioError for anything else.

    >>> as_ranks("8-10, 0")
    (0, 8, 9, 10)
    """
    if text is None:
        return None
    ranks = set[int]()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        last = last if dash else first
        # The length is checked first: int() of a very long text takes long.
        plain = all(end.isdecimal() and len(end) <= len(str(_MOST_RANKS)) for end in (first, last))
        if not (plain and int(first) <= int(last) < _MOST_RANKS):
            raise ScenarioError(f"--ranks {text}: must be ranks or ascending ranges of ranks, such as --ranks 0,8-15")
        ranks.update(range(int(first), int(last) + 1))
    return tuple(sorted(ranks))


def as_full(table: str) -> bool:
    """Return True if the option --table is "full", False for "small"; raise ScenarioError for anything else."""
    if table not in ("small", "full"):
        raise ScenarioError(f"--table {table}: {one_of(('small', 'full'), table)}")
    return table == "full"
