"""Which fine-tuning runs were measured: full, and with adapters on a frozen model, quantised or not?

Facts as printed by the source. The head of catalog/measured/fine_tuning.csv explains columns and sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.basics.measured_tables import read_table
from simulator.calibration.training_runs.rows import MeasuredRow, gib
from simulator.step.precision import Precision
from simulator.step.training_spec import TrainingSpec


def measured_fine_tuning() -> tuple[MeasuredRow, ...]:
    """Return the measured fine-tuning runs that gave a result.

    >>> len(measured_fine_tuning())
    151
    """
    rows = enumerate(read_table("fine_tuning.csv"), 1)
    return tuple(_row(row, number, float(row["tokens_per_s"])) for number, row in rows if row["tokens_per_s"])


def failed_fine_tuning() -> tuple[MeasuredRow, ...]:
    """Return the fine-tuning runs without a result, presumably for want of memory; their `tokens_per_s` is not a
    number.
    """
    rows = enumerate(read_table("fine_tuning.csv"), 1)
    return tuple(_row(row, number, float("nan")) for number, row in rows if not row["tokens_per_s"])


def _row(row: Mapping[str, str], number: int, tokens_per_s: float) -> MeasuredRow:
    spec = _spec(row)
    return MeasuredRow(
        table=row["table"],
        line=number,
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        topology=row["topology"],
        seq_len=int(row["seq_len"]),
        gpus=int(row["gpus"]),
        micro_batch_size=int(row["micro_batch_size"]),
        accumulation=1,
        precision=Precision(
            params=row["dtype"],
            grads=row["master"] or row["dtype"],
            reduce=row["dtype"],
            master="float32",
            matmul=row["dtype"],
        ),
        sharding=row["sharding"],
        reshard=True,
        checkpointing=row["checkpointing"],
        compiled=row["compiled"] == "true",
        tokens_per_s=tokens_per_s,
        peak=gib(row["peak_gib"]),
        memory_simulated=row["memory_simulated"] == "true",
        spec=spec,
        source=f"{row['source']}, {row['configuration']}",
    )


def _spec(row: Mapping[str, str]) -> TrainingSpec:
    """Return the training keys of a measured run."""
    dtype = row["dtype"]
    keys: dict[str, Any] = {
        "model": row["model"],
        "seq_len": int(row["seq_len"]),
        "micro_batch_size": int(row["micro_batch_size"]),
        "framework": row["framework"],
        "sharding": row["sharding"],
        "activation_checkpointing": row["checkpointing"],
        "compile": row["compiled"] == "true",
        "optimizer": row["optimizer"],
        "precision": {
            "params": dtype, "grads": row["master"] or dtype, "reduce": dtype, "master": row["master"] or None,
        },
    }  # fmt: skip
    if row["loss"]:
        keys["loss"] = row["loss"]
    if row["shift"]:
        keys["logit_shift"] = row["shift"]
    # Lora compute in their base's dtype where autocast is on, and Accelerate then returns float32.
    keys["float32_outputs"] = row["table"] == "fms" and row["adapter_dtype"] == "bfloat16"
    keys["use_cache"] = row["cached"] == "true"
    keys["dropout"] = row["dropout"] == "true"
    if row["base"]:
        keys["lora"] = {
            "rank": int(row["rank"]), "base": row["base"],
            # A word for a group, or names of matrices.
            "targets": row["targets"].split() if " " in row["targets"] else row["targets"],
            "dtype": row["adapter_dtype"], "hidden": row["hidden"] or "params",
            "dropout": 0.1 if row["table"] == "fms" else False,
        }  # fmt: skip
        keys["precision"]["grads"] = "auto"
    return TrainingSpec.model_validate(keys)
