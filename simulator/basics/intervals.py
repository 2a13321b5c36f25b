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
    key = key[order]
    return np.bincount(key, added(start[order], end[order], key), keys).astype(np.float64)


def added(start: Floats, end: Floats, group: Ints) -> Floats:
    """How much of each interval no earlier one of its group covers, so that a group's sum is the length of its union.

    Parameters
    ----------
    start, end : float array, shape (n,)
        Sorted by group, then by start.
    group : int array, shape (n,)
        From 0; the intervals of which union each belongs to.

    Examples
    --------
    >>> added(np.array([0.0, 1.0, 5.0]), np.array([4.0, 3.0, 6.0]), np.array([0, 0, 0])).tolist()
    [4.0, 0.0, 1.0]
    """
    covered_to = np.full(len(end), -np.inf)
    same = group[1:] == group[:-1]
    covered_to[1:][same] = largest_so_far(end, group)[:-1][same]
    fresh: Floats = np.maximum(end - np.maximum(start, covered_to), 0.0)
    return fresh


def largest_so_far(values: Floats, group: Ints) -> Floats:
    """The largest value of the same group up to each place, for groups that rise.

    A running maximum must start afresh at each group. Values are replaced by their ranks, and the ranks of each group
    are lifted above those of the group before: whole numbers, so nothing is rounded.
    """
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    highest = np.maximum.accumulate(group * len(values) + rank) - group * len(values)
    return values[order][highest]
