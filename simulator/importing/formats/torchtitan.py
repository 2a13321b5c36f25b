"""torchtitan: TOML files of 2024 and 2025, and the Python configurations after them.

Names and defaults follow torchtitan/config/job_config.py and configs.py. An option that is not given has its default.
"""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.basics import registry
from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.machine import copies_of
from simulator.importing.rules import (
    REST,
    Means,
    NotModelled,
    Table,
    choice,
    constant,
    flag,
    number,
    size,
    size_if_given,
    size_or_rest,
    text,
    whole,
    words,
)
from simulator.importing.syntax.python import FUNCTION

_PARALLELISM: Final = "training.parallelism"
_PRECISION: Final = "training.precision"
_SHARDING: Final = "training.sharding"
_DEFAULT: Final = "torchtitan's default"
_SCHEDULES: Final = choice(
    {
        "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "loopedbfs": "looped_bfs",
        "interleavedzerobubble": "interleaved_zero_bubble", "zbvzerobubble": "zbv_zero_bubble",
        "dualpipev": "dualpipe_v",
    }
)  # fmt: skip
_SAVED: Final = choice({"none": "none", "selective": "selective", "full": "full", "memory_budget": "memory_budget"})
_OPTIMIZERS: Final = choice({"adam": "adam", "adamw": "adam", "muon": "muon", "sgd": "sgd"})
_KERNELS: Final = choice({"for-loop": "for_loop", "foreach": "foreach", "fused": "fused",
                          "fused_opt_states_bf16": "fused"})  # fmt: skip
_DTYPES: Final = choice({"bfloat16": "bfloat16", "float32": "float32"})
# Flavors of torchtitan's models that the catalog has, by model.name and model.flavor in lower case.
_FLAVORS: Final = {
    ("llama3", "8b"): "llama3_8b", ("llama3", "70b"): "llama3_70b", ("llama3", "405b"): "llama3_405b",
    ("llama3", "1b"): "llama3_2_1b", ("llama3", "3b"): "llama3_2_3b", ("qwen3", "8b"): "qwen3_8b",
    ("qwen3", "30b-a3b"): "qwen3_30b_a3b", ("qwen3", "235b-a22b"): "qwen3_235b_a22b",
    ("deepseek_v3", "671b"): "deepseek_v3", ("llama4", "17bx16e"): "llama4_scout", ("gpt_oss", "20b"): "gpt_oss_20b",
}  # fmt: skip


def _selective(value: Any) -> Any:
    """Return how selective checkpointing chooses: "op", or k for every k-th layer."""
    return "op" if str(value).lower() == "op" else size(value)


def _batch(value: Any) -> int | None:
    """Return a global batch; None for -1, which means the micro-batches of all ranks."""
    return size_if_given(value)


