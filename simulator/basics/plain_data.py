"""Plain data: nested lists and mappings, as read from text.

The module does not know the keys' meaning. Its functions use no recursion and work for any depth.
"""

from __future__ import annotations

from typing import Any, Final

# Files have at most ten levels. Recursive functions elsewhere can handle this many levels.
DEEPEST: Final = 40


def at(data: Any, key: tuple[str | int, ...]) -> Any:
    """Return the value at a key path in nested lists and mappings; None if there is no such value.

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
    """Return True if `data` has more than `most` levels of nested lists and mappings.

    >>> is_deep({"a": [1]}, 2), is_deep({"a": [1]}, 1)
    (False, True)
    """
    level = [data]
    # Level by level instead of by recursion: deep data must not exhaust Python's stack.
    for _ in range(most + 1):
        nested = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        if not nested:
            return False
        level = [inner for each in nested for inner in each]
    return True
