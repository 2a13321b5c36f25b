"""Keeps what was worked out lately, so that whoever asks again need not wait; the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Recent:
    """Answers by what was asked.

    Parameters
    ----------
    most : int
        How many are kept.

    Examples
    --------
    >>> recent = Recent(1)
    >>> recent.get("a", lambda: 1), recent.get("a", lambda: 2), recent.get("b", lambda: 3), recent.get("a", lambda: 4)
    (1, 1, 3, 4)
    """

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The answer that is kept, or a new one."""
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            made = make()
            self._kept[key] = made
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return made
        found: T = self._kept[key]
        return found
