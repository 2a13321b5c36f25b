"""Which steps of published recipes were measured? A row has the keys of a scenario.

The head of catalog/measured/recipes.csv explains sources and what they leave open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from simulator.basics.measured_tables import read_table
from simulator.calibration.training_runs.rows import MeasuredRow, scenario_row, tokens_of_step
from simulator.scenario.load import load_scenario


@cache
def measured_recipes() -> tuple[MeasuredRow, ...]:
    """Return the measured steps of published recipes.

    >>> {row.table for row in measured_recipes()}
    {'bridge'}
    """
    return tuple(_row(row, number) for number, row in enumerate(read_table("recipes.csv"), 1))


def _row(row: Mapping[str, str], number: int) -> MeasuredRow:
    keys = _nested({name: text for name, text in row.items() if "." in name and text})
    keys["name"] = f"{keys['training']['model']}_{row['release']}"
    scenario = load_scenario(keys)
    if scenario.training is None:
        raise ValueError(f"recipes.csv, row {number}: no training")
    rate = tokens_of_step(scenario, scenario.training) / float(row["step_time_s"])
    return scenario_row(
        scenario, scenario.training, table=row["table"], line=number, source=row["source"], tokens_per_s=rate
    )


def _nested(cells: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping with the keys in dotted names, and the cells' JSON, or their words, as values.

    >>> _nested({"cluster.gpu": "b200", "training.parallelism.tp": "2"})
    {'cluster': {'gpu': 'b200'}, 'training': {'parallelism': {'tp': 2}}}
    """
    keys: dict[str, Any] = {}
    for name, text in cells.items():
        *above, last = name.split(".")
        inner = keys
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = text if text[0].isalpha() and text not in ("true", "false") else json.loads(text)
    return keys
