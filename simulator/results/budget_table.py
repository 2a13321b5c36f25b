"""What does the whole training cost with each setting? A table of days, GPU hours, cost and energy for the terminal."""

from __future__ import annotations

from typing import Final

from simulator.findings.answer import Answer
from simulator.findings.budget import amount_text
from simulator.findings.comparison import Comparison
from simulator.results.small_table import SmallTable

# Heading, and key of a budget.
_COLUMNS: Final = (("days", "days"), ("GPU hours", "gpu_hours"), ("cost", "cost"), ("energy (kWh)", "energy_kwh"))


def budget_table(compared: Comparison, answer: Answer) -> SmallTable | None:
    """Return a table with the estimate for the whole training with each setting that fits; None for a single setting,
    whose estimate is a sentence.
    """
    if len(answer.budget) < 2:
        return None
    # Cost and energy are unknown without a price or a power.
    columns = [column for column in _COLUMNS if answer.budget[0][column[1]] is not None]
    return SmallTable(
        title="estimate for the whole training",
        corner="",
        columns=tuple(heading for heading, _ in columns),
        rows=tuple(
            (compared.name(row["setting"]), tuple(amount_text(row[key]) for _, key in columns)) for row in answer.budget
        ),
        points=tuple((row["point"],) * len(columns) for row in answer.budget),
    )
