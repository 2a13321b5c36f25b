"""How long was at least one interval in a set active: lengths of unions, for pairs and for arrays.

The module does not know what an interval belongs to (a kernel, a flow on a link).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simulator.basics.arrays import Floats, Ints

# Intervals (start, end): an array, shape (n, 2), or pairs.
Intervals = Floats | Iterable[tuple[float, float]]


def union(intervals: Intervals) -> Floats:
    """Return the intervals (start, end) in order, with overlapping and touching intervals merged, shape (n, 2).

    >>> union([(2, 3), (0, 1), (0.5, 1.5)]).tolist()
    [[0.0, 1.5], [2.0, 3.0]]
    """
    pairs = as_array(intervals)
    ordered = pairs[np.argsort(pairs[:, 0], kind="stable")]
    start, covered_to = ordered[:, 0], np.maximum.accumulate(ordered[:, 1])
    # An interval begins a merged interval if every earlier interval ends before its start.
    begins = np.flatnonzero(np.append(True, start[1:] > covered_to[:-1])[: len(start)])
    ends = np.append(begins[1:], len(start))[: len(begins)] - 1
    return np.column_stack([start[begins], covered_to[ends]])


def as_array(intervals: Intervals) -> Floats:
    """Return intervals (start, end) as an array, shape (n, 2)."""
    if isinstance(intervals, np.ndarray):
        return intervals
    return np.array(list(intervals), np.float64).reshape(-1, 2)


def length(intervals: Intervals) -> float:
    """Return the length covered by at least one interval (start, end).

    >>> length([(0, 2), (1, 3)])
    3.0
    """
    merged = union(intervals)
    # Added from left to right: numpy's pairwise sums would round differently, and change the reports' last digits.
    return float(sum((merged[:, 1] - merged[:, 0]).tolist()))


def outside(intervals: Intervals, others: Intervals) -> float:
    """Return the length covered by at least one first interval and by no second interval (`others`).

    >>> outside([(0, 2)], [(1, 3)])
    1.0
    """
    others = union(others)
    # |A without B| = |A or B| - |B|
    return length(np.concatenate([as_array(intervals), others])) - length(others)


def lengths_by_key(key: Ints, start: Floats, end: Floats, keys: int) -> Floats:
    """Return, for each key, the length covered by at least one interval; for millions of intervals at once.

    Parameters
    ----------
    key : int array, shape (t,)
        Union to which each interval belongs, 0 <= key < keys.
    start, end : float array, shape (t,)
        Start and end of each interval [s].
    keys : int
        Number of unions.

    Returns
    -------
    float array, shape (keys,)
        Lengths [s]; 0 for a key without intervals.

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
    """Return each interval's length that no earlier interval in the group covers, shape (n,).

    The sum over a group is the length of the group's union.

    Parameters
    ----------
    start, end : float array, shape (n,)
        Sorted by group, then by start.
    group : int array, shape (n,)
        Number of each interval's group, from 0.

    Examples
    --------
    >>> added(np.array([0.0, 1.0, 5.0]), np.array([4.0, 3.0, 6.0]), np.array([0, 0, 0])).tolist()
    [4.0, 0.0, 1.0]
    """
    # An interval adds the time after the latest previous end in the group.
    covered_to = np.full(len(end), -np.inf)
    same = group[1:] == group[:-1]
    covered_to[1:][same] = largest_so_far(end, group)[:-1][same]
    fresh: Floats = np.maximum(end - np.maximum(start, covered_to), 0.0)
    return fresh


def largest_so_far(values: Floats, group: Ints) -> Floats:
    """Return, for each entry, the largest value so far in its group, shape (n,); group numbers must be rising.

    A running maximum must start again at each group. Therefore values are replaced by their ranks, and the ranks in a
    group are raised above the ranks of the group before. Ranks are whole numbers, so nothing is rounded.

    >>> largest_so_far(np.array([3.0, 1.0, 2.0, 5.0]), np.array([0, 0, 1, 1])).tolist()
    [3.0, 3.0, 2.0, 5.0]
    """
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    # Ranks are in 0 .. n - 1: adding group x n separates the groups.
    highest = np.maximum.accumulate(group * len(values) + rank) - group * len(values)
    return values[order][highest]
