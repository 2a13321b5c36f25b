"""In which order do people list names: layer 2 before layer 10?"""

from __future__ import annotations

import re


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Key for sorting names as people do.

    Examples
    --------
    >>> sorted(["gpu10", "gpu2"], key=natural)
    ['gpu2', 'gpu10']
    """
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))
