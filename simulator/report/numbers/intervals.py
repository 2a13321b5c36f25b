"""Lengths of unions of time intervals.

Rule: pairs (start, end) in, seconds out.
"""

from __future__ import annotations

from collections.abc import Iterable

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
