"""LLaMA-Factory: YAML files of llamafactory-cli, with the arguments of Hugging Face's Trainer and further keys."""

from __future__ import annotations

from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.formats.trainer import plain_option
from simulator.importing.hugging_face import TRAINER_IDLE, TRAINER_TABLE, derive_lora, derive_trainer
from simulator.importing.rules import Means, NotModelled, Table, choice, constant, flag, size, whole, words

_LORA: Final = "training.lora"


_TABLE: Final[Table] = {
    **TRAINER_TABLE,
    "finetuning_type": Means("finetuning", choice({"full": "full", "lora": "lora", "freeze": "freeze", "oft": "oft"})),
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
)  # fmt: skip


def _derive(facts: Facts) -> None:
    finetuning = facts.value("finetuning", "lora")
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
        why = "LLaMA-Factory's default"
        facts.assume("training.activation_checkpointing", "full", why)
    facts.assume("training.seq_len", 2048, "LLaMA-Factory's default of cutoff_len")
    derive_trainer(facts)


FORMAT: Final = Format(
    name="LLaMA-Factory",
    syntaxes=("mapping", "shell"),
    table=_TABLE,
    marks=frozenset({"finetuning_type", "cutoff_len", "lora_target", "template"}),
    derive=_derive,
    idle=_IDLE,
    plain=plain_option,
    framework="transformers",
)
