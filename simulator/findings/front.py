"""Which settings are on the front of time and memory: no other that fits is both faster and smaller?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import le
from typing import Any, TypeVar

from simulator.findings.comparison import Comparison

T = TypeVar("T")


def front(compared: Comparison) -> list[dict[str, Any]]:
    """Points of the front, fastest first: a dict of point, setting, time a token [s] and peak memory [B] each.

    Only steps have one; it is empty for collectives, and where fewer than two points fit.
    """
    rows = [row for row in compared.rows if row.fits and row.report and "tokens_per_s" in row.report]
    if len(rows) < 2:
        return []
    known = [
        {
            "point": row.index,
            "setting": {**row.setting, **row.condition},
            "time_per_token_s": 1 / row.report["tokens_per_s"],  # type: ignore[index]
            "peak_memory_bytes": row.report["peak_memory_bytes"],  # type: ignore[index]
        }
        for row in rows
    ]
    return on_front(known, lambda one: (one["time_per_token_s"], one["peak_memory_bytes"]))


def on_front(known: Iterable[T], measures: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Those than which no other one is as good by every measure, least of the first one first.

    Of several with equal measures the first is told.

    Examples
    --------
    >>> on_front([(3.0, 5), (1.0, 9), (2.0, 9)], lambda one: one)
    [(1.0, 9), (3.0, 5)]
    """
    kept: list[T] = []
    for one in sorted(known, key=measures):
        # Those before it are as good by the first measure.
        if not any(all(map(le, measures(other), measures(one))) for other in kept):
            kept.append(one)
    return kept
