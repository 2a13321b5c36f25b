"""How do findings write lists, places and amounts?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from simulator.records.setting_text import label

_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def join_list(words: Sequence[str]) -> str:
    """Join words as a list: 'a, b and c'."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def joined(texts: Iterable[tuple[str, str]], between: str = ": ") -> str:
    """Write names with the text about each; names with the same text share it.

    Examples
    --------
    >>> joined([("ring", "the same time"), ("tree", "the same time"), ("nvls", "5 % more time")])
    'ring and tree: the same time; nvls: 5 % more time'
    """
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).append(name)
    return "; ".join(f"{join_list(own)}{between}{text}" for text, own in names.items())


def at_text(key: str, value: float, *, exact: bool) -> str:
    """Write a searched place, with three digits if known to 2 % only.

    Examples
    --------
    >>> at_text("collective.size", 122_900.0, exact=False)
    '120 KiB'
    >>> at_text("training.micro_batch_size", 3, exact=True)
    'micro-batch 3'
    """
    if key.endswith((".size", "bucket_size")):
        unit, factor = next(((u, f) for u, f in _SIZES if value >= f), ("B", 1))
        return f"{float(f'{value / factor:.3g}'):g} {unit}"
    return label(key, round(value) if exact else int(float(f"{value:.3g}")))


def bracket_text(key: str, one: Mapping[str, Any]) -> str:
    """Write the result of a search: the place `at`, or only the ends `from` and `to`."""
    if one["at"] is not None:
        return at_text(key, one["at"], exact=one["exact"])
    # The search ended early, e.g. because a point in between could not be simulated.
    low, high = (at_text(key, one[end], exact=True) for end in ("from", "to"))
    return f"some place between {low} and {high}"


def bracketed(bracket: Any) -> dict[str, Any]:
    """Return a bracket as plain data for a finding's numbers."""
    return {"at": bracket.at, "from": bracket.low, "to": bracket.high, "exact": bracket.exact}
