"""Megatron-LM: arguments of pretrain_gpt.py, in a script, in a file of arguments, or in a YAML file's MODEL_ARGS.

Names, meanings and defaults follow megatron/training/arguments.py. An option that is not given has its default.
"""

from __future__ import annotations

from typing import Final

from simulator.importing import megatron_settings
from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.launchers import IDLE, LAUNCHERS
from simulator.importing.machine import WORLD
from simulator.importing.rules import (
    Means,
    NotModelled,
    Table,
    choice,
    constant,
    flag,
    number,
    off,
    size,
    text,
    whole,
    words,
)
from simulator.importing.zero_stage import STAGE, STAGES, derive_strategy

_PARALLELISM: Final = "training.parallelism"
_PRECISION: Final = "training.precision"
_SHARDING: Final = "training.sharding"
_DEFAULT: Final = "Megatron-LM's default"
_STRATEGIES: Final = choice(
    {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
)
_OPTIMIZERS: Final = choice({"adam": "adam", "sgd": "momentum", "muon": "muon", "dist_muon": "dist_muon",
                             "lion": "lion"})  # fmt: skip
_DTYPES: Final = choice({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"})
_IMPLEMENTATIONS: Final = choice({"local": "local", "transformer_engine": "te", "inference_optimized": "te"})
_TABLE: Final[Table] = {
    **LAUNCHERS,
    **megatron_settings.ARCHITECTURE,
    "world-size": Means(WORLD, size, needed=False),
    "swiglu": Means("shape.gated", flag),
    "quick-geglu": Means("shape.gated", flag),
    "squared-relu": NotModelled("the cost of a GELU is taken"),
    "group-query-attention": Means("grouped", flag),
    "max-position-embeddings": Means("shape.max_positions", size),
    "untie-embeddings-and-output-weights": Means("shape.tied", off),
    "disable-bias-linear": Means("shape.mlp_bias", off),
    "no-position-embedding": Means("no_positions", flag),
    "use-rotary-position-embeddings": Means("rotary", flag),
    "vocab-size": Means("shape.vocab_size", size),
    "padded-vocab-size": Means("shape.vocab_size", size),
    "make-vocab-size-divisible-by": NotModelled("the vocabulary is not padded", harmless=()),
    "num-experts": Means("shape.num_experts", size),
    "micro-batch-size": Means("training.micro_batch_size", size),
    "global-batch-size": Means("sequences", size),
    "rampup-batch-size": NotModelled("the final global batch is simulated"),
    "step-batch-size-schedule": NotModelled("the final global batch is simulated"),
    "num-layers-per-virtual-pipeline-stage": Means("layers_per_chunk", size),
    "num-virtual-stages-per-pipeline-rank": Means("virtual", size),
    "microbatch-group-size-per-virtual-pipeline-stage": Means(f"{_PARALLELISM}.microbatch_group", size),
    "decoder-first-pipeline-num-layers": Means("first_layers", size),
    "decoder-last-pipeline-num-layers": Means("last_layers", size),
    "account-for-embedding-in-pipeline-split": Means("first_less", flag),
    "account-for-loss-in-pipeline-split": Means("last_less", flag),
    "pipeline-model-parallel-layout": Means("layout", megatron_settings.read_layout),
    "overlap-p2p-communication-warmup-flush": NotModelled("stages exchange as in plain interleaving"),
    "hierarchical-context-parallel-sizes": Means("context_sizes", words),
    "tp-comm-overlap": Means(f"{_PARALLELISM}.tp_overlap", constant("ring_exchange")),
    "use-tp-pp-dp-mapping": Means(f"{_PARALLELISM}.order", constant(["tp", "cp", "ep", "pp", "dp"])),
    "use-distributed-optimizer": Means("distributed_optimizer", flag),
    "use-torch-fsdp2": Means("torch_fsdp", flag),
    "use-megatron-fsdp": Means("fsdp", flag),
    "use-custom-fsdp": Means("fsdp", flag),
    "data-parallel-sharding-strategy": Means("fsdp_strategy", _STRATEGIES),
    "num-distributed-optimizer-instances": Means("optimizer_instances", size),
    "overlap-grad-reduce": Means("overlap", flag),
    "ddp-bucket-size": Means("bucket_elements", size),
    "overlap-param-gather": NotModelled("parameters are gathered after the update, before the next step"),
    "overlap-param-gather-with-optimizer-step": NotModelled("parameters are gathered after the update"),
    "overlap-moe-expert-parallel-comm": Means(f"{_PARALLELISM}.experts.overlap", flag),
    "moe-shared-expert-overlap": NotModelled("shared experts run before or after the exchange of tokens"),
    "moe-enable-deepep": Means(f"{_PARALLELISM}.experts.dispatch", constant("deduplicated")),
    "mtp-num-layers": Means("training.mtp_layers", whole),
    "recompute-activations": Means("recompute", constant("selective")),
    "checkpoint-activations": Means("recompute", constant("full")),
    "moe-layer-recompute": NotModelled("expert layers are not recomputed on their own"),
    "use-flash-attn": Means("training.attention", constant("flash")),
    "no-masked-softmax-fusion": Means("no_softmax_fusion", flag),
    "attention-softmax-in-fp32": Means("softmax_fp32", flag),
    "apply-query-key-layer-scaling": Means("query_key_scaling", flag),
    "transformer-impl": Means("implementation", _IMPLEMENTATIONS),
    "fp8-format": Means("fp8", choice({"e4m3": True, "hybrid": True})),
    "fp8": Means("fp8", choice({"e4m3": True, "hybrid": True})),
    "fp4-format": Means("fp4", choice({"e2m1": True})),
    "fp8-param-gather": NotModelled("parameters are gathered in 16 bits"),
    "accumulate-allreduce-grads-in-fp32": Means("grads_fp32", flag),
    "grad-reduce-in-bf16": Means("grads_bf16", flag),
    "optimizer": Means("optimizer", _OPTIMIZERS),
    "exp-avg-dtype": Means("moment_dtype", _DTYPES),
    "exp-avg-sq-dtype": Means("second_moment_dtype", _DTYPES),
    "main-params-dtype": NotModelled("the optimizer's copy is float32", harmless=("fp32",)),
    "main-grads-dtype": Means("main_grads", _DTYPES),
    "optimizer-cpu-offload": Means("offloads", flag),
    "optimizer-offload-fraction": Means("offload_fraction", number),
    "cpu-offloading": Means("training.offload.activations", flag),
    "fine-grained-activation-offloading": NotModelled("activations stay on the GPU"),
    "loss-scale": Means("static_scale", number),
    "initial-loss-scale": Means("training.loss_scaling.start", number),
    "enable-cuda-graph": Means("cuda_graphs", flag),
    "cuda-graph-impl": Means("cuda_graph_kind", text),
    "cuda-graph-scope": Means("cuda_graph_scopes", words),
    "external-cuda-graph": Means("cuda_graphs", flag),
    "zero-stage": Means(STAGE, STAGES),
    "clip-grad": Means("training.clip_norm", lambda value: number(value) or None),
    "perform-rl-step": NotModelled("generation between the steps is not simulated"),
    "window-attn-skip-freq": NotModelled("every query sees every earlier key"),
    "softmax-type": NotModelled("heads have no learned score beside the keys", harmless=("vanilla",)),
    "defer-embedding-wgrad-compute": Means("defers_head", flag),
    "wgrad-deferral-limit": Means("deferral_limit", whole),
    "use-nccl-ub": NotModelled("user buffers for collectives are not simulated"),
    "fsdp-double-buffer": NotModelled("gathered layers are allocated one by one"),
    "window-size": NotModelled("every query sees every earlier key"),
    "calculate-per-token-loss": NotModelled("gradients are divided by a constant", harmless=(True, None)),
    "is-hybrid-model": NotModelled("", harmless=(True, False)),
    "experimental-attention-variant": NotModelled("attention is that of GPT"),
    "fp32-residual-connection": NotModelled("activations between layers have 16 bits"),
    "distribute-saved-activations": NotModelled("each tensor-parallel rank keeps its checkpoints"),
    "nccl-ub": NotModelled("user buffers for collectives are not simulated"),
    "use-sharp": NotModelled("sums in network switches are not simulated"),
    "deepspeed-config": Means("deepspeed_config", text),
}  # fmt: skip

_IDLE: Final = (
    *IDLE,
    # Data, tokenizer, checkpoints, logs, schedules of learning rates.
    "*data*", "*tokenizer*", "vocab-*", "merge-file", "split", "*-split", "train-*", "valid-*", "test-*", "eval*",
    "log-*", "*tensorboard*", "wandb-*", "timing-*", "profile*", "save*", "load", "load-*", "*ckpt*", "*checkpoint*",
    "dist-*", "*lr*", "*weight-decay*", "adam-*", "sgd-momentum", "muon-*", "init-method-*", "seed", "exit-*",
    "finetune", "num-workers", "num-dataset-builder-threads", "*-iters", "*-samples", "*interval", "rotary-*", "rope-*",
    "use-rope-*", "no-rope-fusion", "norm-epsilon", "layernorm-epsilon", "apply-layernorm-1p",
    "no-bias-*", "no-gradient-accumulation-fusion",
    "no-persist-layer-norm", "no-async-tensor-model-parallel-allreduce", "use-mcore-models", "use-legacy-models",
    "use-cpu-initialization", "distributed-*", "local-rank", "lazy-*", "manual-gc*", "empty-unused-memory-level",
    "disable-*", "check-*", "no-check-*", "override-*", "use-checkpoint-*", "tiktoken-*", "*mmap*", "reset-*",
    "eod-mask-loss", "moe-aux-loss-coeff", "moe-z-loss-coeff", "moe-router-*", "moe-grouped-gemm", "moe-permute-fusion",
    "moe-pad-expert-input-to-capacity", "moe-token-drop-policy", "fp8-amax-*", "fp8-margin", "fp8-interval",
    "loss-scale-window", "min-loss-scale", "hysteresis", "deterministic-mode", "high-priority-*", "kitchen-*", "bert-*",
    "spec", "te-rng-tracker", "ddp-average-in-collective", "rampup-*", "mask-prob", "short-seq-prob", "deepspeed",
    "no-pipeline-parallel", "use-precision-aware-optimizer", "ENV_VARS.*", "TEST_TYPE", "LAUNCHER", "METRICS", "MODE",
    "BEFORE_SCRIPT", "AFTER_SCRIPT", "use-dist-ckpt", "beta-*", "mscale*", "original-max-position-embeddings",
    "query-in-block-prob", "first-last-layers-bf16", "num-layers-at-*-in-bf16", "use-fused-weighted-squared-relu",
    "align-*", "no-overlap-p2p-communication", "cross-entropy-*", "overlap-p2p-*", "async-*", "no-load-*", "no-save-*",
    "straggler-*", "flash-decode", "inference-*",
    "record-memory-history", "logging-level", "trust-remote-code", "rl-*", "grpo-*", "langrl-*", "temperature", "top-k",
    "top-p", "prompt*", "output-path", "mup-*", "use-mup", "tp-comm-overlap-cfg", "moe-flex-dispatcher-backend",
    "mtp-loss-scaling-factor", "use-flashinfer-*", "verify-integrity", "max-tokens-to-oom", "num-tokens-to-generate",
    "return-log-probs", "incoming-requests-*", "enable-chunked-prefill", "export-*", "fim-*", "glu-linear-offset",
    "model-provider", "init-model-with-meta-device", "fsdp-manual-registration", "enable-experimental", "use-te",
    "use-loss-scaling", "mamba-*", "config-logger-dir", "enable-gloo-process-groups", "disable-gloo-process-groups",
    "tp-comm-bootstrap-backend", "nccl-communicator-config-path", "delay-*",
)  # fmt: skip


def _plain(key: str) -> str:
    option = key.removeprefix("MODEL_ARGS.")
    # Other keys of a YAML or JSON file are no arguments, whatever their names.
    return option.lstrip("-").replace("_", "-") if option.startswith("-") else key


def _derive(facts: Facts) -> None:
    facts.assume(f"{_PARALLELISM}.sequence_parallel", False, _DEFAULT)
    megatron_settings.derive_shape(facts)
    if facts.value("shape.num_experts") and facts.value(f"{_PARALLELISM}.ep", 1) > 1:
        facts.assume(f"{_PARALLELISM}.experts.dispatch", "all_gather", _DEFAULT)
    megatron_settings.derive_schedule(facts)
    _derive_precision(facts)
    _derive_sharding(facts)
    megatron_settings.derive_recompute(facts)
    megatron_settings.derive_graphs(facts)
    megatron_settings.derive_step(facts)
    facts.assume("training.micro_batch_size", 1, "Megatron-LM requires it; 1 is taken")


def _derive_precision(facts: Facts) -> None:
    bf16, fp16 = facts.value("bf16", False), facts.value("fp16", False)
    if bf16 and fp16:
        facts.fault("excludes --bf16; remove one of the two", "fp16")
    params = "bfloat16" if bf16 else "float16" if fp16 else "float32"
    why = f"{_DEFAULT}: neither --bf16 nor --fp16"
    facts.derive(f"{_PRECISION}.params", params, "bf16" if bf16 else "fp16", otherwise=why)
    # With bf16, gradients are summed in float32 unless --grad-reduce-in-bf16 or another dtype of them is given.
    main = facts.value("main_grads", "float32") == "float32"
    wide = facts.value("grads_fp32", False) or (bf16 and main and not facts.value("grads_bf16", False))
    sums = "float32" if wide else params
    for key in ("grads", "reduce"):
        why = f"{_DEFAULT} for {params}"
        facts.derive(f"{_PRECISION}.{key}", sums, "grads_fp32", "grads_bf16", "main_grads", otherwise=why)
    if facts.value("static_scale") and fp16:
        facts.derive("training.loss_scaling.rule", "static", "static_scale")
        facts.derive("training.loss_scaling.start", facts.value("static_scale"), "static_scale")
    megatron_settings.derive_low_precision(facts)


def _derive_sharding(facts: Facts) -> None:
    strategy = f"{_SHARDING}.strategy"
    # Fully sharded data parallelism replaces the distributed optimizer.
    if facts.value("torch_fsdp"):
        facts.derive(strategy, "zero3", "torch_fsdp")
    elif facts.value("fsdp"):
        # Without a strategy of its own, Megatron FSDP shards nothing.
        facts.derive(strategy, facts.value("fsdp_strategy", "ddp"), "fsdp", "fsdp_strategy")
    elif facts.has(STAGE):
        derive_strategy(facts)
    elif facts.value("distributed_optimizer"):
        facts.derive(strategy, "zero1", "distributed_optimizer")
    facts.assume(strategy, "ddp", f"{_DEFAULT}: no --use-distributed-optimizer")
    megatron_settings.derive_buckets(facts)


FORMAT: Final = Format(
    name="Megatron-LM",
    syntaxes=("shell", "mapping"),
    table=_TABLE,
    marks=frozenset({"num-attention-heads", "tensor-model-parallel-size", "micro-batch-size", "seq-length"}),
    derive=_derive,
    idle=_IDLE,
    plain=_plain,
    framework="megatron_core",
)
