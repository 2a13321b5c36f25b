"""Which settings do programs on top of Hugging Face's Trainer share? Their names, meanings and derivation.

Used by the formats of Trainer, accelerate, LLaMA-Factory and axolotl.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.importing.facts import Facts
from simulator.importing.machine import copies_of
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
    unless_auto,
    whole,
    words,
)
from simulator.model.adapters import TARGETS

_PARALLELISM: Final = "training.parallelism"
_PRECISION: Final = "training.precision"
_SHARDING: Final = "training.sharding"
_LORA: Final = "training.lora"
_PARAMETERS_STAY: Final = (
    "parameters and gradients stay on the GPU, and only the optimizer is on the host: memory is too high, and the time "
    "of copies too low"
)

# TrainingArguments.optim, by optimizer and implementation.
_OPTIMIZERS: Final = {
    **dict.fromkeys(("adamw_torch", "adamw_hf", "adamw"), ("adam", "foreach")),
    **dict.fromkeys(("adamw_torch_fused", "adamw_apex_fused", "adamw_torch_npu_fused"), ("adam", "fused")),
    **dict.fromkeys(
        ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "ademamix_8bit"), ("adam_8bit", None)
    ),
    **dict.fromkeys(("paged_adamw_32bit", "paged_adamw", "adamw_anyprecision", "adamw_torch_4bit"), ("adam", None)),
    **dict.fromkeys(("adafactor",), ("adafactor", None)),
    **dict.fromkeys(("sgd",), ("momentum", None)),
    **dict.fromkeys(("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "lion_pytorch"), ("lion", None)),
    **dict.fromkeys(("muon",), ("muon", None)),
}
OPTIMIZER: Final = choice(_OPTIMIZERS)
FSDP: Final = choice(
    {
        "full_shard": "full_shard", "1": "full_shard", "shard_grad_op": "shard_grad_op", "2": "shard_grad_op",
        "no_shard": "no_shard", "3": "no_shard", "hybrid_shard": "hybrid_shard", "4": "hybrid_shard",
        "hybrid_shard_zero2": "hybrid_shard_zero2", "5": "hybrid_shard_zero2", "_hybrid_shard_zero2":
        "hybrid_shard_zero2",
    }
)  # fmt: skip
MIXED: Final = choice({"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "false": "fp32"})


def _fsdp(value: Any) -> tuple[str, ...] | None:
    """Return the words of the option fsdp: "full_shard auto_wrap offload", a list, true or false."""
    if isinstance(value, bool):
        return ("full_shard",) if value else None
    flags = tuple(word.lower() for word in words(value))
    return flags or None


def _bf16(value: Any) -> bool | None:
    """Return whether bf16 is on; "auto" is on, because every GPU of the catalog since A100 has it."""
    return True if str(value).lower() in ("auto", "full") else flag(value)


def _reshards(value: Any) -> bool:
    """Return whether FSDP frees parameters after the forward pass: a boolean, or the name of a strategy of FSDP 1."""
    return str(value).lower() not in ("false", "shard_grad_op", "hybrid_shard_zero2", "no_shard")


def _attention(value: Any) -> str:
    """Return the kind of attention kernels: eager, or flash for any fused kernel."""
    return "eager" if text(value).lower() in ("eager", "disabled") else "flash"


# Keys of an accelerate file's fsdp_config, which TrainingArguments and axolotl write with or without "fsdp_".
_FSDP_RULES: Final[Table] = {
    "sharding_strategy": Means("fsdp_strategy", FSDP),
    "reshard_after_forward": Means("fsdp_reshard", _reshards),
    "offload_params": Means("training.offload", constant("optimizer")),
    "cpu_offload": Means("training.offload", constant("optimizer")),
    "activation_checkpointing": Means("training.activation_checkpointing", constant("full")),
    "version": Means("fsdp_version", whole),
    "forward_prefetch": NotModelled("one layer is gathered ahead"),
}
FSDP_TABLE: Final[Table] = {
    f"fsdp_config.{prefix}{name}": rule for prefix in ("fsdp_", "") for name, rule in _FSDP_RULES.items()
}

LORA_TABLE: Final[Table] = {
    "lora_r": Means("lora_rank", size),
    "lora_rank": Means("lora_rank", size),
    "lora_dropout": Means("lora_dropout", number),
    "lora_target": Means("lora_target", words),
    "lora_target_modules": Means("lora_target", words),
}
TRAINER_TABLE: Final[Table] = {
    **FSDP_TABLE,
    "model_name_or_path": Means("hub_model", text),
    "per_device_train_batch_size": Means("training.micro_batch_size", size),
    "gradient_accumulation_steps": Means("training.gradient_accumulation_steps", unless_auto(size)),
    "bf16": Means("bf16", _bf16),
    "fp16": Means("fp16", flag),
    "tf32": Means("tf32", flag),
    "fp8": Means("fp8", flag),
    "torch_dtype": Means("stored", unless_auto(choice({"bfloat16": "bfloat16", "float16": "float16",
                                                       "float32": "float32"}))),
    "dtype": Means("stored", unless_auto(choice({"bfloat16": "bfloat16", "float16": "float16",
                                                 "float32": "float32"}))),
    "gradient_checkpointing": Means("training.activation_checkpointing", constant("full")),
    "optim": Means("optim", OPTIMIZER),
    "max_grad_norm": Means("training.clip_norm", lambda value: number(value) or None),
    "torch_compile": Means("training.compile", flag),
    "use_liger_kernel": Means("training.loss", constant("chunked")),
    "attn_implementation": Means("training.attention", _attention),
    "fsdp": Means("fsdp", _fsdp),
    "deepspeed": Means("deepspeed_file", text),
    "tp_size": Means(f"{_PARALLELISM}.tp", lambda value: whole(value) or None),
    "max_seq_length": Means("training.seq_len", size),
    "max_length": Means("training.seq_len", size),
    "block_size": Means("training.seq_len", size),
    "model_max_length": Means("training.seq_len", size),
    "auto_find_batch_size": NotModelled("the batch size is the one of the file"),
    "optim_target_modules": NotModelled("low-rank projections of gradients are not simulated"),
    "use_peft": Means("peft", flag),
    **LORA_TABLE,
    "load_in_4bit": Means("four_bits", flag),
    "load_in_8bit": NotModelled("frozen matrices keep the dtype of the parameters"),
}  # fmt: skip

TRAINER_IDLE: Final = (
    "fsdp_config.*", "fsdp_transformer_layer_cls_to_wrap", "output_dir", "overwrite_*", "do_*", "eval*", "*_eval_*",
    "logging*", "log_*", "save*", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "seed",
    "data_seed", "learning_rate", "*_lr*", "lr_*", "weight_decay", "adam_*", "num_train_epochs", "max_steps", "warmup*",
    "report_to", "run_name", "push_to_hub", "hub_*", "dataset*", "dataloader_*", "preprocessing*", "max_samples",
    "max_train_samples", "max_eval_samples", "tokenizer*", "use_fast_tokenizer", "trust_remote_code", "cache_dir",
    "remove_unused_columns", "group_by_length", "length_column_name", "ddp_*", "label_*", "disable_tqdm",
    "resume_from_checkpoint", "ignore_data_skip", "neftune*", "prediction_loss_only", "local_rank", "debug",
    "skip_memory_metrics", "gradient_checkpointing_kwargs*", "optim_args", "torch_compile_*", "full_determinism",
    "include_*", "lora_alpha", "packing", "train_file", "validation_*", "text_column", "config_name",
    "*_eval_batch_size", "streaming", "num_proc", "liger_kernel_config*", "accelerator_config*", "use_cpu",
    "average_tokens_across_devices", "template", "past_index", "bf16_full_eval", "fp16_full_eval", "fp16_opt_level",
    "fp16_backend", "half_precision_backend", "jit_mode_eval", "tpu_*", "torchdynamo", "split_batches",
    "use_legacy_prediction_loop", "token", "revision", "low_cpu_mem_usage", "keep_linebreaks", "plot_loss",
    "attn_kwargs", "xpu_backend", "no_cuda",
)  # fmt: skip


def derive_lora(facts: Facts, kind: str, *, every: bool = False, four_bits: bool = False) -> None:
    """Add low-rank adapters.

    Parameters
    ----------
    facts : Facts
        Facts of the files.
    kind : str
        Name of the fact that turns adapters on.
    every : bool
        Whether every matrix has an adapter.
    four_bits : bool
        Whether the frozen matrices have 4 bits.
    """
    facts.derive(f"{_LORA}.rank", facts.value("lora_rank", _RANK), "lora_rank", kind, otherwise="the program's default")
    names = [name.rpartition(".")[2].removesuffix("_proj") for name in facts.value("lora_target", ("all",))]
    if every or names in (["all"], ["all-linear"]):
        targets: Any = "all"
    elif all(name in TARGETS for name in names):
        targets = names
    else:
        facts.not_modelled("every matrix of the layers has an adapter", "lora_target")
        targets = "all"
    facts.derive(f"{_LORA}.targets", targets, "lora_target", "lora_all", kind)
    if facts.value("lora_dropout"):
        facts.derive(f"{_LORA}.dropout", facts.value("lora_dropout"), "lora_dropout")
    if four_bits:
        facts.derive(f"{_LORA}.base", "nf4", "four_bits", "bits", kind)


# Default of PEFT, LLaMA-Factory and axolotl.
_RANK: Final = 8


def derive_trainer(facts: Facts, micro_batch: int = 8, *, loads_narrow: bool = False) -> None:
    """Complete the facts of a training with Hugging Face's Trainer, whose default micro-batch is `micro_batch`;
    `loads_narrow` if the program loads the parameters in two bytes.
    """
    if facts.value("peft"):
        derive_lora(facts, "peft", four_bits=facts.value("four_bits", False))
    derive_dtypes(facts, loads_narrow=loads_narrow)
    derive_optimizer(facts)
    derive_fsdp(facts)
    facts.assume("training.micro_batch_size", micro_batch, "the Trainer's default")
    facts.assume("training.gradient_accumulation_steps", 1, "the Trainer's default")
    facts.assume("training.activation_checkpointing", "none", "the Trainer's default")


_FSDP_NAMES: Final = ("fsdp_strategy", "fsdp", "fsdp_reshard", "fsdp_version", "fsdp_on")
# Dtypes of parameters that an optimizer updates without a copy, if the model is loaded in them.
_NARROW: Final = ("bfloat16", "float16")


def derive_dtypes(facts: Facts, *, loads_narrow: bool = False) -> None:
    """Add the dtypes of parameters and matmuls."""
    bf16, fp16 = facts.value("bf16", False), facts.value("fp16", False)
    mixed = facts.value("mixed")
    if mixed is not None and not (bf16 or fp16):
        bf16, fp16 = mixed in ("bf16", "fp8"), mixed == "fp16"
    if bf16 and fp16:
        facts.fault("excludes bf16; remove one of the two", "fp16", "mixed")
        return
    names = ("bf16", "fp16", "mixed")
    stored = facts.value("stored")
    if bf16 or fp16:
        narrow = "bfloat16" if bf16 else "float16"
        if not loads_narrow and _autocasts(facts):
            facts.derive(f"{_PRECISION}.params", "float32", *names)
            facts.derive(f"{_PRECISION}.matmul", narrow, *names)
        else:
            facts.derive(f"{_PRECISION}.params", narrow, *names)
        if stored in _NARROW or facts.value("pure"):
            # The optimizer updates parameters in 16 bits, without a float32 copy.
            facts.derive(f"{_PRECISION}.master", None, "stored", "pure")
    elif stored is not None:
        facts.derive(f"{_PRECISION}.params", stored, "stored")
        if stored in _NARROW:
            facts.derive(f"{_PRECISION}.master", None, "stored")
    elif not facts.has(f"{_PRECISION}.params") and not facts.has("deepspeed_file"):
        facts.assume(f"{_PRECISION}.params", "float32", "the program's default: neither bf16 nor fp16")
        if facts.value("tf32"):
            facts.derive(f"{_PRECISION}.matmul", "tf32", "tf32")
    if facts.value("fp8") or mixed == "fp8":
        facts.derive(f"{_PRECISION}.matmul", "float8_e4m3fn", "fp8", "mixed")


def _autocasts(facts: Facts) -> bool:
    """Return True if autocast leaves parameters in float32: all are trained, by neither FSDP nor DeepSpeed."""
    sharded = facts.has("deepspeed_file") or facts.has(f"{_SHARDING}.strategy") or any(map(facts.has, _FSDP_NAMES))
    narrow = facts.value("stored") in _NARROW or facts.value("pure") or facts.value("fp8")
    return not (sharded or narrow or facts.has(f"{_LORA}.rank") or facts.value("mixed") == "fp8")


def derive_optimizer(facts: Facts) -> None:
    """Add the optimizer and the implementation of its update."""
    optimizer = facts.value("optim")
    if optimizer is None:
        return
    name, implementation = optimizer
    facts.derive("training.optimizer.name", name, "optim")
    if implementation is not None:
        facts.derive("training.optimizer.implementation", implementation, "optim")


def derive_fsdp(facts: Facts) -> None:
    """Add the sharding: FSDP's, DeepSpeed's if its file is given too, or DDP."""
    flags = facts.value("fsdp", ())
    names = _FSDP_NAMES
    strategy = facts.value("fsdp_strategy") or next((word for word in flags if word in _FSDP_WORDS), None)
    if "offload" in flags and not facts.has("training.offload"):
        facts.derive("training.offload", "optimizer", "fsdp")
    if facts.value("training.offload") == "optimizer" and (flags or strategy or facts.has("fsdp_version")):
        facts.not_modelled(_PARAMETERS_STAY, "training.offload")
    if strategy is None and not any(facts.has(name) for name in names):
        _without_fsdp(facts)
        return
    keeps = facts.value("fsdp_reshard") is False
    if strategy == "no_shard":
        facts.derive(f"{_SHARDING}.strategy", "ddp", *names)
        return
    facts.derive(f"{_SHARDING}.strategy", "zero3", *names)
    if keeps or strategy in ("shard_grad_op", "hybrid_shard_zero2"):
        facts.derive(f"{_SHARDING}.reshard_after_forward", False, *names)
    if strategy in ("hybrid_shard", "hybrid_shard_zero2") and copies_of(facts) > _NODE:
        # Shards inside a node, copies between nodes.
        facts.derive(f"{_SHARDING}.shard_size", facts.value("gpus_per_node", _NODE), *names)


# GPUs of a node, inside which hybrid sharding stays.
_NODE: Final = 8
_FSDP_WORDS: Final = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")


def _without_fsdp(facts: Facts) -> None:
    if facts.has(f"{_SHARDING}.strategy"):
        return
    if facts.has("deepspeed_file"):
        facts.not_modelled("a file of its own, which is not followed: name it beside this file", "deepspeed_file")
    facts.assume(f"{_SHARDING}.strategy", "ddp", "the program's default: neither FSDP nor DeepSpeed")
