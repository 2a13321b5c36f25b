"""DeepSpeed: the JSON file of deepspeed.initialize, also beside another program's configuration.

Values "auto" count as not given, because the other program fills them in.
"""

from __future__ import annotations

from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.machine import copies_of
from simulator.importing.rules import (
    Means,
    NotModelled,
    Reader,
    Table,
    choice,
    constant,
    flag,
    number,
    size,
    unless_auto,
    whole,
)
from simulator.importing.zero_stage import STAGE, STAGES, derive_strategy

_PRECISION: Final = "training.precision"
_SHARDING: Final = "training.sharding"
_ZERO: Final = "zero_optimization"
# Elements, as in deepspeed/runtime/zero/config.py.
_BUCKET: Final = 500_000_000
_KEPT: Final = 100_000
_GROUP: Final = 1_000_000_000
_DTYPES: Final = choice({"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "bfp16": "bfloat16"})
_OPTIMIZERS: Final = choice(
    {"adam": "adam", "adamw": "adam", "fusedadam": "adam", "sgd": "momentum", "lion": "lion", "muon": "muon"}
)
_ELSEWHERE: Final = "the parameters stay on the GPU"


def _auto(fact: str, read: Reader) -> Means:
    return Means(fact, unless_auto(read))


_DEVICES: Final = choice({"cpu": "optimizer", "none": None, "nvme": "nvme"})

_TABLE: Final[Table] = {
    "train_batch_size": _auto("sequences", size),
    "train_micro_batch_size_per_gpu": _auto("training.micro_batch_size", size),
    "gradient_accumulation_steps": _auto("training.gradient_accumulation_steps", size),
    "gradient_clipping": _auto("training.clip_norm", lambda value: number(value) or None),
    "bf16.enabled": _auto("deepspeed.bf16", flag),
    "bfloat16.enabled": _auto("deepspeed.bf16", flag),
    "fp16.enabled": _auto("deepspeed.fp16", flag),
    "fp16.loss_scale": _auto("loss_scale", number),
    "bf16.immediate_grad_update": NotModelled("gradients are added after the backward pass of a layer"),
    "data_types.grad_accum_dtype": _auto(f"{_PRECISION}.grads", _DTYPES),
    "communication_data_type": _auto(f"{_PRECISION}.reduce", _DTYPES),
    f"{_ZERO}.stage": _auto(STAGE, STAGES),
    f"{_ZERO}.overlap_comm": _auto("overlap_comm", flag),
    f"{_ZERO}.reduce_bucket_size": _auto("bucket", whole),
    f"{_ZERO}.stage3_prefetch_bucket_size": _auto("prefetch", whole),
    f"{_ZERO}.stage3_param_persistence_threshold": _auto("kept", whole),
    f"{_ZERO}.mics_shard_size": _auto(f"{_SHARDING}.shard_size", lambda value: None if value in (-1, "-1") else
                                      size(value)),
    f"{_ZERO}.zero_hpz_partition_size": _auto("secondary", size),
    f"{_ZERO}.zero_quantized_weights": NotModelled("parameters travel in 16 bits"),
    f"{_ZERO}.zero_quantized_gradients": NotModelled("gradients travel in their own dtype"),
    f"{_ZERO}.offload_optimizer.device": _auto("offload_device", _DEVICES),
    f"{_ZERO}.offload_optimizer.ratio": _auto("offload_fraction", number),
    f"{_ZERO}.offload_param.device": NotModelled(_ELSEWHERE, harmless=("none",)),
    f"{_ZERO}.cpu_offload": _auto("training.offload", constant("optimizer")),
    f"{_ZERO}.cpu_offload_params": NotModelled(_ELSEWHERE),
    f"{_ZERO}.stage3_max_live_parameters": NotModelled("layers are gathered one ahead, whatever their size",
                                                       harmless=()),
    f"{_ZERO}.sub_group_size": NotModelled("the update's temporaries are those of all parameters of a rank at once",
                                           harmless=("auto", _GROUP, 1e14)),
    f"{_ZERO}.reduce_scatter": NotModelled("gradients of zero2 are reduce-scattered", harmless=(True, "auto")),
    "activation_checkpointing.partition_activations": NotModelled("each tensor-parallel rank keeps its activations"),
    "activation_checkpointing.cpu_checkpointing": NotModelled("checkpoints stay on the GPU"),
    "optimizer.type": _auto("training.optimizer.name", _OPTIMIZERS),
    "tensor_parallel.autotp_size": Means("training.parallelism.tp", lambda value: whole(value) or None),
    "sequence_parallel_size": _auto("ulysses", size),
    "compile.enabled": _auto("training.compile", flag),
    "zero_allow_untested_optimizer": NotModelled("", harmless=(True, False)),
    "sparse_attention.mode": NotModelled("attention is dense"),
    "compression_training.weight_quantization": NotModelled("weights keep their dtype"),
    "curriculum_learning.enabled": NotModelled("every step has the full sequence length"),
    "progressive_layer_drop.enabled": NotModelled("every layer runs in every step"),
}  # fmt: skip

_IDLE: Final = (
    "steps_per_print", "wall_clock_breakdown", "dump_state", "optimizer.params.*", "scheduler.*", "fp16.*", "bf16.*",
    "bfloat16.*", "flops_profiler.*", "tensorboard.*", "wandb.*", "csv_monitor.*", "comms_logger.*", "checkpoint.*",
    "monitor_config.*", "prescale_gradients", "gradient_predivide_factor", "memory_breakdown", "autotuning.*",
    "activation_checkpointing.*", f"{_ZERO}.contiguous_gradients", f"{_ZERO}.allgather_*", f"{_ZERO}.*pin_memory",
    f"{_ZERO}.*buffer_*", f"{_ZERO}.stage3_gather_*", f"{_ZERO}.stage3_max_reuse_distance",
    f"{_ZERO}.round_robin_gradients", f"{_ZERO}.ignore_unused_parameters", f"{_ZERO}.elastic_checkpoint",
    f"{_ZERO}.load_from_fp32_weights", f"{_ZERO}.memory_efficient_linear", f"{_ZERO}.*fast_init", f"{_ZERO}.*nvme_path",
    f"{_ZERO}.legacy_stage1", "data_efficiency.*", "elasticity.*", "seed", "aio.*", "communication_data_type_sparse",
    "amp.*", "nebula.*", "*comment*",
)  # fmt: skip


def _derive(facts: Facts) -> None:
    _derive_precision(facts)
    derive_strategy(facts)
    facts.assume(f"{_SHARDING}.strategy", "ddp", "DeepSpeed's default, stage 0")
    stage = facts.value(STAGE, 0)
    if stage == 3:
        _derive_gathers(facts)
    # DeepSpeed overlaps the reduction of gradients by default in stage 3 only.
    elif stage > 0 and not facts.value("overlap_comm", False):
        facts.assume(f"{_SHARDING}.bucket_size", "1 PiB", "DeepSpeed's default in stages 1 and 2: no overlap_comm")
    elif stage > 0 and facts.value("bucket", _BUCKET):
        itemsize = 4 if facts.value(f"{_PRECISION}.reduce") == "float32" else 2
        nbytes = f"{facts.value('bucket', _BUCKET) * itemsize} B"
        facts.derive(f"{_SHARDING}.bucket_size", nbytes, "bucket", "overlap_comm", STAGE)
    device = facts.value("offload_device")
    if device == "nvme":
        facts.not_modelled("states on NVMe are not simulated; they stay on the GPU", "offload_device")
    elif device is not None:
        fraction = facts.value("offload_fraction", 1.0)
        if stage == 3 and 0 < fraction < 1:
            facts.derive("training.offload.what", device, "offload_device")
            facts.derive("training.offload.fraction", fraction, "offload_fraction")
        else:
            # DeepSpeed's ratio is one of stage 3.
            facts.derive("training.offload", device, "offload_device")
    if facts.has("ulysses"):
        facts.derive("training.parallelism.cp", facts.value("ulysses"), "ulysses")
        facts.derive("training.parallelism.context", "ulysses", "ulysses")


def _derive_precision(facts: Facts) -> None:
    bf16, fp16 = facts.value("deepspeed.bf16"), facts.value("deepspeed.fp16")
    if bf16 and fp16:
        facts.fault("excludes bf16.enabled; set one of the two to false", "deepspeed.fp16")
        return
    if bf16 or fp16:
        params, name = ("bfloat16", "deepspeed.bf16") if bf16 else ("float16", "deepspeed.fp16")
        facts.derive(f"{_PRECISION}.params", params, name)
        # DeepSpeed sums gradients on the wire in the parameters' dtype, unless told otherwise.
        facts.assume(f"{_PRECISION}.reduce", params, "DeepSpeed's default, the parameters' dtype")
        facts.assume(f"{_PRECISION}.grads", params, "DeepSpeed's default, the parameters' dtype")
    if fp16 and facts.value("loss_scale"):
        facts.derive("training.loss_scaling.rule", "static", "loss_scale")
    elif fp16:
        facts.assume("training.loss_scaling.rule", "deepspeed", "DeepSpeed's default for fp16")


def _derive_gathers(facts: Facts) -> None:
    """Add the facts of ZeRO-3: parameters that stay whole, layers gathered ahead, secondary shards."""
    if facts.has("kept"):
        facts.derive(f"{_SHARDING}.keep_below", facts.value("kept"), "kept")
    else:
        facts.assume(f"{_SHARDING}.keep_below", _KEPT, "DeepSpeed's default")
    # A bucket of elements counts as whole layers: at least one, or none for 0.
    if facts.value("prefetch") == 0:
        facts.derive(f"{_SHARDING}.prefetch", 0, "prefetch")
    elif facts.has("prefetch"):
        facts.derive(f"{_SHARDING}.prefetch", 1, "prefetch")
    # A secondary shard over every rank is the shard itself.
    if 1 < facts.value("secondary", 1) < copies_of(facts):
        facts.derive(f"{_SHARDING}.reshard_after_forward", facts.value("secondary"), "secondary")
    if facts.has("bucket"):
        facts.not_modelled("gradients of zero3 are reduced layer by layer", "bucket")


FORMAT: Final = Format(
    name="DeepSpeed",
    syntaxes=("mapping",),
    table=_TABLE,
    marks=frozenset(
        {f"{_ZERO}.*", "train_micro_batch_size_per_gpu", "train_batch_size", "bf16.enabled", "fp16.enabled"}
    ),
    derive=_derive,
    idle=_IDLE,
    framework="deepspeed_2021",
    companion=True,
)
