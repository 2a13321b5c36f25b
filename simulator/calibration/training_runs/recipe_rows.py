"""Which measured runs have the settings of a scenario? Steps of published recipes, and runs of users' own scenarios.

The head of catalog/measured/recipes.csv explains the recipes' sources and what they leave open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from simulator.basics.measured_tables import read_table
from simulator.calibration.training_runs.rows import MeasuredRow
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.step.training_spec import TrainingSpec


@cache
def measured_recipes() -> tuple[MeasuredRow, ...]:
    """Return the measured steps of published recipes.

    >>> {row.table for row in measured_recipes()}
    {'bridge'}
    """
    return tuple(_row(row, number) for number, row in enumerate(read_table("recipes.csv"), 1))


def tokens_of_step(scenario: Scenario, spec: TrainingSpec) -> int:
    """Return the number of tokens in a step of a scenario with the training `spec`."""
    step = to_step(spec, scenario.cluster.world_size, scenario.base)
    replicas = scenario.cluster.world_size // step.parallelism.size
    return step.keys.seq_len * step.keys.micro_batch_size * step.accumulation * replicas


def scenario_row(
    scenario: Scenario,
    spec: TrainingSpec,
    *,
    table: str,
    line: int,
    source: str,
    tokens_per_s: float,
    peak: float | None = None,
) -> MeasuredRow:
    """Return the measured run with the settings of a scenario with the training `spec`."""
    cluster = scenario.cluster
    step = to_step(spec, cluster.world_size, scenario.base)
    return MeasuredRow(
        table=table,
        line=line,
        source=source,
        tokens_per_s=tokens_per_s,
        peak=peak,
        framework=str(spec.framework),
        model=scenario.name,
        gpu=cluster.gpu if isinstance(cluster.gpu, str) else "",
        topology=cluster.topology if isinstance(cluster.topology, str) else "",
        seq_len=step.keys.seq_len,
        gpus=cluster.world_size,
        micro_batch_size=step.keys.micro_batch_size,
        accumulation=step.accumulation,
        precision=step.precision,
        sharding=step.sharding.strategy,
        reshard=step.sharding.reshard_after_forward is not False,
        checkpointing="none",
        compiled=step.keys.compile,
        parallelism=step.parallelism,
        spec=spec,
        scenario=scenario,
    )


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
