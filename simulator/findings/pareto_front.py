"""Which settings lie on the Pareto front for time and memory?

A point lies on the front if no other fitting point is at least as good in both measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import le
from typing import Any, TypeVar

from simulator.basics.work_unit import useful_rate
from simulator.findings.comparison import Comparison

T = TypeVar("T")


def pareto_front(compared: Comparison) -> list[dict[str, Any]]:
    """Return the Pareto front, fastest first, as dicts of point, setting, time per token [s] and peak memory [B].

    Only training steps have a front. It is empty if fewer than two points fit.
    """
    rows = [row for row in compared.rows if row.fits and row.report and "tokens_per_s" in row.report]
    if len(rows) < 2:
        return []
    points = [
        {
            "point": row.index,
            "setting": {**row.setting, **row.condition},
            "time_per_token_s": 1 / useful_rate(row.report or {}),
            "peak_memory_bytes": row.report["peak_memory_bytes"],  # type: ignore[index]
        }
        for row in rows
    ]
    return on_front(points, lambda point: (point["time_per_token_s"], point["peak_memory_bytes"]))


def on_front(candidates: Iterable[T], measures: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Return the Pareto front: items that no other item matches or beats in every measure, by the first measure.

    Ties in every measure go to the first item.

    >>> on_front([(3.0, 5), (1.0, 9), (2.0, 9)], lambda point: point)
    [(1.0, 9), (3.0, 5)]
    """
    front: list[T] = []
    for candidate in sorted(candidates, key=measures):
        # Sorted by measures, so an item can only be beaten by an item already on the front.
        if not any(all(map(le, measures(other), measures(candidate))) for other in front):
            front.append(candidate)
    return front
