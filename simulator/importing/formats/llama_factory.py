"""LLaMA-Factory: YAML files of llamafactory-cli, with the arguments of Hugging Face's Trainer and further keys."""

from __future__ import annotations

from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.formats.trainer import plain_option
from simulator.importing.hugging_face import TRAINER_IDLE, TRAINER_TABLE, derive_lora, derive_trainer
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

_LORA: Final = "training.lora"


_FINETUNING: Final = choice({"full": "full", "lora": "lora", "freeze": "freeze", "oft": "oft"})
_TABLE: Final[Table] = {
    **TRAINER_TABLE,
    "finetuning_type": Means("finetuning", _FINETUNING),
    # The keys of version 1.
    "model": Means("hub_model", text),
    "model_class": Means("model_class", text),
    "micro_batch_size": Means("training.micro_batch_size", size),
    "global_batch_size": Means("sequences", size),
    "peft_config.name": Means("finetuning", _FINETUNING),
    "peft_config.r": Means("lora_rank", size),
    "peft_config.target_modules": Means("lora_target", words),
    "peft_config.lora_dropout": Means("lora_dropout", number),
    "peft_config.freeze_trainable_layers": Means("trained_layers", whole),
    "quant_config.quantization_bit": Means("bits", size),
    "dist_config.name": Means("distributed", text),
    "dist_config.config_file": Means("deepspeed_file", text),
    "dist_config.ep_size": Means("training.parallelism.ep", size),
    "cp_size": Means("training.parallelism.cp", size),
    "cp_mode": Means("training.parallelism.context", choice({"ulysses": "ulysses", "ring": "ring"})),
    "mp_replicate_size": Means("replicas", size),
    "mp_shard_size": Means("shard_ranks", size),
    "enable_activation_checkpointing": Means("checkpointing", flag),
    "use_adam_mini": NotModelled("the states are those of Adam"),
    "use_muon": Means("optim", constant(("muon", None))),
    "use_kt": NotModelled("experts stay on the GPU"),
    "cutoff_len": Means("training.seq_len", size),
    "quantization_bit": Means("bits", size),
    "flash_attn": TRAINER_TABLE["attn_implementation"],
    "pure_bf16": Means("pure", flag),
    "enable_liger_kernel": Means("training.loss", constant("chunked")),
    "sequence_parallel_size": Means("training.parallelism.cp", size),
    "disable_gradient_checkpointing": Means("no_checkpointing", flag),
    "use_unsloth": NotModelled("kernels of Transformers are taken"),
    "use_unsloth_gc": NotModelled("checkpoints stay on the GPU"),
    "use_galore": NotModelled("low-rank projections of gradients are not simulated"),
    "use_apollo": NotModelled("low-rank projections of gradients are not simulated"),
    "use_badam": NotModelled("every parameter is updated in every step"),
    "freeze_trainable_layers": Means("trained_layers", whole),
    "freeze_trainable_modules": NotModelled("whole layers are trained", harmless=("all",)),
    "freeze_vision_tower": NotModelled("the language model alone is simulated"),
    "stage": Means("stage", choice({name: name for name in ("pt", "sft", "rm", "ppo", "dpo", "kto")})),
    "mixture_of_depths": NotModelled("every token passes every layer"),
    "shift_attn": NotModelled("attention sees the whole sequence"),
    "packing": NotModelled("", harmless=(True, False)),
    "modules_to_save": Means("saved_modules", words),
}  # fmt: skip

_IDLE: Final = (
    *TRAINER_IDLE, "dataset", "template", "val_size", "lora_alpha", "lora_*", "loraplus_*", "rope_scaling", "pref_*",
    "ref_model", "reward_model", "use_rslora", "use_dora", "pissa_*", "additional_target", "quantization_*",
    "double_quantization", "mask_history", "train_on_prompt", "tokenized_path", "neat_packing", "infer_*", "vllm_*",
    "image_*", "video_*", "media_dir", "swanlab_*", "use_swanlab", "ray_*", "resize_vocab", "new_special_tokens",
    "upcast_*", "enable_thinking", "buffer_size", "mix_strategy", "interleave_probs", "fp8_*", "adapter_name_or_path",
    "export_*", "compute_accuracy", "split_special_tokens", "moe_aux_loss_coef", "use_cache", "freeze_*",
    "peft_config.*", "quant_config.*", "dist_config.*", "kernel_config.*", "init_config.*", "optim_config.*",
    "comms_config.*", "train_dataset", "eval_dataset", "sample_backend", "max_new_tokens", "kt_*", "oft_*", "apollo_*",
    "galore_*", "badam_*", "asft_*", "use_*_loss", "batching_strategy",
)  # fmt: skip


def _derive(facts: Facts) -> None:
    # Version 1 trains every parameter unless it has a peft_config.
    finetuning = facts.value("finetuning", "full" if facts.has("model_class") else "lora")
    if facts.value("distributed", "").startswith("fsdp"):
        facts.derive("fsdp_strategy", "full_shard", "distributed")
    if finetuning == "lora":
        bits = facts.value("bits")
        derive_lora(facts, "finetuning", four_bits=bits == 4)
        if bits not in (None, 4):
            facts.not_modelled("frozen matrices keep the dtype of the parameters", "bits")
    elif finetuning == "freeze":
        why = "every parameter is trained; write trainable: [layers 30-31] into the scenario"
        facts.not_modelled(why, "finetuning", "trained_layers")
    elif finetuning == "oft":
        facts.not_modelled("every parameter is trained", "finetuning")
    if facts.value("stage", "sft") not in ("pt", "sft"):
        facts.not_modelled("one model is trained; reference and reward models are not simulated", "stage")
    if not facts.value("no_checkpointing", False):
        policy = "full" if facts.value("checkpointing", True) else "none"
        facts.derive("training.activation_checkpointing", policy, "checkpointing", otherwise="LLaMA-Factory's default")
    if facts.has("model_class"):
        facts.assume("training.precision.params", "bfloat16", "LLaMA-Factory 1's default")
        facts.assume("training.parallelism.context", "ulysses", "LLaMA-Factory 1's default")
    facts.assume("training.seq_len", 2048, "LLaMA-Factory's default of cutoff_len")
    derive_trainer(facts)


FORMAT: Final = Format(
    name="LLaMA-Factory",
    syntaxes=("mapping", "shell"),
    table=_TABLE,
    marks=frozenset({"finetuning_type", "cutoff_len", "lora_target", "template", "model_class"}),
    derive=_derive,
    idle=_IDLE,
    plain=plain_option,
    framework="transformers",
)
