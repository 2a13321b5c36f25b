"""Which runs with partitioned models were measured, and which measured runs exist altogether?

Same form as rows.py: facts as printed by the source. The head of catalog/measured/training_cut.csv explains columns
and sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from simulator.basics.measured_tables import read_table
from simulator.calibration.training_runs.fine_tuning_rows import measured_fine_tuning
from simulator.calibration.training_runs.recipe_rows import measured_recipes
from simulator.calibration.training_runs.rows import (
    IMPLEMENTATIONS,
    PRINTED_MEMORY,
    MeasuredRow,
    ModelShape,
    gib,
    measured,
    of_source,
)
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision, Scaling


def measured_cut(source: str | None = None) -> tuple[MeasuredRow, ...]:
    """Return the measured runs with models partitioned over ranks, from every source or a single source.

    Raises
    ------
    UnknownNameError
        Unknown source.

    Examples
    --------
    >>> len(measured_cut("dgxc"))
    32
    """
    rows = [_row(row, number) for number, row in enumerate(read_table("training_cut.csv"), 1)]
    return of_source(rows, source, "--source")


def all_measured(source: str | None = None, every: int = 1) -> tuple[MeasuredRow, ...]:
    """Return every k-th measured run from every source or a single source; k is `every`.

    Raises
    ------
    UnknownNameError
        Unknown source.
    """
    rows = (*measured(), *measured_cut(), *measured_fine_tuning(), *measured_recipes())
    return of_source(rows, source, "--source")[::every]


def _row(row: Mapping[str, str], number: int) -> MeasuredRow:
    parallelism = _parallelism(row)
    # The table holds step times; MeasuredRow stores tokens per second.
    tokens = int(row["seq_len"]) * int(row["global_batch"])
    strategy, _, ranks = row["sharding"].partition("/")
    return MeasuredRow(
        table=row["table"],
        line=number,
        framework=row["framework"],
        model=f"{row['family']}_{row['layers']}x{row['hidden']}",
        shape=ModelShape(
            family=row["family"],
            tied=row["tied"] == "true",
            **cast(Any, {size: int(row[size]) for size in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}),
        ),
        gpu=row["gpu"],
        topology=row["topology"],
        seq_len=int(row["seq_len"]),
        gpus=int(row["gpus"]),
        parallelism=parallelism,
        micro_batch_size=int(row["micro_batch_size"]),
        accumulation=int(row["accumulation"]),
        precision=Precision(
            params=row["params"],
            grads=row["grads"],
            reduce=row["reduce"],
            master="float32",
            matmul=row["matmul"],
            scaling=cast(Scaling, row["scaling"] or "tensor"),
        ),
        sharding=strategy,
        shard_size=int(ranks) if ranks else None,
        reshard=True,
        buckets=row["buckets"] == "true",
        checkpointing=row["checkpointing"],
        compiled=row["compiled"] == "true",
        optimizer_implementation=IMPLEMENTATIONS[row["optimizer"]],
        attention=row["attention"],
        fused_loss=row["fused_loss"] == "true",
        tokens_per_s=tokens / float(row["step_time_s"]),
        peak=gib(row["peak_gib"]),
        memory=PRINTED_MEMORY.get(row["table"], "allocated"),
        timed=row["how"] == "timed",
        # llmq's moments are bfloat16, its logits exist in chunks, and its flags put states and residuals on the host.
        memory_simulated=row["table"] != "llmq",
        assumed=tuple(row["assumed"].split()),
        source=row["source"],
    )


def _parallelism(row: Mapping[str, str]) -> Parallelism:
    return Parallelism(
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        cp=int(row["cp"]),
        context="ulysses" if row["context"] == "ulysses" else "ring",
        sequence_parallel=row["sequence_parallel"] == "true",
        tp_overlap=cast(Any, row["tp_overlap"]),
        schedule=row["schedule"] or "1f1b",
        virtual_stages=int(row["virtual_stages"]),
        stages=tuple(int(layers) for layers in row["stages"].split()) or "auto",
        ep=int(row["ep"]),
    )