_FLOAT8: Final = "float8"
# Converters of Python configurations, wherever they are named.
_CONVERTERS: Final = "converter"
_CONVERTER: Final = re.compile(r"(?:.*\.)?([A-Za-z0-9]+LinearConverter)(\..*)?\Z")
_TABLE: Final[Table] = {
    FUNCTION: Means("function", text),
    "model.name": Means("model_name", text),
    "model.flavor": Means("flavor", text),
    "model_spec": Means("flavor", text),
    "model.converters": Means("converters", words),
    "training.seq_len": Means("training.seq_len", size),
    "training.max_context_length": Means("training.seq_len", size),
    "training.batch_size": Means("local_batch", size),
    "training.local_batch_size": Means("local_batch", size),
    "training.global_batch_size": Means("sequences", _batch),
    "training.num_tokens_per_microbatch_per_dp_rank": Means("local_tokens", size),
    "training.max_norm": Means("training.clip_norm", lambda value: number(value) or None),
    "training.compile": Means("compiles", flag),
    "compile.enable": Means("compiles", flag),
    "compile.components": Means("compiled", words),
    "training.enable_cpu_offload": Means("training.offload", constant("optimizer")),
    "training.dtype": Means("stored", _DTYPES),
    "training.mixed_precision_param": Means("mixed_param", _DTYPES),
    "training.mixed_precision_reduce": Means(f"{_PRECISION}.reduce", _DTYPES),
    "training.data_parallel_replicate_degree": Means("replicas", size),
    "training.data_parallel_shard_degree": Means("shard_ranks", size_or_rest),
    "training.tensor_parallel_degree": Means(f"{_PARALLELISM}.tp", size),
    "parallelism.data_parallel_replicate_degree": Means("replicas", size),
    "parallelism.data_parallel_shard_degree": Means("shard_ranks", size_or_rest),
    "parallelism.fsdp_reshard_after_forward": Means(
        "reshard", choice({"default": "default", "always": True, "never": False})
    ),
    "parallelism.tensor_parallel_degree": Means(f"{_PARALLELISM}.tp", size),
    "parallelism.enable_async_tensor_parallel": Means(f"{_PARALLELISM}.tp_overlap", constant("ring_exchange")),
    "compile.enable_async_tensor_parallel": Means(f"{_PARALLELISM}.tp_overlap", constant("ring_exchange")),
    "parallelism.enable_sequence_parallel": Means(f"{_PARALLELISM}.sequence_parallel", flag),
    "parallelism.disable_loss_parallel": NotModelled("logits are split over tensor-parallel ranks"),
    "parallelism.pipeline_parallel_degree": Means(f"{_PARALLELISM}.pp", size),
    "parallelism.pipeline_parallel_schedule": Means(f"{_PARALLELISM}.schedule", _SCHEDULES),
    "parallelism.pipeline_parallel_microbatch_size": Means("pipeline_micro", size),
    "parallelism.pipeline_parallel_layers_per_stage": Means("layers_per_stage", size),
    "parallelism.pipeline_parallel_first_stage_less_layers": Means("first_less", whole),
    "parallelism.pipeline_parallel_last_stage_less_layers": Means("last_less", whole),
    "parallelism.pipeline_parallel_split_points": NotModelled("layers are distributed evenly", harmless=([], None)),
    "parallelism.module_fqns_per_model_part": NotModelled("layers are distributed evenly", harmless=([], None)),
    "parallelism.context_parallel_degree": Means(f"{_PARALLELISM}.cp", size),
    # Both move keys and values in pieces: after a first piece all at once, or from rank to rank.
    "parallelism.context_parallel_rotate_method": Means(
        f"{_PARALLELISM}.context", choice({"allgather": "all_gather", "alltoall": "ring"})
    ),
    "parallelism.context_parallel_load_balancer": Means(
        f"{_PARALLELISM}.balanced", choice({"headtail": True, "ptrr": True, "none": False})
    ),
    "parallelism.expert_parallel_degree": Means(f"{_PARALLELISM}.ep", size),
    "parallelism.expert_tensor_parallel_degree": Means(f"{_PARALLELISM}.etp", size),
    "parallelism.expert_parallel_comm_backend": Means(
        f"{_PARALLELISM}.experts.dispatch", choice({"standard": "all_to_all", "deepep": "deduplicated"})
    ),
    "debug.moe_force_load_balance": Means("balanced_routing", flag),
    "experimental.pipeline_parallel_degree": Means(f"{_PARALLELISM}.pp", size),
    "experimental.pipeline_parallel_schedule": Means(f"{_PARALLELISM}.schedule", _SCHEDULES),
    "experimental.context_parallel_degree": Means(f"{_PARALLELISM}.cp", size),
    "experimental.enable_async_tensor_parallel": Means(f"{_PARALLELISM}.tp_overlap", constant("ring_exchange")),
    "activation_checkpoint.mode": Means("saved", _SAVED),
    "activation_checkpoint.selective_ac_option": Means("selective", _selective),
    "activation_checkpoint.memory_budget": NotModelled("selective_op is simulated for every budget"),
    "optimizer.name": Means("training.optimizer.name", _OPTIMIZERS),
    "optimizer.implementation": Means("training.optimizer.implementation", _KERNELS),
    "optimizer.fused": Means("training.optimizer.implementation", constant("fused")),
    "optimizer.early_step_in_backward": NotModelled("the optimizer runs after the backward pass"),
    "float8.enable_float8_linear": Means(_FLOAT8, flag),
    "float8.enable_fsdp_float8_all_gather": NotModelled("parameters are gathered in 16 bits"),
    "float8.recipe_name": Means("recipe", choice({"tensorwise": "tensor", "rowwise": "row",
                                                  "rowwise_with_gw_hp": "row"})),
    f"{_CONVERTERS}.Float8LinearConverter": Means(_FLOAT8, flag),
    f"{_CONVERTERS}.Float8LinearConverter.recipe_name": Means(
        "recipe", choice({"tensorwise": "tensor", "rowwise": "row", "rowwise_with_gw_hp": "row"})
    ),
    f"{_CONVERTERS}.Float8LinearConverter.enable_fsdp_float8_all_gather": NotModelled(
        "parameters are gathered in 16 bits"
    ),
    f"{_CONVERTERS}.MXLinearConverter": Means(_FLOAT8, flag),
    f"{_CONVERTERS}.MXFP8LinearConverter": Means(_FLOAT8, flag),
    f"{_CONVERTERS}.NVFP4LinearConverter": Means("float4", flag),
    "activation_checkpoint.FullAC": Means("saved", constant("full")),
    "activation_checkpoint.SelectiveAC": Means("saved", constant("selective")),
    "activation_checkpoint.MemoryBudgetAC": Means("saved", constant("memory_budget")),
    "loss.ChunkedLossWrapper": Means("chunked_loss", flag),
    "training.num_tokens_per_train_step": Means("tokens", size_if_given),
    "parallelism.num_pp_microbatches": Means("pipeline_count", size),
    "parallelism.enable_fsdp_symm_mem": NotModelled("gathers use the collectives of NCCL"),
    "lora.rank": Means("training.lora.rank", size),
}  # fmt: skip

