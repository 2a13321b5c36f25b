"""Megatron-LM: arguments of pretrain_gpt.py, in a script, in a file of arguments, or in a YAML file's MODEL_ARGS.

Names, meanings and defaults follow megatron/training/arguments.py. An option that is not given has its default.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.importing.facts import Facts
from simulator.importing.format import Format
from simulator.importing.launchers import IDLE, LAUNCHERS
from simulator.importing.machine import WORLD, copies_of
from simulator.importing.rules import (
    Means,
    NotModelled,
    Reader,
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
# Bucket that holds every gradient [B]: without overlap, gradients travel after the backward pass.
_ONE_BUCKET: Final = "1 PiB"
# Elements of a bucket if gradients overlap: the larger of a constant and a number for each data-parallel rank.
_BUCKET, _BUCKET_PER_RANK = 40_000_000, 1_000_000

_STRATEGIES: Final = choice(
    {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
)
_CONTEXTS: Final = choice({"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "ulysses",
                           "a2a+p2p": "both"})  # fmt: skip
_DISPATCHERS: Final = choice({"allgather": "all_gather", "alltoall": "all_to_all", "alltoall_seq": "all_to_all",
                              "flex": "deduplicated"})  # fmt: skip
_BACKENDS: Final = choice({"auto": "flash", "flash": "flash", "fused": "flash", "unfused": "standard",
                           "local": "standard"})  # fmt: skip
_OPTIMIZERS: Final = choice({"adam": "adam", "sgd": "momentum", "muon": "muon", "dist_muon": "dist_muon",
                             "lion": "lion"})  # fmt: skip
_RECIPES: Final = choice({"delayed": "tensor", "tensorwise": "tensor", "blockwise": "block", "mxfp8": "tensor",
                          "custom": "tensor"})  # fmt: skip
_DTYPES: Final = choice({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"})
_IMPLEMENTATIONS: Final = choice({"local": "local", "transformer_engine": "te", "inference_optimized": "te"})
_NORMS: Final = choice({"layernorm": "layernorm", "rmsnorm": "rmsnorm"})
_POSITIONS: Final = choice({"learned_absolute": "learned", "rope": "rotary", "yarn": "rotary", "none": "none",
                            "mrope": "rotary", "relative": "none"})  # fmt: skip


def _layer_pattern(value: Any) -> Any:
    """Return the pattern of layers with experts: k for every k-th layer, or a list of 0 and 1."""
    from ast import literal_eval

    if isinstance(value, list) and all(one in (0, 1) for one in value):
        return tuple(value)
    try:
        return size(value)
    except ValueError:
        pass
    # Lists are written as in Python: "[1]*61", "([0]*3+[1]*58)".
    written, pattern = str(value).strip("()' \""), list[int]()
    for piece in written.split("+"):
        listed, _, times = piece.strip().partition("*")
        try:
            found = literal_eval(listed.strip())
            repeated = whole(times) if times else 1
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found, repeated = None, 0
        if not (isinstance(found, list) and all(one in (0, 1) for one in found) and repeated * len(found) < 10_000):
            raise ValueError(f"got {written[:60]!r}; must be a number, or a list such as [0]*3+[1]*58")
        pattern += found * repeated
    return tuple(pattern)


def _means(fact: str, read: Reader) -> Means:
    return Means(fact, read)


def architecture(prefix: str = "") -> dict[str, Means]:
    """Return the table of the numbers of a model, which Megatron-Bridge names alike."""
    return {f"{prefix}{name}": rule for name, rule in _ARCHITECTURE.items()}


_ARCHITECTURE: Final = {
    "num-layers": _means("shape.num_layers", size),
    "hidden-size": _means("shape.hidden_size", size),
    "ffn-hidden-size": _means("ffn", size),
    "num-attention-heads": _means("shape.num_heads", size),
    "num-query-groups": _means("query_groups", size),
    "kv-channels": _means("shape.head_dim", size),
    "normalization": _means("shape.norm", _NORMS),
    "position-embedding-type": _means("shape.positions", _POSITIONS),
    "add-qkv-bias": _means("qkv_bias", flag),
    "qk-layernorm": _means("qk_layernorm", flag),
    "moe-ffn-hidden-size": _means("expert_ffn", size),
    "moe-shared-expert-intermediate-size": _means("shared_ffn", size),
    "moe-router-topk": _means("shape.active_experts", size),
    "moe-layer-freq": _means("expert_pattern", _layer_pattern),
    "moe-router-enable-expert-bias": _means("shape.router_bias", flag),
    "multi-latent-attention": _means("latent", flag),
    "q-lora-rank": _means("latent.query_rank", size),
    "kv-lora-rank": _means("latent.kv_rank", size),
    "qk-head-dim": _means("latent.plain_dim", size),
    "qk-pos-emb-head-dim": _means("latent.rotary_dim", size),
    "v-head-dim": _means("latent.value_dim", size),
    "seq-length": _means("training.seq_len", size),
    "tensor-model-parallel-size": _means(f"{_PARALLELISM}.tp", size),
    "pipeline-model-parallel-size": _means(f"{_PARALLELISM}.pp", size),
    "context-parallel-size": _means(f"{_PARALLELISM}.cp", size),
    "expert-model-parallel-size": _means(f"{_PARALLELISM}.ep", size),
    "expert-tensor-parallel-size": _means(f"{_PARALLELISM}.etp", size),
    "sequence-parallel": _means(f"{_PARALLELISM}.sequence_parallel", flag),
    "moe-expert-capacity-factor": _means(f"{_PARALLELISM}.experts.capacity", number),
    "moe-token-dispatcher-type": _means(f"{_PARALLELISM}.experts.dispatch", _DISPATCHERS),
    "attention-backend": _means("training.attention", _BACKENDS),
    "recompute-granularity": _means("recompute", choice({"full": "full", "selective": "selective"})),
    "recompute-method": _means("recompute_method", choice({"uniform": "uniform", "block": "block"})),
    "recompute-num-layers": _means("recompute_layers", size),
    "recompute-modules": _means("recompute_modules", words),
    "attention-dropout": _means("attention_dropout", number),
    "hidden-dropout": _means("hidden_dropout", number),
    "cross-entropy-loss-fusion": _means("loss_fusion", flag),
    "cross-entropy-fusion-impl": _means("loss_fusion_kind", choice({"native": "native", "te": "te"})),
    "microbatch-group-size-per-vp-stage": _means(f"{_PARALLELISM}.microbatch_group", size),
    "cp-comm-type": _means("context", _CONTEXTS),
    "bf16": _means("bf16", flag),
    "fp16": _means("fp16", flag),
    "fp8-recipe": _means("fp8_recipe", _RECIPES),
}  # fmt: skip

_TABLE: Final[Table] = {
    **LAUNCHERS,
    **_ARCHITECTURE,
    "world-size": Means(WORLD, size, needed=False),
    "swiglu": _means("shape.gated", flag),
    "quick-geglu": _means("shape.gated", flag),
    "squared-relu": NotModelled("the cost of a GELU is taken"),
    "group-query-attention": _means("grouped", flag),
    "max-position-embeddings": _means("shape.max_positions", size),
    "untie-embeddings-and-output-weights": _means("shape.tied", off),
    "disable-bias-linear": _means("shape.mlp_bias", off),
    "no-position-embedding": _means("no_positions", flag),
    "use-rotary-position-embeddings": _means("rotary", flag),
    "vocab-size": _means("shape.vocab_size", size),
    "padded-vocab-size": _means("shape.vocab_size", size),
    "make-vocab-size-divisible-by": NotModelled("the vocabulary is not padded", harmless=()),
    "num-experts": _means("shape.num_experts", size),
    "micro-batch-size": _means("training.micro_batch_size", size),
    "global-batch-size": _means("sequences", size),
    "rampup-batch-size": NotModelled("the final global batch is simulated"),
    "step-batch-size-schedule": NotModelled("the final global batch is simulated"),
    "num-layers-per-virtual-pipeline-stage": _means("layers_per_chunk", size),
    "num-virtual-stages-per-pipeline-rank": _means("virtual", size),
    "microbatch-group-size-per-virtual-pipeline-stage": _means(f"{_PARALLELISM}.microbatch_group", size),
    "decoder-first-pipeline-num-layers": _means("first_layers", size),
    "decoder-last-pipeline-num-layers": _means("last_layers", size),
    "account-for-embedding-in-pipeline-split": _means("first_less", flag),
    "account-for-loss-in-pipeline-split": _means("last_less", flag),
    "pipeline-model-parallel-layout": NotModelled("layers are distributed evenly over stages"),
    "overlap-p2p-communication-warmup-flush": NotModelled("stages exchange as in plain interleaving"),
    "hierarchical-context-parallel-sizes": _means("context_sizes", words),
    "tp-comm-overlap": _means(f"{_PARALLELISM}.tp_overlap", constant("ring_exchange")),
    "use-tp-pp-dp-mapping": _means(f"{_PARALLELISM}.order", constant(["tp", "cp", "ep", "pp", "dp"])),
    "use-distributed-optimizer": _means("distributed_optimizer", flag),
    "use-torch-fsdp2": _means("torch_fsdp", flag),
    "use-megatron-fsdp": _means("fsdp", flag),
    "use-custom-fsdp": _means("fsdp", flag),
    "data-parallel-sharding-strategy": _means("fsdp_strategy", _STRATEGIES),
    "num-distributed-optimizer-instances": _means("optimizer_instances", size),
    "overlap-grad-reduce": _means("overlap", flag),
    "ddp-bucket-size": _means("bucket_elements", size),
    "overlap-param-gather": NotModelled("parameters are gathered after the update, before the next step"),
    "overlap-param-gather-with-optimizer-step": NotModelled("parameters are gathered after the update"),
    "overlap-moe-expert-parallel-comm": NotModelled("the exchange of tokens does not overlap with other layers"),
    "moe-shared-expert-overlap": NotModelled("shared experts run before or after the exchange of tokens"),
    "moe-enable-deepep": _means(f"{_PARALLELISM}.experts.dispatch", constant("deduplicated")),
    "mtp-num-layers": NotModelled("layers that predict further tokens are not simulated"),
    "recompute-activations": _means("recompute", constant("selective")),
    "checkpoint-activations": _means("recompute", constant("full")),
    "moe-layer-recompute": NotModelled("expert layers are not recomputed on their own"),
    "use-flash-attn": _means("training.attention", constant("flash")),
    "transformer-impl": _means("implementation", _IMPLEMENTATIONS),
    "fp8-format": _means("fp8", choice({"e4m3": True, "hybrid": True})),
    "fp8": _means("fp8", choice({"e4m3": True, "hybrid": True})),
    "fp4-format": _means("fp4", choice({"e2m1": True})),
    "fp8-param-gather": NotModelled("parameters are gathered in 16 bits"),
    "accumulate-allreduce-grads-in-fp32": _means("grads_fp32", flag),
    "grad-reduce-in-bf16": _means("grads_bf16", flag),
    "optimizer": _means("training.optimizer.name", _OPTIMIZERS),
    "exp-avg-dtype": _means("moment_dtype", _DTYPES),
    "exp-avg-sq-dtype": _means("second_moment_dtype", _DTYPES),
    "main-params-dtype": NotModelled("the optimizer's copy is float32", harmless=("fp32",)),
    "main-grads-dtype": NotModelled("the optimizer reads gradients in float32", harmless=("fp32",)),
    "optimizer-cpu-offload": _means("training.offload", constant("optimizer")),
    "cpu-offloading": _means("training.offload", constant("activations")),
    "fine-grained-activation-offloading": NotModelled("activations stay on the GPU"),
    "loss-scale": _means("training.loss_scaling.start", number),
    "initial-loss-scale": _means("training.loss_scaling.start", number),
    "enable-cuda-graph": NotModelled("the host issues every kernel"),
    "cuda-graph-impl": NotModelled("the host issues every kernel"),
    "external-cuda-graph": NotModelled("the host issues every kernel"),
    "zero-stage": _means(STAGE, STAGES),
    "clip-grad": _means("training.clip_norm", lambda value: number(value) or None),
    "perform-rl-step": NotModelled("generation between the steps is not simulated"),
    "hybrid-override-pattern": NotModelled("every layer has attention"),
    "hybrid-layer-pattern": NotModelled("every layer has attention"),
    "window-attn-skip-freq": NotModelled("every query sees every earlier key"),
    "softmax-type": NotModelled("heads have no learned score beside the keys", harmless=("vanilla",)),
    "defer-embedding-wgrad-compute": NotModelled("the head's weight gradients are not deferred"),
    "use-nccl-ub": NotModelled("user buffers for collectives are not simulated"),
    "fsdp-double-buffer": NotModelled("gathered layers are allocated one by one"),
    "window-size": NotModelled("every query sees every earlier key"),
    "calculate-per-token-loss": NotModelled("gradients are divided by a constant", harmless=(True, None)),
    "is-hybrid-model": NotModelled("every layer has attention"),
    "experimental-attention-variant": NotModelled("attention is that of GPT"),
    "fp32-residual-connection": NotModelled("activations between layers have 16 bits"),
    "distribute-saved-activations": NotModelled("each tensor-parallel rank keeps its checkpoints"),
    "nccl-ub": NotModelled("user buffers for collectives are not simulated"),
    "use-sharp": NotModelled("sums in network switches are not simulated"),
    "deepspeed-config": _means("deepspeed_config", text),
}  # fmt: skip

_IDLE: Final = (
    *IDLE,
    # Data, tokenizer, checkpoints, logs, schedules of learning rates.
    "*data*", "*tokenizer*", "vocab-*", "merge-file", "split", "*-split", "train-*", "valid-*", "test-*", "eval*",
    "log-*", "*tensorboard*", "wandb-*", "timing-*", "profile*", "save*", "load", "load-*", "*ckpt*", "*checkpoint*",
    "dist-*", "*lr*", "*weight-decay*", "adam-*", "sgd-momentum", "muon-*", "init-method-*", "seed", "exit-*",
    "finetune", "num-workers", "num-dataset-builder-threads", "*-iters", "*-samples", "*interval", "rotary-*", "rope-*",
    "use-rope-*", "no-rope-fusion", "norm-epsilon", "layernorm-epsilon", "apply-layernorm-1p",
    "attention-softmax-in-fp32", "no-masked-softmax-fusion", "no-bias-*", "no-gradient-accumulation-fusion",
    "no-persist-layer-norm", "no-async-tensor-model-parallel-allreduce", "use-mcore-models", "use-legacy-models",
    "use-cpu-initialization", "distributed-*", "local-rank", "lazy-*", "manual-gc*", "empty-unused-memory-level",
    "disable-*", "check-*", "no-check-*", "override-*", "use-checkpoint-*", "tiktoken-*", "*mmap*", "reset-*",
    "eod-mask-loss", "moe-aux-loss-coeff", "moe-z-loss-coeff", "moe-router-*", "moe-grouped-gemm", "moe-permute-fusion",
    "moe-pad-expert-input-to-capacity", "moe-token-drop-policy", "fp8-amax-*", "fp8-margin", "fp8-interval",
    "loss-scale-window", "min-loss-scale", "hysteresis", "deterministic-mode", "high-priority-*", "kitchen-*", "bert-*",
    "spec", "te-rng-tracker", "ddp-average-in-collective", "rampup-*", "mask-prob", "short-seq-prob", "deepspeed",
    "no-pipeline-parallel", "use-precision-aware-optimizer", "ENV-VARS.*", "TEST-TYPE", "LAUNCHER", "METRICS", "MODE",
    "BEFORE-SCRIPT", "AFTER-SCRIPT", "use-dist-ckpt", "beta-*", "mscale*", "original-max-position-embeddings",
    "query-in-block-prob", "first-last-layers-bf16", "num-layers-at-*-in-bf16", "use-fused-weighted-squared-relu",
    "align-*", "no-overlap-p2p-communication", "cross-entropy-*", "overlap-p2p-*", "async-*", "no-load-*", "no-save-*",
    "apply-query-key-layer-scaling", "straggler-*", "wgrad-deferral-limit", "flash-decode", "inference-*",
    "record-memory-history", "logging-level", "trust-remote-code", "rl-*", "grpo-*", "langrl-*", "temperature", "top-k",
    "top-p", "prompt*", "output-path", "mup-*", "use-mup", "tp-comm-overlap-cfg", "verify-integrity",
    "max-tokens-to-oom", "num-tokens-to-generate", "return-log-probs", "incoming-requests-*", "enable-chunked-prefill",
    "export-*", "fim-*", "glu-linear-offset", "model-provider", "init-model-with-meta-device",
    "fsdp-manual-registration", "enable-experimental", "use-te", "use-loss-scaling", "mamba-*", "config-logger-dir",
    "enable-gloo-process-groups", "disable-gloo-process-groups", "tp-comm-bootstrap-backend",
    "nccl-communicator-config-path", "delay-*",
)  # fmt: skip


def _plain(key: str) -> str:
    return key.removeprefix("MODEL_ARGS.").lstrip("-").replace("_", "-")


def _derive(facts: Facts) -> None:
    facts.assume(f"{_PARALLELISM}.sequence_parallel", False, _DEFAULT)
    derive_shape(facts)
    derive_schedule(facts)
    _derive_precision(facts)
    _derive_sharding(facts)
    derive_recompute(facts)
    derive_step(facts)
    facts.assume("training.micro_batch_size", 1, "Megatron-LM requires it; 1 is taken")


def derive_shape(facts: Facts) -> None:
    """Add the facts of the model's shape, with the defaults of Megatron-LM."""
    hidden, heads = facts.value("shape.hidden_size"), facts.value("shape.num_heads")
    if hidden is None or heads is None:
        return
    # --no-position-embedding turns off learned positions alone.
    without = facts.value("no_positions", False)
    positions = "rotary" if facts.value("rotary") else "none" if without else "learned"
    for fact, value in (("gated", False), ("norm", "layernorm"), ("positions", positions), ("tied", True),
                        ("mlp_bias", True)):  # fmt: skip
        if not facts.has(f"shape.{fact}"):
            facts.derive(f"shape.{fact}", value, "shape.hidden_size")
    # The width of a gated MLP is two thirds of 4 h, as a multiple of 64.
    gated = int(4 * hidden * 2 / 3) // 64 * 64 if facts.value("shape.gated") else 4 * hidden
    dense = facts.value("ffn", gated)
    experts = facts.value("shape.num_experts", 0)
    width = facts.value("expert_ffn", dense) if experts else dense
    facts.derive("shape.ffn_size", width, "ffn", "expert_ffn", "shape.hidden_size")
    grouped = facts.value("grouped", facts.has("query_groups"))
    facts.derive(
        "shape.num_kv_heads",
        facts.value("query_groups", 1 if facts.has("grouped") else heads) if grouped else heads,
        "query_groups",
        "grouped",
        "shape.num_heads",
    )
    facts.derive("shape.attention_bias", bool(facts.value("shape.mlp_bias") or facts.value("qkv_bias")), "qkv_bias",
                 "shape.mlp_bias")  # fmt: skip
    facts.derive("shape.output_bias", facts.value("shape.mlp_bias"), "shape.mlp_bias")
    if experts:
        _derive_experts(facts, dense, width)
    else:
        for key in ("etp", "ep"):
            facts.drop(f"{_PARALLELISM}.{key}", "the model has no experts")
    if not facts.value("latent"):
        norm = "head" if facts.value("qk_layernorm") else "none"
        facts.derive("shape.qk_norm", norm, "qk_layernorm", "shape.hidden_size")
    else:
        # The norms of latent attention are those of the short vectors, which every such model has.
        # Sizes have the defaults of --multi-latent-attention.
        for fact, size_of in (("kv_rank", 32), ("plain_dim", 128), ("rotary_dim", 64), ("value_dim", 128)):
            facts.derive(f"shape.{fact}", facts.value(f"latent.{fact}", size_of), f"latent.{fact}", "latent")
        if facts.has("latent.query_rank"):
            facts.derive("shape.query_rank", facts.value("latent.query_rank"), "latent.query_rank")


