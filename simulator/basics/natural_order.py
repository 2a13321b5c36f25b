"""In which order do people list names: layer 2 before layer 10?"""

from __future__ import annotations

import re


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key for a name, by which "layer 2" comes before "layer 10": digits sort by number.

    Examples
    --------
    >>> sorted(["gpu10", "gpu2"], key=natural)
    ['gpu2', 'gpu10']
    """
    # "gpu10" becomes ((-1, "gpu"), (10, ""), (-1, "")): numbers compare with numbers, and sort behind text.
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))