_IDLE: Final = (
    "job.*", "profiling.*", "profiler.*", "optimizer.*", "parallelism.spmd_backend", "training.disable_cuda_graphs",
    "metrics.*", "checkpoint.*", "lr_scheduler.*", "comm.*", "validation.*", "validator.*", "experimental.custom_*",
    "dataloader.*", "debug.*", "training.dataset*", "training.steps", "training.gc_*", "training.seed",
    "training.deterministic", "training.data_*", "optimizer.lr", "optimizer.eps", "optimizer.beta*",
    "optimizer.weight_decay", "model.tokenizer*", "model.hf_assets_path", "model.print_after_conversion",
    "model.norm_type", "hf_assets_path", "float8.*", "mx.*", "tokenizer*", "dump_folder", "fault_tolerance.*",
    "activation_checkpoint.*", "compile.*", "float8.filter_fqns", "loss.*", f"{_CONVERTERS}.*", "model_name*",
)  # fmt: skip


def _plain(key: str) -> str:
    match = _CONVERTER.match(key)
    return key if match is None else f"{_CONVERTERS}.{match[1]}{match[2] or ''}"


def _derive(facts: Facts) -> None:
    _derive_model(facts)
    _derive_compile(facts)
    _derive_sharding(facts)
    _derive_routing(facts)
    _derive_batch(facts)
    _derive_pipeline(facts)
    stored, computed = facts.value("stored", "float32"), facts.value("mixed_param", "bfloat16")
    facts.derive(f"{_PRECISION}.params", computed if stored == "float32" else stored, "mixed_param", "stored",
                 otherwise=_DEFAULT)  # fmt: skip
    if stored == "bfloat16":
        # Parameters without a float32 copy.
        facts.derive(f"{_PRECISION}.master", None, "stored")
    converters = facts.value("converters", ())
    if facts.value(_FLOAT8) or any(name.startswith(("float8", "quantize.linear.float8")) for name in converters):
        facts.derive(f"{_PRECISION}.matmul", "float8_e4m3fn", _FLOAT8, "converters")
        if facts.has("recipe"):
            facts.derive(f"{_PRECISION}.scaling", facts.value("recipe"), "recipe")
    elif "mx" in converters or "quantize.linear.mx" in converters:
        facts.derive(f"{_PRECISION}.matmul", "float8_e4m3fn", "converters")
    if facts.value("chunked_loss") and facts.value(f"{_PARALLELISM}.tp", 1) == 1:
        facts.derive("training.loss", "chunked", "chunked_loss")
    elif facts.has("chunked_loss"):
        facts.not_modelled(
            "the loss is not chunked, because tensor-parallel ranks share the vocabulary", "chunked_loss"
        )
    if facts.value("float4"):
        facts.derive(f"{_PRECISION}.matmul", "float4_e2m1fn", "float4")
    _derive_checkpointing(facts)


def _derive_compile(facts: Facts) -> None:
    """Add whether the model is compiled, which the components may leave out."""
    if facts.has("compiles"):
        model = "model" in facts.value("compiled", ("model",))
        facts.derive("training.compile", facts.value("compiles") and model, "compiles", "compiled")
        if facts.value("compiles") and not model:
            facts.not_modelled("the model is not compiled; the loss runs uncompiled too", "compiled")


def _derive_model(facts: Facts) -> None:
    name, flavor = facts.value("model_name", "").lower(), facts.value("flavor", "").lower()
    function = facts.value("function", "").lower()
    # A Python configuration names the family only in its folder, and by habit in the function.
    families = [name] if name else [family for family, _ in _FLAVORS if function.startswith(family)]
    model = next((_FLAVORS[family, flavor] for family in families if (family, flavor) in _FLAVORS), None)
    model = model or (registry.shipped("model", function) if function else None)
    names = ("model_name", "flavor") if name or flavor else ("function",)
    if model is not None:
        facts.derive("training.model", model, *names)
    elif facts.has("flavor"):
        facts.derive("hub_model", f"{name or function} {flavor}", *names)


