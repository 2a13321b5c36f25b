"""Hugging Face accelerate: the file of `accelerate config`, beside a Trainer's configuration or alone."""

from __future__ import annotations

from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.hugging_face import FSDP_TABLE, MIXED, derive_dtypes, derive_fsdp
from simulator.importing.machine import WORLD
from simulator.importing.rules import Means, NotModelled, Table, choice, constant, size, text, unless_auto
from simulator.importing.zero_stage import STAGE, STAGES, derive_strategy

_DEEPSPEED: Final = "deepspeed_config"
_TABLE: Final[Table] = {
    **FSDP_TABLE,
    "num_processes": Means(WORLD, size, needed=False),
    "num_machines": Means("machines", size, needed=False),
    "mixed_precision": Means("mixed", MIXED),
    "distributed_type": Means("distributed", text),
    f"{_DEEPSPEED}.zero_stage": Means(STAGE, STAGES),
    f"{_DEEPSPEED}.gradient_accumulation_steps": Means(
        "training.gradient_accumulation_steps", unless_auto(size)
    ),
    f"{_DEEPSPEED}.offload_optimizer_device": Means(
        "training.offload", choice({"cpu": "optimizer", "none": None})
    ),
    f"{_DEEPSPEED}.offload_param_device": NotModelled("the parameters stay on the GPU", harmless=("none",)),
    f"{_DEEPSPEED}.deepspeed_config_file": Means("deepspeed_file", text),
    "gradient_accumulation_steps": Means("training.gradient_accumulation_steps", unless_auto(size)),
    "dynamo_config.dynamo_backend": Means("training.compile", lambda value: str(value).lower() != "no"),
    "fp8_config.backend": Means("fp8", constant(True)),
    "parallelism_config.parallelism_config_tp_size": Means("training.parallelism.tp", size),
    "parallelism_config.parallelism_config_cp_size": Means("training.parallelism.cp", size),
    "parallelism_config.parallelism_config_dp_replicate_size": Means("replicas", size),
    "parallelism_config.parallelism_config_dp_shard_size": Means("shard_ranks", size),
}  # fmt: skip

_IDLE: Final = (
    "compute_environment", "debug", "downcast_bf16", "machine_rank", "main_*", "rdzv_*", "same_network", "tpu_*",
    "use_cpu", "enable_cpu_affinity", "gpu_ids", "fsdp_config.*", f"{_DEEPSPEED}.*", "dynamo_config.*", "megatron_lm_*",
    "fp8_config.*", "ipex_config.*", "mpirun_config.*",
)  # fmt: skip


def _derive(facts: Facts) -> None:
    # The key is written also where it means a single process.
    if "fsdp" in str(facts.value("distributed", "")).lower():
        facts.derive("fsdp_on", True, "distributed")
    derive_strategy(facts)
    derive_dtypes(facts)
    derive_fsdp(facts)


FORMAT: Final = Format(
    name="accelerate",
    syntaxes=("mapping",),
    table=_TABLE,
    marks=frozenset({"distributed_type", "compute_environment", "mixed_precision"}),
    derive=_derive,
    idle=_IDLE,
    framework="transformers",
    companion=True,
)
