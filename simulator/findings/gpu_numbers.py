"""How do several numbers of GPUs compare, each with its fastest setting? In a sentence, and as a table.

A row per number of GPUs, as plain data: gpus, setting, step_time_s, tokens_per_s_per_gpu, work_unit, meets (the
deadline; None without a deadline) and, if the training's length is known, its `budget.amounts`. Without a setting that
fits, setting is None and missing says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.basics.counts import number_of
from simulator.basics.units import format_time
from simulator.basics.work_unit import rate_name, work_unit
from simulator.findings.budget import amount_text
from simulator.findings.text import clause


def sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the fewest GPUs that meet the deadline; without one, on the fastest and cheapest number.

    >>> sentence([{"gpus": 8, "meets": False}, {"gpus": 16, "meets": True}, {"gpus": 32, "meets": True}])
    'The deadline needs at least 16 GPUs (tested: 8, 16, 32).'
    """
    rows = sorted(rows, key=lambda row: row["gpus"])
    numbers = ", ".join(f"{row['gpus']:,}" for row in rows)
    if any(row["meets"] is not None for row in rows):
        enough = next((row["gpus"] for row in rows if row["meets"]), None)
        if enough is None:
            return f"No tested number of GPUs meets the deadline (tested: {numbers})."
        return f"The deadline needs at least {number_of(enough, 'GPU')} (tested: {numbers})."
    fitting = [row for row in rows if row["setting"] is not None]
    if not fitting:
        return f"No setting fits in memory with {numbers} GPUs."
    fastest = min(fitting, key=lambda row: row["step_time_s"])
    # GPU hours per token are the inverse of tokens/s per GPU, so the most tokens/s per GPU is the cheapest.
    cheapest = max(fitting, key=lambda row: row["tokens_per_s_per_gpu"])
    text = clause(number_of(fastest["gpus"], "GPU"), f"is fastest with {format_time(fastest['step_time_s'])} per step")
    if cheapest is fastest:
        return f"{text} and the fewest GPU hours (tested: {numbers})."
    fewer = 1 - fastest["tokens_per_s_per_gpu"] / cheapest["tokens_per_s_per_gpu"]
    less = clause(number_of(cheapest["gpus"], "GPU"), f"needs {100 * fewer:.1f} % fewer GPU hours")
    return f"{text}; {less} (tested: {numbers})."


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a table of numbers of GPUs, fewest first; the last column is text."""
    lengths, deadlines = any("days" in row for row in rows), any(row["meets"] is not None for row in rows)
    rate = rate_name(work_unit(row for row in rows if row["setting"] is not None))
    heads = ["GPUs", "step", f"{rate}/GPU", *(["days", "GPU hours", "cost"] if lengths else [])]
    heads += ["deadline"] if deadlines else []
    cells = [_cells(row, lengths=lengths, deadlines=deadlines) for row in sorted(rows, key=lambda row: row["gpus"])]
    # A number without a setting has only its number and the reason: fill the columns in between.
    padded = [[*texts, *[""] * (len(heads) - len(texts)), last] for *texts, last in cells]
    return [*heads, "fastest setting"], padded


def _cells(row: Mapping[str, Any], *, lengths: bool, deadlines: bool) -> list[str]:
    """Return a table row's cells for a number of GPUs: time, speed, budget, deadline, and the fastest setting."""
    if row["setting"] is None:
        return [f"{row['gpus']:,}", row["missing"]]
    cells = [f"{row['gpus']:,}", format_time(row["step_time_s"]), f"{row['tokens_per_s_per_gpu']:,.0f}"]
    if lengths:
        cells += ["" if row[name] is None else amount_text(row[name]) for name in ("days", "gpu_hours", "cost")]
    cells += [("met" if row["meets"] else "missed")] if deadlines else []
    return [*cells, row["setting"]]