def _derive_sharding(facts: Facts) -> None:
    replicas, shards = facts.value("replicas", 1), facts.value("shard_ranks", REST)
    if shards == REST:
        shards = max(1, copies_of(facts) // replicas)
    # A single replica decides nothing.
    names = ("shard_ranks", "replicas") if replicas > 1 else ("shard_ranks",)
    if shards == 1 and replicas > 1:
        facts.derive(f"{_SHARDING}.strategy", "ddp", *names)
        return
    facts.derive(f"{_SHARDING}.strategy", "zero3", *names, otherwise=f"{_DEFAULT}, data_parallel_shard_degree -1")
    if replicas > 1:
        facts.derive(f"{_SHARDING}.shard_size", shards, *names)
    reshard = facts.value("reshard", "default")
    if reshard != "default":
        facts.derive(f"{_SHARDING}.reshard_after_forward", reshard, "reshard")
    elif facts.value(f"{_PARALLELISM}.pp", 1) > 1:
        # torchtitan's default keeps parameters between the passes of a pipeline.
        facts.assume(f"{_SHARDING}.reshard_after_forward", False, f"{_DEFAULT} with pipeline parallelism")


def _derive_batch(facts: Facts) -> None:
    """Add the micro-batch: with a pipeline, the local batch is cut into micro-batches."""
    seq_len, names = (
        facts.value("training.seq_len", 2048),
        ("local_batch", "local_tokens", "pipeline_micro", "pipeline_count"),
    )
    facts.assume("training.seq_len", 2048, _DEFAULT)
    local = facts.value("local_batch", max(1, facts.value("local_tokens", 8 * seq_len) // seq_len))
    if facts.has("tokens") and not facts.has("sequences"):
        facts.derive("sequences", max(1, facts.value("tokens") // seq_len), "tokens")
    micro = local
    if facts.value(f"{_PARALLELISM}.pp", 1) > 1:
        micro = facts.value("pipeline_micro", max(1, local // facts.value("pipeline_count", local)))
        if local % micro:
            facts.fault(f"got {micro}; must divide the local batch {local}", *names[2:], *names)
            return
        if not facts.has("sequences"):
            facts.derive("training.gradient_accumulation_steps", local // micro, *names, otherwise=_DEFAULT)
    facts.derive("training.micro_batch_size", micro, *names, otherwise=_DEFAULT)
    if not facts.has("sequences"):
        facts.assume("training.gradient_accumulation_steps", 1, f"{_DEFAULT}: no global_batch_size")


def _derive_pipeline(facts: Facts) -> None:
    pp = facts.value(f"{_PARALLELISM}.pp", 1)
    if pp == 1:
        return
    less = {name: facts.value(name, 1) for name in ("first_less", "last_less")}
    facts.derive(f"{_PARALLELISM}.stages", less, *less, otherwise=_DEFAULT)
    schedule = facts.value(f"{_PARALLELISM}.schedule", "1f1b")
    if schedule in ("interleaved", "looped_bfs", "interleaved_zero_bubble"):
        # torchtitan infers two stages per rank for looped schedules, unless the layers of a stage are given.
        layers, per_stage = facts.value("shape.num_layers"), facts.value("layers_per_stage")
        if layers is None and per_stage is not None:
            facts.not_modelled("two stages per rank", "layers_per_stage")
        facts.assume(f"{_PARALLELISM}.virtual_stages", 2, f"{_DEFAULT} for looped schedules")


def _derive_routing(facts: Facts) -> None:
    """Add the routing of tokens to experts if a forced balance of the load chooses experts in turn."""
    dispatch = facts.value(f"{_PARALLELISM}.experts.dispatch")
    # Other exchanges send a copy per chosen expert, wherever the experts are.
    if facts.value("balanced_routing", False) and dispatch == "deduplicated":
        facts.derive(f"{_PARALLELISM}.experts.routing", "round_robin", "balanced_routing")


def _derive_checkpointing(facts: Facts) -> None:
    key, saved = "training.activation_checkpointing", facts.value("saved", "selective")
    # TOML files of 2024 and 2025 have the default "2"; the Python configurations have no such option.
    option = facts.value("selective", "op" if facts.has("function") else 2)
    names = ("saved", "selective")
    if saved == "memory_budget":
        facts.not_modelled("selective_op is simulated", "saved")
    policy: Any = {"none": "none", "full": "full"}.get(saved, "selective_op")
    if saved == "selective" and option != "op":
        policy = {"every": option}
    facts.derive(key, policy, *names, otherwise=_DEFAULT)


FORMAT: Final = Format(
    name="torchtitan",
    syntaxes=("toml", "python", "mapping"),
    table=_TABLE,
    marks=frozenset(
        {
            "model.flavor",
            "model_spec",
            "parallelism.*_degree",
            "activation_checkpoint.mode",
            "training.local_batch_size",
        }
    ),
    derive=_derive,
    idle=_IDLE,
    plain=_plain,
    framework="torchtitan",
)
