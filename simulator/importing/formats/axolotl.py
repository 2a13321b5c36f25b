"""axolotl: YAML files of `axolotl train`."""

from __future__ import annotations

from typing import Any, Final

from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.hugging_face import (
    FSDP_TABLE,
    LORA_TABLE,
    OPTIMIZER,
    TRAINER_IDLE,
    TRAINER_TABLE,
    derive_lora,
    derive_trainer,
)
from simulator.importing.rules import Means, NotModelled, Table, choice, constant, flag, size, text

_SHARED: Final = (
    "gradient_accumulation_steps", "bf16", "fp16", "tf32", "fp8", "torch_compile", "max_grad_norm", "fsdp", "deepspeed",
    "attn_implementation",
)  # fmt: skip


def _checkpointing(value: Any) -> str | None:
    """Return the checkpointing policy: true, false, or the word of a variant of full checkpointing."""
    return "full" if str(value).lower() in ("true", "unsloth", "offload", "offload_disk") else None


def _offloads(value: Any) -> str | None:
    """Return the word for activations on the host: true, or the name of a variant."""
    return None if str(value).lower() in ("false", "none") else "activations"


_TABLE: Final[Table] = {
    **FSDP_TABLE,
    **LORA_TABLE,
    **{name: TRAINER_TABLE[name] for name in _SHARED},
    "base_model": Means("hub_model", text),
    "sequence_len": Means("training.seq_len", size),
    "micro_batch_size": Means("training.micro_batch_size", size),
    "batch_size": Means("sequences_of_rank", size),
    "optimizer": Means("optim", OPTIMIZER),
    "gradient_checkpointing": Means("training.activation_checkpointing", _checkpointing),
    "activation_offloading": Means("training.offload", _offloads),
    "adapter": Means("adapter", choice({"lora": "lora", "qlora": "qlora", "none": None, "llama-adapter": "other"})),
    "lora_target_linear": Means("lora_all", flag),
    "load_in_4bit": Means("four_bits", flag),
    "load_in_8bit": NotModelled("frozen matrices keep the dtype of the parameters"),
    "gptq": NotModelled("frozen matrices have 4 bits in NF4, or the dtype of the parameters"),
    "flash_attention": Means("training.attention", constant("flash")),
    "sdp_attention": Means("training.attention", constant("flash")),
    "flex_attention": Means("training.attention", constant("flash")),
    "eager_attention": Means("training.attention", constant("eager")),
    "attention": Means("training.attention", choice({"flash": "flash", "sdpa": "flash", "flex": "flash",
                                                     "eager": "eager"})),
    "liger_fused_linear_cross_entropy": Means("training.loss", constant("chunked")),
    "cut_cross_entropy": Means("training.loss", constant("chunked")),
    "flash_attn_cross_entropy": Means("training.loss", constant("fused")),
    "liger_cross_entropy": Means("training.loss", constant("in_place")),
    "tensor_parallel_size": Means("training.parallelism.tp", size),
    "context_parallel_size": Means("training.parallelism.cp", size),
    "sequence_parallel_degree": Means("training.parallelism.cp", size),
    "expert_parallel_size": Means("training.parallelism.ep", size),
    "dp_shard_size": Means("shard_ranks", size),
    "dp_replicate_size": Means("replicas", size),
    "fsdp_version": Means("fsdp_version", size),
    "unfrozen_parameters": NotModelled("every parameter is trained"),
    "relora_steps": NotModelled("adapters are not merged"),
    "sample_packing": Means("packed", flag),
    "pad_to_sequence_len": Means("padded", flag),
    "lisa_n_layers": NotModelled("every layer is trained"),
    "lora_mlp_kernel": NotModelled("kernels of Transformers are taken"),
    "lora_qkv_kernel": NotModelled("kernels of Transformers are taken"),
    "lora_o_kernel": NotModelled("kernels of Transformers are taken"),
    "unsloth_lora_mlp": NotModelled("kernels of Transformers are taken"),
    "qat.weight_dtype": NotModelled("weights are not quantized during training"),
    "ebft.mode": NotModelled("generation is not simulated"),
    "relora": NotModelled("adapters are not merged"),
    "rl": NotModelled("one model is trained; reference models are not simulated"),
}  # fmt: skip

_IDLE: Final = (
    *TRAINER_IDLE, "model_type", "is_*_derived_model", "strict", "datasets", "test_datasets", "val_set_size", "pad_*",
    "wandb_*", "mlflow_*", "comet_*", "num_epochs", "learning_rate", "train_on_inputs", "xformers_attention",
    "special_tokens.*", "early_stopping_*", "lora_*", "hub_*", "plugins", "chat_template*", "flash_attn_*", "liger_*",
    "s2_attention", "shuffle_*", "peft_*", "peft.*", "loss_watchdog_*", "resize_*", "cosine_*", "type", "base_model_*",
    "bnb_config_kwargs.*", "ddp*", "tokens", "added_tokens_overrides.*", "rope_*", "overrides_of_*",
    "curriculum_sampling", "use_tensorboard", "revision_*", "pretraining_dataset", "adapter_*", "qlora_*",
    "auto_resume*", "eval_*", "fp8_*", "flex_attn_*", "xformers_*", "split_thinking", "processor_type", "skip_*",
    "activation_*", "role*", "excess_length_strategy", "heads_k_stride", "ring_attn_func", "mean_resizing_embeddings",
    "dpo_*", "qat.*", "ebft.*", "diffusion.*", "rl_beta", "orpo_*", "kto_*", "trl.*", "sample_packing_*", "multipack_*",
    "experimental_*", "profiler_*", "use_kernels", "model_config.*", "tokens.*", "eot_tokens", "swanlab_*",
    "use_swanlab", "use_wandb", "use_otel*", "otel_*", "ray_*", "use_ray", "eta_min", "lisa_*", "relora_*", "jagged_*",
    "device_map*", "torch_dtype",
)  # fmt: skip


def _derive(facts: Facts) -> None:
    if not facts.value("packed", True) and not facts.value("padded", False):
        facts.not_modelled("every sample has the sequence length; shorter ones are not padded to it", "packed")
    adapter = facts.value("adapter")
    if adapter == "other":
        facts.not_modelled("every parameter is trained", "adapter")
    elif adapter is not None:
        four_bits = adapter == "qlora" or facts.value("four_bits", False)
        derive_lora(facts, "adapter", every=facts.value("lora_all", False), four_bits=four_bits)
    if facts.has("sequences_of_rank") and not facts.has("training.gradient_accumulation_steps"):
        micro = facts.value("training.micro_batch_size", 1)
        steps = max(1, facts.value("sequences_of_rank") // micro)
        facts.derive("training.gradient_accumulation_steps", steps, "sequences_of_rank")
    derive_trainer(facts, micro_batch=1, loads_narrow=True)


FORMAT: Final = Format(
    name="axolotl",
    syntaxes=("mapping",),
    table=_TABLE,
    marks=frozenset({"base_model", "sequence_len", "micro_batch_size"}),
    derive=_derive,
    idle=_IDLE,
    framework="transformers",
)
