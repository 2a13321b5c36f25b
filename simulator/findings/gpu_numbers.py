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
    """Return a sentence on the fewest GPUs that meet the deadline.

    Without a deadline, on the fastest and cheapest number.
    """
    rows = sorted(rows, key=lambda one: one["gpus"])
    numbers = ", ".join(f"{one['gpus']:,}" for one in rows)
    if any(one["meets"] is not None for one in rows):
        enough = next((one["gpus"] for one in rows if one["meets"]), None)
        if enough is None:
            return f"No tested number of GPUs meets the deadline (tested: {numbers})."
        return f"The deadline needs at least {number_of(enough, 'GPU')} (tested: {numbers})."
    found = [one for one in rows if one["setting"] is not None]
    if not found:
        return f"No setting fits in memory with {numbers} GPUs."
    fastest = min(found, key=lambda one: one["step_time_s"])
    # GPU hours per token are the inverse of tokens/s per GPU, so the most tokens/s per GPU is the cheapest.
    cheapest = max(found, key=lambda one: one["tokens_per_s_per_gpu"])
    told = clause(number_of(fastest["gpus"], "GPU"), f"is fastest with {format_time(fastest['step_time_s'])} per step")
    if cheapest is fastest:
        return f"{told} and the fewest GPU hours (tested: {numbers})."
    fewer = 1 - fastest["tokens_per_s_per_gpu"] / cheapest["tokens_per_s_per_gpu"]
    less = clause(number_of(cheapest["gpus"], "GPU"), f"needs {100 * fewer:.1f} % fewer GPU hours")
    return f"{told}; {less} (tested: {numbers})."


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a table of numbers of GPUs, fewest first; the last column is text."""
    lengths, deadlines = any("days" in one for one in rows), any(one["meets"] is not None for one in rows)
    rate = rate_name(work_unit(one for one in rows if one["setting"] is not None))
    heads = ["GPUs", "step", f"{rate}/GPU", *(["days", "GPU hours", "cost"] if lengths else [])]
    heads += ["deadline"] if deadlines else []
    cells = [_cells(one, lengths=lengths, deadlines=deadlines) for one in sorted(rows, key=lambda one: one["gpus"])]
    # A number without a setting has only its number and the reason: fill the columns in between.
    padded = [[*own, *[""] * (len(heads) - len(own)), last] for *own, last in cells]
    return [*heads, "fastest setting"], padded


def _cells(one: Mapping[str, Any], *, lengths: bool, deadlines: bool) -> list[str]:
    """Return a table row's cells for a number of GPUs: time, speed, budget, deadline, and the fastest setting."""
    if one["setting"] is None:
        return [f"{one['gpus']:,}", one["missing"]]
    cells = [f"{one['gpus']:,}", format_time(one["step_time_s"]), f"{one['tokens_per_s_per_gpu']:,.0f}"]
    if lengths:
        cells += ["" if one[name] is None else amount_text(one[name]) for name in ("days", "gpu_hours", "cost")]
    cells += [("met" if one["meets"] else "missed")] if deadlines else []
    return [*cells, one["setting"]]
