"""A cache of recent results with limited size; the oldest results are removed first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Recent:
    """Cache of results by key with limited total size; the results unused for longest are removed first.

    Parameters
    ----------
    room : int
        Maximum sum of the results' sizes; the newest result may exceed this limit alone.

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
        """Return the cached result for a key; without a cached result, compute the result with `make` and cache it.

        `size` is the result's size, or a function from result to size.
        """
        if key in self._kept:
            # Results in use stay longest: the order of the dictionary is the order of last use.
            self._kept.move_to_end(key)
            cached: T = self._kept[key][0]
            return cached
        # If the last result exceeded the limit alone, it is removed before the next result is computed.
        self._leave(0)
        computed = make()
        takes = size if isinstance(size, int) else size(computed)
        self._kept[key] = computed, takes
        self._taken += takes
        self._leave(1)
        return computed

    def _leave(self, newest: int) -> None:
        """Remove the oldest results until the cache's limit holds, or until only `newest` results are left."""
        while self._taken > self._room and len(self._kept) > newest:
            self._taken -= self._kept.popitem(last=False)[1][1]
