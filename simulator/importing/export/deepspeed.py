"""How is a training step written as a DeepSpeed JSON?

The inverse of `importing/formats/deepspeed.py`. The model, and parallelism other than data parallelism, belong to the
program that calls DeepSpeed.
"""

from __future__ import annotations

import json
from typing import Any, Final

from simulator.basics import dtypes
from simulator.step.spec import State, TrainingStep
from simulator.step.strategies.strategy import STRATEGIES

_OPTIMIZERS: Final = {"adam": "AdamW", "momentum": "SGD", "lion": "Lion", "muon": "Muon"}
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# Larger than the gradients of any rank [B]: gradients travel at once, after the backward pass.
_ONE_BUCKET: Final = 2**50


def settings(step: TrainingStep, world_size: int) -> str:
    """Return the JSON of a training step on a number of GPUs."""
    copies = world_size // step.parallelism.size
    precision = step.precision
    data: dict[str, Any] = {
        "train_batch_size": step.keys.micro_batch_size * step.accumulation * copies,
        "train_micro_batch_size_per_gpu": step.keys.micro_batch_size,
        "gradient_accumulation_steps": step.accumulation,
        "bf16": {"enabled": precision.params == "bfloat16"},
        "fp16": {"enabled": precision.params == "float16"},
        "data_types": {"grad_accum_dtype": _DTYPES.get(precision.grads, "fp32")},
        "communication_data_type": _DTYPES.get(precision.reduce, "fp32"),
        "optimizer": {"type": _OPTIMIZERS.get(step.optimizer.name, "AdamW")},
        "zero_optimization": _zero(step),
    }
    if step.keys.clip_norm is not None:
        data["gradient_clipping"] = step.keys.clip_norm
    if step.keys.compile:
        data["compile"] = {"enabled": True}
    return json.dumps(data, indent=2) + "\n"


def _zero(step: TrainingStep) -> dict[str, Any]:
    sharding = step.sharding
    # A stage shards one more kind of state than the stage before.
    shards = STRATEGIES.find(sharding.strategy).shards
    zero: dict[str, Any] = {"stage": len(shards)}
    if sharding.shard_size is not None:
        zero["mics_shard_size"] = sharding.shard_size
    if State.PARAMETERS in shards:
        zero |= {"stage3_param_persistence_threshold": sharding.keep_below, "overlap_comm": True}
        if sharding.prefetch == 0:
            zero["stage3_prefetch_bucket_size"] = 0
        if sharding.mesh is not None:
            zero["zero_hpz_partition_size"] = sharding.mesh
    elif shards:
        zero["overlap_comm"] = sharding.bucket_size < _ONE_BUCKET
        if sharding.bucket_size < _ONE_BUCKET:
            zero["reduce_bucket_size"] = sharding.bucket_size // dtypes.find(step.precision.reduce).itemsize
    if step.keys.offload.states:
        fraction = step.keys.offload.fraction
        # Other stages ignore the ratio.
        ratio = {"ratio": fraction} if fraction < 1 and State.PARAMETERS in shards else {}
        zero["offload_optimizer"] = {"device": "cpu"} | ratio
    return zero
