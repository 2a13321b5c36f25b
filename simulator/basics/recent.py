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
    room : int
        For how much answers are kept: the sum of their sizes, the newest aside.

    Examples
    --------
    >>> recent = Recent(1)
    >>> recent.get("a", lambda: 1), recent.get("a", lambda: 2), recent.get("b", lambda: 3), recent.get("a", lambda: 4)
    (1, 1, 3, 4)
    """

    __slots__ = ("_kept", "_room", "_taken")

    def __init__(self, room: int) -> None:
        self._room, self._taken = room, 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int] | int = 1) -> T:
        """The answer that is kept, or a new one, which has this size."""
        if key in self._kept:
            self._kept.move_to_end(key)
            found: T = self._kept[key][0]
            return found
        self._leave(0)  # what is too large for others to stay beside it goes before the next is made
        made = make()
        takes = size if isinstance(size, int) else size(made)
        self._kept[key] = made, takes
        self._taken += takes
        self._leave(1)
        return made

    def _leave(self, newest: int) -> None:
        """Drop the oldest answers until there is room again, or so many are left."""
        while self._taken > self._room and len(self._kept) > newest:
            self._taken -= self._kept.popitem(last=False)[1][1]
