"""NVIDIA NeMo and Megatron-Bridge: YAML of ConfigContainer, and of NeMo's older megatron_gpt_config.

The model's keys are Megatron-LM's with underscores. A key that is not given has Megatron-LM's default, or the value of
a recipe in Python, which is not read.
"""

from __future__ import annotations

from typing import Final

from simulator.importing import megatron_settings
from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.rules import (
    Means,
    NotModelled,
    Table,
    choice,
    constant,
    flag,
    number,
    size,
    text,
    whole,
    words,
)

_PARALLELISM: Final = "training.parallelism"
_PRECISION: Final = "training.precision"
_SHARDING: Final = "training.sharding"
_STRATEGIES: Final = choice(
    {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
)
_DTYPES: Final = choice({f"{prefix}{name}": name for prefix in ("", "torch.") for name in
                         ("float32", "bfloat16", "float16")})  # fmt: skip
_MIXED: Final = choice(
    {
        **dict.fromkeys(("bf16", "bf16_mixed", "bf16-mixed", "bf16_with_mxfp8_mixed"), "bf16"),
        **dict.fromkeys(("16", "fp16", "16_mixed", "16-mixed", "fp16_mixed"), "fp16"),
        **dict.fromkeys(("32", "fp32", "32-true"), "fp32"),
        **dict.fromkeys(
            ("bf16_with_fp8_delayed_scaling_mixed", "bf16_with_fp8_current_scaling_mixed",
             "bf16_with_fp8_subchannel_scaling_mixed"), "fp8",
        ),
    }
)  # fmt: skip


def _loose(rule: Means) -> Means:
    """Return a rule whose value may be an interpolation of Hydra, which counts as not given."""
    return Means(rule.fact, rule.read, needed=False)


_OWN: Final[Table] = {
    "model.hf_model_id": Means("hub_model", text, needed=False),
    "model.vocab_size": Means("shape.vocab_size", size),
    "model.num_moe_experts": Means("shape.num_experts", size),
    "model.gated_linear_unit": Means("shape.gated", flag),
    "model.activation": Means("activation", text),
    "model.bias": Means("shape.mlp_bias", flag),
    "model.add_bias_linear": Means("shape.mlp_bias", flag),
    "model.share_embeddings_and_output_weights": Means("shape.tied", flag),
    "model.max_position_embeddings": Means("shape.max_positions", size, needed=False),
    "model.encoder_seq_length": Means("training.seq_len", size),
    "model.sequence_length": Means("training.seq_len", size),
    "dataset.sequence_length": Means("training.seq_len", size),
    "dataset.seq_length": Means("training.seq_len", size),
    "data.seq_length": Means("training.seq_len", size),
    "train.micro_batch_size": Means("training.micro_batch_size", size),
    "train.global_batch_size": Means("sequences", size),
    "model.micro_batch_size": Means("training.micro_batch_size", size),
    "model.global_batch_size": Means("sequences", size),
    "data.micro_batch_size": Means("training.micro_batch_size", size),
    "data.global_batch_size": Means("sequences", size),
    "train.rampup_batch_size": NotModelled("the final global batch is simulated"),
    "model.virtual_pipeline_model_parallel_size": Means("virtual", size),
    "model.num_layers_in_first_pipeline_stage": Means("first_layers", size),
    "model.num_layers_in_last_pipeline_stage": Means("last_layers", size),
    "model.account_for_embedding_in_pipeline_split": Means("first_less", flag),
    "model.account_for_loss_in_pipeline_split": Means("last_less", flag),
    "model.pipeline_model_parallel_layout": Means("layout", megatron_settings.read_layout),
    "model.tp_comm_overlap": Means("tp_comm_overlap", flag),
    "model.ub_tp_comm_overlap": Means("tp_comm_overlap", flag),
    "comm_overlap.tp_comm_overlap": Means("comm_tp_overlap", flag),
    "comm_overlap.overlap_grad_reduce": Means("overlap", flag),
    "comm_overlap.bucket_size": Means("bucket_elements", size),
    "comm_overlap.overlap_moe_expert_parallel_comm": Means(f"{_PARALLELISM}.experts.overlap", flag),
    "model.overlap_moe_expert_parallel_comm": Means(f"{_PARALLELISM}.experts.overlap", flag),
    "model.moe_enable_deepep": Means(f"{_PARALLELISM}.experts.dispatch", constant("deduplicated")),
    "model.moe_shared_expert_overlap": NotModelled("shared experts run before or after the exchange of tokens"),
    "model.moe_token_dispatcher_type": Means("dispatcher", text),
    "model.mtp_num_layers": Means("training.mtp_layers", whole),
    "model.cuda_graph_impl": Means("cuda_graph_kind", text),
    "model.cuda_graph_scope": Means("cuda_graph_scopes", words),
    "model.enable_cuda_graph": Means("cuda_graphs", flag),
    "model.cpu_offloading": Means("training.offload.activations", flag),
    "model.activations_checkpoint_granularity": Means("recompute", choice({"full": "full", "selective": "selective"})),
    "model.activations_checkpoint_method": Means("recompute_method", choice({"uniform": "uniform", "block": "block"})),
    "model.activations_checkpoint_num_layers": Means("recompute_layers", size),
    "model.megatron_amp_O2": NotModelled("parameters have 16 bits, with a float32 copy", harmless=(True, None)),
    "model.fp8": Means("fp8", lambda value: choice({"e4m3": True, "hybrid": True, "true": True, "false": None})(value)),
    "model.fp8_e4m3": Means("fp8", constant(True)),
    "model.fp8_hybrid": Means("fp8", constant(True)),
    "model.optim.name": Means("optim_name", text),
    "model.gradient_accumulation_fusion": NotModelled("", harmless=(True, False)),
    "model.peft.peft_scheme": Means("peft", text),
    "model.peft.lora_tuning.adapter_dim": Means("training.lora.rank", size),
    "peft.dim": Means("training.lora.rank", size),
    "peft.sequence_parallel_input_regather": Means("training.lora.regather", flag),
    "mixed_precision": Means("mixed", _MIXED),
    "mixed_precision.bf16": Means("mixed_bf16", flag),
    "mixed_precision.fp16": Means("mixed_fp16", flag),
    "mixed_precision.fp8": Means("fp8", choice({"e4m3": True, "hybrid": True})),
    "mixed_precision.fp8_recipe": Means("fp8_recipe", choice({"delayed": "tensor", "tensorwise": "tensor",
                                                              "blockwise": "block", "mxfp8": "tensor"})),
    "mixed_precision.fp4": Means("fp4", choice({"e2m1": True})),
    "mixed_precision.fp8_param_gather": NotModelled("parameters are gathered in 16 bits"),
    "mixed_precision.grad_reduce_in_fp32": Means("reduce_fp32", flag),
    "trainer.precision": Means("mixed", _MIXED),
    "trainer.devices": Means("gpus_per_node", size, needed=False),
    "trainer.num_nodes": Means("nodes", size, needed=False),
    "trainer.gradient_clip_val": Means("training.clip_norm", lambda value: number(value) or None),
    "optimizer.clip_grad": Means("training.clip_norm", lambda value: number(value) or None),
    "optimizer.optimizer": Means(
        "optimizer", choice({"adam": "adam", "sgd": "momentum", "muon": "muon", "dist_muon": "dist_muon"})
    ),
    "optimizer.use_distributed_optimizer": Means("distributed_optimizer", flag),
    "optimizer.optimizer_cpu_offload": Means("offloads", flag),
    "optimizer.optimizer_offload_fraction": Means("offload_fraction", number),
    "optimizer.exp_avg_dtype": Means("moment_dtype", _DTYPES),
    "optimizer.exp_avg_sq_dtype": Means("second_moment_dtype", _DTYPES),
    "ddp.use_distributed_optimizer": Means("ddp_distributed_optimizer", flag),
    "ddp.overlap_grad_reduce": Means("ddp_overlap", flag),
    "ddp.overlap_param_gather": NotModelled("parameters are gathered after the update, before the next step"),
    "ddp.grad_reduce_in_fp32": Means("ddp_reduce_fp32", flag),
    "ddp.bucket_size": Means("bucket_elements", size),
    "ddp.data_parallel_sharding_strategy": Means("fsdp_strategy", _STRATEGIES),
    "ddp.num_distributed_optimizer_instances": Means("optimizer_instances", size),
    "ddp.use_megatron_fsdp": Means("fsdp_ddp", flag),
    "dist.use_megatron_fsdp": Means("fsdp_dist", flag),
    "dist.use_torch_fsdp2": Means("torch_fsdp", flag),
    "dist.use_tp_pp_dp_mapping": Means(f"{_PARALLELISM}.order", constant(["tp", "cp", "ep", "pp", "dp"])),
    "ddp.fp8_param_gather": NotModelled("parameters are gathered in 16 bits"),
    "model.fine_grained_activation_offloading": NotModelled("activations stay on the GPU"),
    "model.window_size": NotModelled("every query sees every earlier key"),
    "model.is_hybrid_model": NotModelled("", harmless=(True, False)),
    "model.experimental_attention_variant": NotModelled("attention is that of GPT"),
    "model.heterogeneous_block_specs": NotModelled("layers are alike"),
    "model.hybrid_context_parallel": NotModelled("every sequence has the same length"),
    "model.fp32_residual_connection": NotModelled("activations between layers have 16 bits"),
    "model.distribute_saved_activations": NotModelled("each tensor-parallel rank keeps its checkpoints"),
    "ddp.nccl_ub": NotModelled("user buffers for collectives are not simulated"),
}  # fmt: skip

_TABLE: Final[Table] = {
    **{f"model.{name.replace('-', '_')}": _loose(rule) for name, rule in megatron_settings.ARCHITECTURE.items()},
    **_OWN,
}
_IDLE: Final = (
    "checkpoint.*", "logger.*", "profiling.*", "rng.*", "scheduler.*", "tokenizer.*", "exp_manager.*", "dataset.*",
    "data.*", "rerun_state_machine.*", "straggler.*", "ft.*", "nvrx_straggler.*", "model.data.*", "model.tokenizer.*",
    "model.optim.*", "model.nsys_profile.*", "*_target_", "*_call_", "*_partial_", "name", "run.*", "restore_from_path",
    "train.*", "trainer.*", "optimizer.*", "ddp.*", "dist.*", "comm_overlap.*", "mixed_precision.*", "model.*_fusion",
    "model.init_method*", "model.*std", "model.layernorm*", "model.rotary*", "model.rope*", "model.moe_*", "model.seed",
    "model.*cpu_initialization", "model.fp8_*", "model.fp4_*", "model.attention_softmax*", "model.make_vocab*",
    "model.should_pad_vocab", "model.mscale*", "model.beta*", "model.original_max*", "model.*dtype*",
    "model.deterministic*", "model.pre_process", "model.post_process", "model.persist*", "model.apply_*",
    "model.native_amp*", "model.hysteresis", "model.grad_*", "model.gradient_*", "model.onnx*", "model.apex*",
    "model.resume*", "model.peft.*", "peft.*", "session.*", "validation.*", "inprocess_restart.*", "model.barrier*",
    "model.batch_p2p*", "model.bf16", "model.calculate*", "model.clone*", "model.config_logger*", "model.cp_comm_type",
    "model.cuda_graph*", "model.deallocate*", "model.disable*", "model.embedding_init*", "model.enable*",
    "model.external*", "model.finalize*", "model.first_last*", "model.flash_decode", "model.fused_*",
    "model.inference*", "model.init_model*", "model.kitchen*", "model.log*", "model.masked*", "model.memory*",
    "model.min_offloaded*", "model.mlp_chunks*", "model.mrope*", "model.mtp_*", "model.mup*", "model.num_layers_at*",
    "model.output_layer*", "model.overlap_p2p*", "model.parallel_output", "model.perform*", "model.qk_clip*",
    "model.linear_*", "model.mamba_*", "model.hetereo*", "model.heterogeneous_layers*",
    "model.qk_l2_norm", "model.no_rope*", "model.cpu_offloading_*", "model.max_seqlen*", "model.quant*",
    "model.restore*", "model.scatter*", "model.softmax*", "model.symmetric*", "model.test_mode", "model.timers",
    "model.tp_comm_*", "model.glu*", "model.transformer_impl", "model.use_*", "model.variable*",
    "model.vocab_parallel*", "model.cross_entropy*", "model.activation_func*", "model.attention_output_gate",
    "model.autocast*", "model.cache*", "model.defer*", "model.delay*", "model.dsa*", "model.ep_overlap*",
    "model.hierarchical*", "model.fp16*", "model.mla_*", "model.nccl*", "model.batch_invariant*", "model.sharp*",
    "model.wgrad*", "model.num_microbatches*", "model.offload*", "model.freeze*", "model.generation*",
    "model.pipeline_model_parallel_comm*", "model.seq_len_interpolation*", "model.sync*",
)  # fmt: skip


def _plain(key: str) -> str:
    name = key.removeprefix("ConfigContainer.")
    name = f"model.{name.removeprefix('model.config.')}" if name.startswith("model.config.") else name
    # NeMo 2 keeps the parallelism in the trainer's strategy.
    return f"model.{name.removeprefix('trainer.strategy.')}" if name.startswith("trainer.strategy.") else name


def _derive(facts: Facts) -> None:
    _unite(facts, "overlap", ("ddp_overlap",))
    _unite(facts, "fsdp", ("fsdp_ddp", "fsdp_dist"))
    _derive_activation(facts)
    if facts.value("dispatcher") is not None:
        dispatch = {"alltoall": "all_to_all", "allgather": "all_gather", "flex": "deduplicated"}
        facts.derive(f"{_PARALLELISM}.experts.dispatch", dispatch.get(facts.value("dispatcher"), "all_to_all"),
                     "dispatcher")  # fmt: skip
    if facts.value("tp_comm_overlap") or facts.value("comm_tp_overlap"):
        facts.derive(f"{_PARALLELISM}.tp_overlap", "ring_exchange", "tp_comm_overlap", "comm_tp_overlap")
    if facts.value("fp8_recipe_model") is not None and not facts.has("fp8_recipe"):
        facts.derive("fp8_recipe", facts.value("fp8_recipe_model"), "fp8_recipe_model")
    facts.assume(f"{_PARALLELISM}.sequence_parallel", False, "the default of Megatron's model")
    megatron_settings.derive_shape(facts)
    megatron_settings.derive_schedule(facts)
    _derive_precision(facts)
    _derive_sharding(facts)
    megatron_settings.derive_recompute(facts)
    megatron_settings.derive_graphs(facts)
    megatron_settings.derive_step(facts, dropout=0.0)


def _unite(facts: Facts, name: str, others: tuple[str, ...]) -> None:
    """Add a fact that several settings can turn on."""
    present = [fact for fact in (name, *others) if facts.has(fact)]
    if present and not facts.has(name):
        facts.derive(name, any(facts.value(fact) for fact in present), *present)


def _derive_activation(facts: Facts) -> None:
    """Add the kind of MLP and norm from the names that NeMo gives them."""
    activation = str(facts.value("activation", "")).lower()
    if activation in ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu"):
        facts.derive("shape.gated", True, "activation")


def _derive_precision(facts: Facts) -> None:
    mixed = facts.value("mixed")
    bf16 = facts.value("mixed_bf16") or facts.value("bf16") or mixed in ("bf16", "fp8")
    fp16 = facts.value("mixed_fp16") or facts.value("fp16") or mixed == "fp16"
    names = ("mixed", "mixed_bf16", "bf16", "mixed_fp16", "fp16")
    params = "float32" if mixed == "fp32" else "float16" if fp16 and not bf16 else "bfloat16"
    facts.derive(f"{_PRECISION}.params", params, *names, otherwise="the default of recipes, bf16_mixed")
    if mixed == "fp8":
        facts.derive("fp8", True, "mixed")
    wide = facts.value("reduce_fp32", facts.value("ddp_reduce_fp32", params == "float32"))
    sums, why = ("float32" if wide else params), "the default of recipes"
    for key in ("grads", "reduce"):
        facts.derive(f"{_PRECISION}.{key}", sums, "reduce_fp32", "ddp_reduce_fp32", otherwise=why)
    megatron_settings.derive_low_precision(facts)


def _derive_sharding(facts: Facts) -> None:
    if facts.value("torch_fsdp"):
        facts.derive(f"{_SHARDING}.strategy", "zero3", "torch_fsdp")
    elif facts.value("fsdp"):
        facts.derive(f"{_SHARDING}.strategy", facts.value("fsdp_strategy", "zero3"), "fsdp", "fsdp_strategy")
    names = ("distributed_optimizer", "ddp_distributed_optimizer", "optim_name")
    shards = facts.value(names[0]) or facts.value(names[1]) or "distributed" in str(facts.value("optim_name", ""))
    is_set = any(facts.has(name) for name in names)
    if not facts.has(f"{_SHARDING}.strategy"):
        strategy = "zero1" if shards or not is_set else "ddp"
        facts.derive(f"{_SHARDING}.strategy", strategy, *names, otherwise="the default of recipes")
    megatron_settings.derive_buckets(facts)


FORMAT: Final = Format(
    name="NeMo and Megatron-Bridge",
    syntaxes=("mapping",),
    table=_TABLE,
    marks=frozenset({"model.tensor_model_parallel_size", "train.global_batch_size", "model.seq_length",
                     "model.micro_batch_size", "model.encoder_seq_length"}),
    derive=_derive,
    idle=_IDLE,
    plain=_plain,
    framework="nemo",
)  # fmt: skip
