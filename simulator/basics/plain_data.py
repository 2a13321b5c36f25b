"""Plain data: lists and mappings inside each other, as they come out of text.

Rule: nothing here knows what the keys mean, or calls itself, so data of any depth can be asked about.
"""

from __future__ import annotations

from typing import Any, Final

# No file that is read goes deeper than ten; what walks through data by calling itself has room for as many calls.
DEEPEST: Final = 40


def at(data: Any, key: tuple[str | int, ...]) -> Any:
    """The value at a key path; None where there is none.

    Examples
    --------
    >>> at({"a": [1, 2]}, ("a", 1)), at({"a": [1, 2]}, ("b", 1))
    (2, None)
    """
    for step in key:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def is_deep(data: Any, most: int = DEEPEST) -> bool:
    """Whether there are more than so many lists and mappings inside each other.

    Examples
    --------
    >>> is_deep({"a": [1]}, 2), is_deep({"a": [1]}, 1)
    (False, True)
    """
    level = [data]
    for _ in range(most + 1):
        held = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not held:
            return False
        level = [inner for each in held for inner in each]
    return True
