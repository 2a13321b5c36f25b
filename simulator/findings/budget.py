"""How long does a whole training take, and what does it cost: days, GPU hours, cost and energy, from a step's time?

These are estimates, and called so: the step is repeated, without failures, checkpoints, evaluation and restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from simulator.basics.work_unit import useful_rate, useful_unit, work_unit
from simulator.findings.comparison import Comparison, Row
from simulator.records.measures import interval_width
from simulator.scenario.answer_spec import BudgetSpec

_DAY: Final = 86_400.0
_WORDS: Final = ((" trillion", 1e12), (" billion", 1e9), (" million", 1e6))


def budgets(compared: Comparison) -> list[dict[str, Any]]:
    """Return each fitting point's budget, as dicts with point, setting, days, gpu_hours, cost and energy_kwh."""
    budget = compared.scenario.budget
    if budget is None:
        return []
    return [_budget(compared, row, budget) for row in compared.rows if row.fits and row.report]


def _budget(compared: Comparison, row: Row, budget: BudgetSpec) -> dict[str, Any]:
    """Return a point's budget: point, setting, days, gpu_hours, cost and energy_kwh."""
    labels = {"point": row.index, "setting": {**row.setting, **row.condition}}
    return labels | amounts(row.report or {}, row.point.cluster.world_size, budget)


def amounts(report: Mapping[str, Any], gpus: int, budget: BudgetSpec) -> dict[str, Any]:
    """Return days, gpu_hours, cost and energy_kwh of a whole training, from a step's report, and their uncertainty: for
    80 % of measured steps, the time lies within the prediction divided and multiplied by 1 + `uncertainty`.

    Cost and energy are None without price or power.
    """
    # The length is given in tokens or in steps. Padding is no work on a training's tokens.
    seconds = (
        budget.tokens / useful_rate(report)
        if budget.tokens is not None
        else (budget.steps or 0.0) * report["step_time_s"]
    )
    # Hours of all GPUs together; price and power are per GPU.
    hours = seconds / 3600 * gpus
    return {
        "days": seconds / _DAY,
        "gpu_hours": hours,
        "cost": None if budget.price is None else hours * budget.price,
        "energy_kwh": None if budget.watts is None else hours * budget.watts / 1000,
        "uncertainty": interval_width(report) or 0.0,
    }


def sentence(compared: Comparison, rows: list[dict[str, Any]], point: int) -> str:
    """Return a sentence with the budget of the point with this index, marked as an estimate; "" if unknown."""
    budget, figures = compared.scenario.budget, next((row for row in rows if row["point"] == point), None)
    if budget is None or figures is None:
        return ""
    row = compared.rows[point]
    length = length_text(budget.tokens, row.report or {}) if budget.tokens is not None else _steps(budget, row)
    # A single point has no setting to name.
    name = f" with {compared.name({**row.setting, **row.condition})}" if len(compared.rows) > 1 else ""
    return f"Estimate for {length}{name}: {amounts_text(figures, budget)}"


def amounts_text(figures: Mapping[str, Any], budget: BudgetSpec) -> str:
    """Format the result of `amounts`, with the 80 % range of days and cost: '26.2 days (24.5 to 28), 322,000 GPU hours,
    cost 805,000 (752,000 to 861,000) at 2.5 per GPU hour'.
    """

    def ranged(text: Callable[[float], str], value: float) -> str:
        width = 1 + figures["uncertainty"]
        return f"{text(value)} ({text(value / width)} to {text(value * width)})" if width > 1 else text(value)

    parts = [ranged(_duration, figures["days"]), f"{amount_text(figures['gpu_hours'])} GPU hours"]
    if figures["cost"] is not None:
        parts.append(f"cost {ranged(amount_text, figures['cost'])} at {budget.price:g} per GPU hour")
    parts += [_energy(figures["energy_kwh"])] if figures["energy_kwh"] is not None else []
    return ", ".join(parts)


def _steps(budget: BudgetSpec, row: Row) -> str:
    """Format the budget's number of steps and a point's tokens per step."""
    report = row.report or {}
    # Settings may differ in tokens per step, so steps alone do not say how much is learned.
    work = f"{report['tokens_per_s'] * report['step_time_s']:,.0f} {work_unit([report])}s"
    return f"{budget.steps:,.0f} steps of {work}"


def length_text(number: float, report: Mapping[str, Any]) -> str:
    """Format the length of a training in the unit of a report's model, with a word.

    >>> length_text(15e12, {}), length_text(250.0, {})
    ('15 trillion tokens', '250 tokens')
    """
    word, unit = next(((w, u) for w, u in _WORDS if number >= u), ("", 1.0))
    return f"{amount_text(number / unit)}{word} {useful_unit([report])}s"


def _duration(days: float) -> str:
    """Format a duration in days, or in hours below a day."""
    return f"{amount_text(days)} days" if days >= 1 else f"{amount_text(24 * days)} hours"


def _energy(kwh: float) -> str:
    """Format an energy in MWh, or in kWh below 1 MWh."""
    return f"{amount_text(kwh / 1000)} MWh" if kwh >= 1000 else f"{amount_text(kwh)} kWh"


def amount_text(value: float) -> str:
    """Format a number: three digits below a hundred, whole numbers above.

    >>> amount_text(1.344), amount_text(27270.4)
    ('1.34', '27,270')
    """
    return f"{value:,.0f}" if value >= 100 else f"{float(f'{value:.3g}'):g}"
