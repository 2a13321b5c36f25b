"""In which order do people list names: layer 2 before layer 10?"""

from __future__ import annotations

import re


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key for natural order: digits sort by number, and text by letters.

    Examples
    --------
    >>> sorted(["gpu10", "gpu2"], key=natural)
    ['gpu2', 'gpu10']
    """
    # "gpu10" becomes ((-1, "gpu"), (10, ""), (-1, "")): numbers compare with numbers, and sort behind text.
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))
