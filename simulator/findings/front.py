"""Which settings are on the front of time and memory: no other that fits is both faster and smaller?"""

from __future__ import annotations

from typing import Any

from simulator.findings.comparison import Comparison


def front(compared: Comparison) -> list[dict[str, Any]]:
    """Points of the front, fastest first: a dict of point, setting, time a token [s] and peak memory [B] each.

    Only steps have one; it is empty for collectives, and where fewer than two points fit.
    """
    rows = [row for row in compared.rows if row.fits and row.report and "tokens_per_s" in row.report]
    if len(rows) < 2:
        return []
    known = sorted(
        (1 / row.report["tokens_per_s"], row.report["peak_memory_bytes"], row.index)  # type: ignore[index]
        for row in rows
    )
    kept: list[dict[str, Any]] = []
    for time, nbytes, index in known:
        if not kept or nbytes < kept[-1]["peak_memory_bytes"]:
            row = compared.rows[index]
            kept.append(
                {
                    "point": index, "setting": {**row.setting, **row.condition}, "time_per_token_s": time,
                    "peak_memory_bytes": nbytes,
                }
            )  # fmt: skip
    return kept
