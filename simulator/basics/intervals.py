"""How long was at least one of several time intervals under way: lengths of unions, of pairs or of arrays.

Rule: nothing here knows what an interval is of (a kernel, a flow on a link).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simulator.basics.arrays import Floats, Ints

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge what overlaps or touches; in order.

    Examples
    --------
    >>> union([(2, 3), (0, 1), (0.5, 1.5)])
    [(0, 1.5), (2, 3)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Length of the union.

    Examples
    --------
    >>> length([(0, 2), (1, 3)])
    3
    """
    return sum(end - start for start, end in union(intervals))


def outside(intervals: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Length of the union of intervals that no other covers.

    Examples
    --------
    >>> outside([(0, 2)], [(1, 3)])
    1
    """
    others = list(others)
    return length([*intervals, *others]) - length(others)


def lengths_by_key(key: Ints, start: Floats, end: Floats, keys: int) -> Floats:
    """Length of the union of each key's intervals, for millions of them at once.

    Parameters
    ----------
    key : int array, shape (t,)
        Which union an interval belongs to, 0 <= key < keys.
    start, end : float array, shape (t,)
        [s]
    keys : int

    Returns
    -------
    float array, shape (keys,)
        [s]; 0 for a key without intervals.

    Examples
    --------
    >>> import numpy as np
    >>> lengths_by_key(np.array([1, 1, 0]), np.array([0.0, 1.0, 0.0]), np.array([2.0, 3.0, 5.0]), 3).tolist()
    [5.0, 3.0, 0.0]
    """
    order = np.lexsort((start, key))
    key, start, end = key[order], start[order], end[order]
    # The running maximum of ends must start afresh at each key. Ends are replaced by their ranks, and each key's
    # ranks lifted above those of the key before: whole numbers, so nothing is rounded.
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[by_end] = np.arange(len(end))
    highest = np.maximum.accumulate(rank + key * len(end)) - key * len(end)
    latest = np.full(len(end), -np.inf)
    same = key[1:] == key[:-1]
    latest[1:][same] = end[by_end[highest[:-1][same]]]
    # What of each interval no earlier one of its key covers.
    uncovered = np.maximum(end - np.maximum(start, latest), 0.0)
    return np.bincount(key, uncovered, keys).astype(np.float64)