def _derive_experts(facts: Facts, dense: int, width: int) -> None:
    if not facts.has("shape.active_experts"):
        facts.derive("shape.active_experts", 2, "shape.num_experts")
    pattern, layers = facts.value("expert_pattern", 1), facts.value("shape.num_layers")
    if isinstance(pattern, tuple):
        first = pattern.index(1) if 1 in pattern else len(pattern)
        if layers != len(pattern) or 0 in pattern[first:]:
            facts.not_modelled("every layer after the first with experts has experts", "expert_pattern")
        facts.derive("shape.dense_layers", first, "expert_pattern")
        facts.derive("shape.dense_ffn_size", dense, "ffn", "expert_pattern")
    elif pattern > 1:
        # Megatron's pattern begins with a layer of experts, that of the catalog's families ends with one.
        facts.derive("shape.expert_every", pattern, "expert_pattern")
        facts.derive("shape.dense_ffn_size", dense, "ffn", "expert_pattern")
    if facts.has("shared_ffn"):
        shared = facts.value("shared_ffn")
        if shared % width:
            facts.not_modelled(f"the shared expert has {shared // width} times an expert's width", "shared_ffn")
        facts.derive("shape.shared_experts", shared // width, "shared_ffn")


def derive_schedule(facts: Facts) -> None:
    """Add the facts of the pipeline: stages per rank, their layers, the schedule."""
    layers, pp = facts.value("shape.num_layers"), facts.value(f"{_PARALLELISM}.pp", 1)
    virtual = facts.value("virtual", 1)
    if facts.has("layers_per_chunk") and layers is not None:
        per_chunk = facts.value("layers_per_chunk")
        if layers % (pp * per_chunk):
            facts.fault(f"got {per_chunk}; must divide {layers} layers / {pp} stages", "layers_per_chunk")
            return
        virtual = layers // (pp * per_chunk)
    if virtual > 1:
        names = ("virtual", "layers_per_chunk")
        facts.derive(f"{_PARALLELISM}.virtual_stages", virtual, *names)
        facts.derive(f"{_PARALLELISM}.schedule", "interleaved", *names)
    less = {name: 1 for name in ("first_less", "last_less") if facts.value(name)}
    if less:
        facts.derive(f"{_PARALLELISM}.stages", less, *less)
    ends = ("first_layers", "last_layers")
    if any(facts.has(name) for name in ends) and layers is not None:
        _derive_stages(facts, layers, pp * virtual)
    kind, cp = facts.value("context"), facts.value(f"{_PARALLELISM}.cp", 1)
    if kind == "both":
        sizes = facts.value("context_sizes", ())
        inner = int(sizes[0]) if len(sizes) == 2 and sizes[0].isdigit() and sizes[0].isascii() else 0
        if not 0 < inner <= cp or cp % inner:
            facts.fault("needs --hierarchical-context-parallel-sizes with two sizes whose product is cp", "context")
            return
        facts.derive(f"{_PARALLELISM}.context", {"ulysses": inner, "ring": cp // inner}, "context", "context_sizes")
    elif kind is not None:
        facts.derive(f"{_PARALLELISM}.context", kind, "context")


def _derive_stages(facts: Facts, layers: int, stages: int) -> None:
    """Add the layers of each stage, if the first or the last stage has a number of its own."""
    ends = {name: facts.value(name) for name in ("first_layers", "last_layers") if facts.has(name)}
    rest, places = layers - sum(ends.values()), stages - len(ends)
    if rest < 0 or places < 1 or places > 10_000 or rest % places:
        facts.fault(f"{rest} layers are left for {max(0, places)} stages; they must share them evenly", *ends)
        return
    middle = [rest // places] * places
    first, last = ([ends[name]] if name in ends else [] for name in ("first_layers", "last_layers"))
    facts.derive(f"{_PARALLELISM}.stages", [*first, *middle, *last], *ends)


def _derive_precision(facts: Facts) -> None:
    bf16, fp16 = facts.value("bf16", False), facts.value("fp16", False)
    if bf16 and fp16:
        facts.fault("excludes --bf16; remove one of the two", "fp16")
    params = "bfloat16" if bf16 else "float16" if fp16 else "float32"
    why = f"{_DEFAULT}: neither --bf16 nor --fp16"
    facts.derive(f"{_PRECISION}.params", params, "bf16" if bf16 else "fp16", otherwise=why)
    # With bf16, gradients are summed in float32 unless --grad-reduce-in-bf16 is given.
    wide = facts.value("grads_fp32", False) or (bf16 and not facts.value("grads_bf16", False))
    sums = "float32" if wide else params
    for key in ("grads", "reduce"):
        why = f"{_DEFAULT} for {params}"
        facts.derive(f"{_PRECISION}.{key}", sums, "grads_fp32", "grads_bf16", otherwise=why)
    derive_low_precision(facts)
    moments = {facts.value("moment_dtype"), facts.value("second_moment_dtype")}
    both = ("moment_dtype", "second_moment_dtype")
    if len(moments) == 1 and None not in moments and "fp8" not in moments:
        facts.derive("training.optimizer.state_dtype", moments.pop(), *both)
    elif moments != {None}:
        facts.not_modelled("both moments have the same dtype, at least 16 bits", *both)


def derive_low_precision(facts: Facts) -> None:
    """Add the dtype and the scaling of matmuls in eight or four bits."""
    if facts.value("fp8"):
        facts.derive(f"{_PRECISION}.matmul", "float8_e4m3fn", "fp8")
        if facts.has("fp8_recipe"):
            facts.derive(f"{_PRECISION}.scaling", facts.value("fp8_recipe"), "fp8_recipe")
    elif facts.value("fp4"):
        facts.derive(f"{_PRECISION}.matmul", "float4_e2m1fn", "fp4")


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
    derive_buckets(facts)


def derive_buckets(facts: Facts) -> None:
    """Add the size of gradient buckets and the ranks that share optimizer states."""
    copies, instances = copies_of(facts), facts.value("optimizer_instances", 1)
    if instances > 1:
        facts.derive(f"{_SHARDING}.shard_size", max(1, copies // instances), "optimizer_instances")
    if not facts.value("overlap", False):
        facts.assume(
            f"{_SHARDING}.bucket_size", _ONE_BUCKET, "gradients travel after the backward pass, without overlap"
        )
        return
    itemsize = 4 if facts.value(f"{_PRECISION}.grads", facts.assumed(f"{_PRECISION}.grads")) == "float32" else 2
    elements = facts.value("bucket_elements", max(_BUCKET, _BUCKET_PER_RANK * copies))
    facts.derive(f"{_SHARDING}.bucket_size", f"{elements * itemsize} B", "bucket_elements", "overlap")


def derive_recompute(facts: Facts) -> None:
    """Add the policy of activation checkpointing."""
    key, kind = "training.activation_checkpointing", facts.value("recompute")
    names = ("recompute", "recompute_method", "recompute_layers", "recompute_modules")
    if kind == "selective":
        modules = {"core_attn": "attention", "mlp": "feed_forward", "moe_act": "activation"}
        wanted = facts.value("recompute_modules", ("core_attn",))
        known = [modules[name] for name in wanted if name in modules]
        if known:
            # Recomputing attention's scores costs nothing with flash attention; of several policies one is taken.
            facts.derive(key, known[-1], *names)
        if len(wanted) != len(known) or len(known) > 1:
            facts.not_modelled(f"of {', '.join(wanted)}, {known[-1] if known else 'nothing'} is recomputed",
                               "recompute_modules")  # fmt: skip
    elif kind == "full":
        layers, pp = facts.value("shape.num_layers"), facts.value(f"{_PARALLELISM}.pp", 1)
        first = facts.value("recompute_layers", 1)
        stages = pp * facts.value(f"{_PARALLELISM}.virtual_stages", 1)
        if facts.value("recompute_method") == "block" and layers is not None and 0 < layers <= 10_000:
            per_stage = max(1, layers // stages)
            listed = [layer for layer in range(layers) if layer % per_stage < first]
            facts.derive(key, "full" if len(listed) == layers else {"full": listed}, *names)
            return
        if first > 1:
            facts.not_modelled(f"each layer is recomputed by itself, not {first} together", "recompute_layers")
        facts.derive(key, "full", *names)


def derive_step(facts: Facts, dropout: float = 0.1) -> None:
    """Add dropout, whose default is `dropout`, and the kernels of attention and of the loss."""
    dropout = facts.value("hidden_dropout", dropout)
    why = f"{_DEFAULT} of --hidden-dropout"
    facts.derive("training.dropout", dropout or False, "hidden_dropout", "attention_dropout", otherwise=why)
    if facts.value("implementation") == "local" and not facts.has("training.attention"):
        facts.derive("training.attention", "standard", "implementation")
    if facts.value("loss_fusion"):
        if facts.value("loss_fusion_kind", "native") == "te":
            facts.derive("training.loss", "fused", "loss_fusion", "loss_fusion_kind")
        else:
            facts.not_modelled("the loss is not fused; only the kernel of --cross-entropy-fusion-impl te is modelled",
                               "loss_fusion")  # fmt: skip


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
