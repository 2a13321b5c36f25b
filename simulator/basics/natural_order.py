"""In which order do people list names: layer 2 before layer 10?"""

from __future__ import annotations

import re


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key for a name, by which "layer 2" comes before "layer 10": digits sort by number.

    >>> sorted(["gpu10", "gpu2"], key=natural)
    ['gpu2', 'gpu10']
    >>> sorted(["9²8", "9" * 5000, "10"], key=natural)[:2]
    ['9²8', '10']
    """
    # "gpu10" becomes ((-1, "gpu"), (2, "10"), (-1, "")): numbers compare by their count of digits, then by the digits,
    # because Python converts no text of thousands of digits to an int.
    parts = re.split(r"([0-9]+)", name)
    return tuple(
        (len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (-1, part) for index, part in enumerate(parts)
    )
