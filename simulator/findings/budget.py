"""What does a whole training take: days, GPU hours, cost and energy, from one step's time?

Rule: estimates, and called so: the step is repeated, without failures, checkpoints, evaluation and starts.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.findings.comparison import Comparison, Row
from simulator.scenario.records import Budget

_DAY: Final = 86_400.0


def budgets(compared: Comparison) -> list[dict[str, Any]]:
    """The budget of each point that fits: a dict of point, setting, days, gpu_hours, cost and energy_kwh each."""
    budget = compared.scenario.budget
    if budget is None:
        return []
    return [_of(compared, row, budget) for row in compared.rows if row.fits and row.report]


def _of(compared: Comparison, row: Row, budget: Budget) -> dict[str, Any]:
    report = row.report or {}
    gpus = row.point.cluster.world_size
    seconds = (
        budget.tokens / report["tokens_per_s"]
        if budget.tokens is not None
        else (budget.steps or 0.0) * report["step_time_s"]
    )
    hours = seconds / 3600 * gpus
    return {
        "point": row.index,
        "setting": {**row.setting, **row.condition},
        "days": seconds / _DAY,
        "gpu_hours": hours,
        "cost": None if budget.price is None else hours * budget.price,
        "energy_kwh": None if budget.watts is None else hours * budget.watts / 1000,
    }


def sentence(compared: Comparison, rows: list[dict[str, Any]], point: int) -> str:
    """The budget of one point, said to be an estimate."""
    budget, one = compared.scenario.budget, next((row for row in rows if row["point"] == point), None)
    if budget is None or one is None:
        return ""
    length = f"{budget.tokens:.3g} tokens" if budget.tokens is not None else f"{budget.steps:,.0f} steps"
    parts = [f"{one['days']:.3g} days", f"{one['gpu_hours']:,.0f} GPU hours"]
    parts += [f"{one['cost']:,.0f} at {budget.price:g} a GPU hour"] if one["cost"] is not None else []
    parts += [f"{one['energy_kwh'] / 1000:,.3g} MWh"] if one["energy_kwh"] is not None else []
    row = compared.rows[point]
    return f"{compared.name({**row.setting, **row.condition})} for {length}, estimated: {', '.join(parts)}"
