"""Measured runs, written as configurations of the programs that ran them, are imported as the shipped steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.basics.document import parse
from simulator.calibration.training_runs.cut_rows import measured_cut
from simulator.calibration.training_runs.rows import MeasuredRow, step_of
from simulator.importing.importer import import_files
from simulator.importing.machine import Options
from simulator.scenario.build_training import to_step
from simulator.scenario.load import parse_scenario
from simulator.step.framework import load_framework
from simulator.step.learning_spec import LossScaling
from simulator.step.spec import TrainingStep
from simulator.step.training_spec import OptimizerSpec

# Table 1 and 2 of the SC21 paper: Megatron-LM and DeepSpeed's ZeRO-3, from 1.7 to 1,008 billion parameters.
ROWS = measured_cut("megatron_sc21")


def architecture(row: MeasuredRow) -> str:
    """The arguments of Megatron-LM for a row's model, as a script would have them."""
    shape = row.shape
    assert shape is not None
    return f"""
MODEL_ARGS=(
    --num-layers {shape.layers} --hidden-size {shape.hidden}   # table 1
    --num-attention-heads {shape.heads} --vocab-size {shape.vocab}
    --seq-length {row.seq_len} --max-position-embeddings {row.seq_len}
    --attention-dropout 0 --hidden-dropout 0 --attention-backend unfused
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
"""


def megatron_script(row: MeasuredRow) -> str:
    """A script of Megatron-LM that runs a row."""
    cut, shape = row.parallelism, row.shape
    assert shape is not None
    chunk = shape.layers // (cut.pp * cut.virtual_stages)
    interleaved = f"--num-layers-per-virtual-pipeline-stage {chunk}" if cut.virtual_stages > 1 else ""
    parallel = "--sequence-parallel" if cut.sequence_parallel else ""
    return f"""#!/bin/bash
GPUS_PER_NODE=8
NNODES={row.gpus // 8}
TP={cut.tp}
{architecture(row)}
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes "${{NNODES}}" pretrain_gpt.py "${{MODEL_ARGS[@]}}" \\
    --tensor-model-parallel-size ${{TP}} --pipeline-model-parallel-size={cut.pp} {interleaved} {parallel} \\
    --micro-batch-size {row.micro_batch_size} \\
    --global-batch-size {row.micro_batch_size * row.accumulation * row.replicas} --fp16
"""


def deepspeed_files(row: MeasuredRow) -> tuple[str, str]:
    """A script of Megatron-DeepSpeed and its DeepSpeed JSON that run a row."""
    script = f"""{architecture(row)}
deepspeed --num_gpus 8 --num_nodes {row.gpus // 8} pretrain_gpt.py ${{MODEL_ARGS[@]}} --fp16 \\
    --deepspeed_config ds.json --micro-batch-size {row.micro_batch_size}
"""
    settings = {
        "train_batch_size": row.micro_batch_size * row.accumulation * row.gpus,
        "train_micro_batch_size_per_gpu": row.micro_batch_size,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    return script, json.dumps(settings, indent=2)


def imported(folder: Path, row: MeasuredRow) -> TrainingStep:
    if row.framework == "deepspeed_2021":
        script, settings = deepspeed_files(row)
        (folder / "ds.json").write_text(settings, encoding="utf-8")
        files = [str(folder / "train.sh"), str(folder / "ds.json")]
    else:
        script, files = megatron_script(row), [str(folder / "train.sh")]
    (folder / "train.sh").write_text(script, encoding="utf-8")
    # The file cannot tell the machine, nor the year of the program.
    found = import_files(files, Options(topology=row.topology, gpu=row.gpu, framework=row.framework))
    scenario = parse_scenario(parse(found.text), Path())
    assert scenario.cluster.world_size == row.gpus
    assert scenario.training is not None
    return to_step(scenario.training, scenario.cluster.world_size)


def comparable(step: TrainingStep) -> TrainingStep:
    """A step without what changes no time: a model's name, options of a single rank, the rule of the loss scale."""
    cut = step.parallelism
    alone = (cut.replaced(sequence_parallel=False) if cut.tp == 1 else cut).canonical()
    scaling = LossScaling(rule="none" if step.loss_scaling is None else "dynamic")
    # What these keys name is loaded, and compared.
    names = {"model": "", "framework": "", "optimizer": OptimizerSpec()}
    keys = step.keys.replaced(parallelism=alone, loss_scaling=scaling, **names)
    return replace(step, keys=keys, model=replace(step.transformer, name=""))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.framework} {row.name}")
def test_a_measured_run_is_imported_as_the_shipped_step(tmp_path: Path, row: MeasuredRow) -> None:
    found, shipped = imported(tmp_path, row), step_of(row, load_framework(row.framework))
    assert comparable(found) == comparable(shipped)
