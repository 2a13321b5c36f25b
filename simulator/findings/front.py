"""Which settings are on the front of time and memory: no other that fits is both faster and smaller?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator.findings.comparison import Comparison


def front(compared: Comparison) -> list[dict[str, Any]]:
    """Points of the front, fastest first: a dict of point, setting, time a token [s] and peak memory [B] each.

    Only steps have one; it is empty for collectives, and where fewer than two points fit.
    """
    rows = [row for row in compared.rows if row.fits and row.report and "tokens_per_s" in row.report]
    if len(rows) < 2:
        return []
    known = [
        (1 / row.report["tokens_per_s"], row.report["peak_memory_bytes"], row.index)  # type: ignore[index]
        for row in rows
    ]
    return [
        {
            "point": index,
            "setting": {**compared.rows[index].setting, **compared.rows[index].condition},
            "time_per_token_s": time,
            "peak_memory_bytes": nbytes,
        }
        for time, nbytes, index in on_front(known)
    ]


def on_front(known: Iterable[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Of (time, memory, number) those that no other one is both faster and smaller than, fastest first.

    Examples
    --------
    >>> on_front([(3.0, 5, 0), (1.0, 9, 1), (2.0, 9, 2)])
    [(1.0, 9, 1), (3.0, 5, 0)]
    """
    kept: list[tuple[float, int, int]] = []
    for one in sorted(known):
        if not kept or one[1] < kept[-1][1]:
            kept.append(one)
    return kept
