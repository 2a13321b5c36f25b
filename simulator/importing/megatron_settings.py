"""Which settings do Megatron-LM and Megatron-Bridge share, and what follows from several of them together?

Names, meanings and defaults follow megatron/training/arguments.py and the configurations of Megatron-Core.
"""

from __future__ import annotations

from ast import literal_eval
from typing import Any, Final

from simulator.importing.facts import Facts
from simulator.importing.machine import copies_of
from simulator.importing.rules import Means, choice, flag, number, size, text, whole, words
from simulator.model.operation import FULL_ITERATION, GRAPH_SCOPES
from simulator.step.checkpointing import MODULES
from simulator.step.parallelism import layers_of_layout

_PARALLELISM: Final = "training.parallelism"
_PRECISION: Final = "training.precision"
_SHARDING: Final = "training.sharding"
# Most layers of a pattern.
_MOST_LAYERS: Final = 10_000
# Most ranks of a pipeline, and most stages of a rank, whose layers are written out.
_MOST_STAGES: Final = 1_000
# Bucket that holds every gradient [B]: without overlap, gradients travel after the backward pass.
_ONE_BUCKET: Final = "1 PiB"
# Elements of a bucket if gradients overlap: the larger of a constant and a number for each data-parallel rank.
_BUCKET, _BUCKET_PER_RANK = 40_000_000, 1_000_000
# Most keys of the softmax kernels in core/fusions/fused_softmax.py, `is_kernel_available`.
_MOST_FUSED_KEYS: Final = 4096
_CONTEXTS: Final = choice({"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "ulysses",
                           "a2a+p2p": "both"})  # fmt: skip
_DISPATCHERS: Final = choice({"allgather": "all_gather", "alltoall": "all_to_all", "alltoall_seq": "all_to_all",
                              "flex": "deduplicated"})  # fmt: skip
_BACKENDS: Final = choice({"auto": "flash", "flash": "flash", "fused": "flash", "unfused": "standard",
                           "local": "standard"})  # fmt: skip
_RECIPES: Final = choice({"delayed": "tensor", "tensorwise": "tensor", "blockwise": "block", "mxfp8": "tensor",
                          "custom": "tensor"})  # fmt: skip
_NORMS: Final = choice({"layernorm": "layernorm", "rmsnorm": "rmsnorm"})
_POSITIONS: Final = choice({"learned_absolute": "learned", "rope": "rotary", "yarn": "rotary", "none": "none",
                            "mrope": "rotary", "relative": "none"})  # fmt: skip


# Letters of a pipeline layout for the names of Megatron-Core's LayerType.
_LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
# Modules of --recompute-modules that are policies, too.
_RECOMPUTED: Final = {"mlp": "feed_forward", "moe_act": "activation", "core_attn": "attention"}


def _layer_pattern(value: Any) -> Any:
    """Return the pattern of layers with experts: k for every k-th layer, or a list of 0 and 1."""
    if isinstance(value, list) and all(mark in (0, 1) for mark in value):
        return tuple(value)
    try:
        return size(value)
    except ValueError:
        pass
    # Lists are written as in Python: "[1]*61", "([0]*3+[1]*58)".
    text, pattern = str(value).strip("()' \""), list[int]()
    for piece in text.split("+"):
        body, _, times = piece.strip().partition("*")
        try:
            flags = literal_eval(body.strip())
            repeated = whole(times) if times else 1
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            flags, repeated = None, 0
        valid = isinstance(flags, list) and all(mark in (0, 1) for mark in flags)
        if not valid or len(pattern) + repeated * len(flags) > _MOST_LAYERS:
            raise ValueError(f"got {text[:60]!r}; must be a number, or a list such as [0]*3+[1]*58")
        pattern += flags * repeated
    return tuple(pattern)


def read_layout(value: Any) -> tuple[int, ...]:
    """Return the number of layers of each stage in a pipeline layout: text, or a list of layer names for each stage.

    >>> read_layout([["embedding", "decoder"], ["decoder"], ["mtp", "loss"]])
    (1, 1, 1)
    """
    if isinstance(value, list):
        stages = (stage if isinstance(stage, list) else [stage] for stage in value)
        value = "|".join("".join(_LETTERS.get(str(name).strip().lower(), "?") for name in stage) for stage in stages)
    return layers_of_layout(text(value))


def _blocks(value: Any) -> str:
    """Return the block of each layer from the pattern of a hybrid, without marks of pipeline stages and without the
    patterns of layers that predict further tokens, which stand behind a slash.
    """
    blocks = str(value).partition("/")[0].replace("|", "")
    if not blocks or not set(blocks) <= set("M*-E") or len(blocks) > _MOST_LAYERS:
        raise ValueError(f"got {str(value)[:60]!r}; must be letters M, *, - and E, such as M-M*-")
    return blocks


# Numbers of the model and of its partitioning, by Megatron-LM's names.
ARCHITECTURE: Final = {
    "num-layers": Means("shape.num_layers", size),
    "hidden-size": Means("shape.hidden_size", size),
    "ffn-hidden-size": Means("ffn", size),
    "num-attention-heads": Means("shape.num_heads", size),
    "num-query-groups": Means("query_groups", size),
    "kv-channels": Means("shape.head_dim", size),
    "normalization": Means("shape.norm", _NORMS),
    "position-embedding-type": Means("shape.positions", _POSITIONS),
    "add-qkv-bias": Means("qkv_bias", flag),
    "qk-layernorm": Means("qk_layernorm", flag),
    "moe-ffn-hidden-size": Means("expert_ffn", size),
    "moe-shared-expert-intermediate-size": Means("shared_ffn", size),
    "moe-router-topk": Means("shape.active_experts", size),
    "moe-router-num-groups": Means("shape.expert_groups", size),
    "moe-router-group-topk": Means("shape.active_groups", size),
    "moe-layer-freq": Means("expert_pattern", _layer_pattern),
    "moe-router-enable-expert-bias": Means("shape.router_bias", flag),
    "moe-latent-size": Means("shape.expert_latent", size),
    "hybrid-override-pattern": Means("shape.blocks", _blocks),
    "hybrid-layer-pattern": Means("shape.blocks", _blocks),
    "mamba-num-heads": Means("mamba.heads", size),
    "mamba-head-dim": Means("mamba.head_dim", size),
    "mamba-num-groups": Means("mamba.groups", size),
    "mamba-state-dim": Means("mamba.state", size),
    "multi-latent-attention": Means("latent", flag),
    "q-lora-rank": Means("latent.query_rank", size),
    "kv-lora-rank": Means("latent.kv_rank", size),
    "qk-head-dim": Means("latent.plain_dim", size),
    "qk-pos-emb-head-dim": Means("latent.rotary_dim", size),
    "v-head-dim": Means("latent.value_dim", size),
    "seq-length": Means("training.seq_len", size),
    "tensor-model-parallel-size": Means(f"{_PARALLELISM}.tp", size),
    "pipeline-model-parallel-size": Means(f"{_PARALLELISM}.pp", size),
    "context-parallel-size": Means(f"{_PARALLELISM}.cp", size),
    "expert-model-parallel-size": Means(f"{_PARALLELISM}.ep", size),
    "expert-tensor-parallel-size": Means(f"{_PARALLELISM}.etp", size),
    "sequence-parallel": Means(f"{_PARALLELISM}.sequence_parallel", flag),
    "moe-expert-capacity-factor": Means(f"{_PARALLELISM}.experts.capacity", number),
    "moe-token-dispatcher-type": Means(f"{_PARALLELISM}.experts.dispatch", _DISPATCHERS),
    "attention-backend": Means("training.attention", _BACKENDS),
    "recompute-granularity": Means("recompute", choice({"full": "full", "selective": "selective"})),
    "recompute-method": Means("recompute_method", choice({"uniform": "uniform", "block": "block"})),
    "recompute-num-layers": Means("recompute_layers", size),
    "recompute-modules": Means("recompute_modules", words),
    "attention-dropout": Means("attention_dropout", number),
    "hidden-dropout": Means("hidden_dropout", number),
    "cross-entropy-loss-fusion": Means("loss_fusion", flag),
    "cross-entropy-fusion-impl": Means("loss_fusion_kind", choice({"native": "native", "te": "te"})),
    "microbatch-group-size-per-vp-stage": Means(f"{_PARALLELISM}.microbatch_group", size),
    "cp-comm-type": Means("context", _CONTEXTS),
    "bf16": Means("bf16", flag),
    "fp16": Means("fp16", flag),
    "fp8-recipe": Means("fp8_recipe", _RECIPES),
}  # fmt: skip


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
    if facts.has("shape.blocks"):
        _derive_blocks(facts, hidden)
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


def _derive_blocks(facts: Facts, hidden: int) -> None:
    """Add the facts of a hybrid: the number of layers, and sizes of Mamba-2 with the defaults of Megatron-LM."""
    if not facts.has("shape.num_layers"):
        facts.derive("shape.num_layers", len(facts.value("shape.blocks")), "shape.blocks")
    head_dim = facts.value("mamba.head_dim", 64)
    for fact, default in (("heads", 2 * hidden // head_dim), ("head_dim", 64), ("groups", 8), ("state", 128)):
        facts.derive(f"shape.mamba_{fact}", facts.value(f"mamba.{fact}", default), f"mamba.{fact}", "shape.blocks")


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
    if facts.has("layout"):
        stages = facts.value("layout")
        virtual = facts.value("virtual", len(stages) // pp)
        if virtual * pp != len(stages):
            facts.fault(f"got {len(stages)} stages; must be a multiple of {pp} ranks", "layout")
            return
        if pp > 1:
            facts.derive(f"{_PARALLELISM}.stages", list(stages), "layout")
        if stages[-1] < facts.value("training.mtp_layers", 0):
            facts.not_modelled("logits of further tokens are computed on the stage of their layer", "layout")
    elif facts.has("layers_per_chunk") and layers is not None:
        per_chunk = facts.value("layers_per_chunk")
        # An embedding or a loss may count as a layer.
        count = layers + sum(1 for name in ("first_less", "last_less") if facts.value(name))
        if count % (pp * per_chunk):
            facts.fault(f"got {per_chunk}; must divide {count} layers / {pp} ranks", "layers_per_chunk")
            return
        virtual = count // (pp * per_chunk)
    if virtual > 1:
        names = ("virtual", "layers_per_chunk", "layout")
        facts.derive(f"{_PARALLELISM}.virtual_stages", virtual, *names)
        facts.derive(f"{_PARALLELISM}.schedule", "interleaved", *names)
    if facts.value("defers_head"):
        # A limit of 0, the default, is no limit.
        limit = facts.value("deferral_limit", 0) or "all"
        facts.derive(f"{_PARALLELISM}.deferred_head_gradients", limit, "defers_head", "deferral_limit")
    less = {name: 1 for name in ("first_less", "last_less") if facts.value(name)}
    if less:
        facts.derive(f"{_PARALLELISM}.stages", less, *less)
    ends = ("first_layers", "last_layers")
    if any(facts.has(name) for name in ends) and layers is not None:
        _derive_stages(facts, layers, pp, virtual)
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


def _derive_stages(facts: Facts, layers: int, pp: int, virtual: int) -> None:
    """Add the layers of each stage, if the first or the last rank of the pipeline has a number of its own."""
    ends = {name: facts.value(name) for name in ("first_layers", "last_layers") if facts.has(name)}
    rest, places = layers - sum(ends.values()), pp - len(ends)
    if rest < 0 or not 1 <= places <= _MOST_STAGES or rest % places or virtual > _MOST_STAGES:
        facts.fault(f"{rest} layers are left for {max(0, places)} ranks; they must share them evenly", *ends)
        return
    first, last = ([ends[name]] if name in ends else [] for name in ("first_layers", "last_layers"))
    ranks = [*first, *[rest // places] * places, *last]
    if any(number % virtual for number in ranks):
        facts.fault(f"the layers of each rank must be a multiple of {virtual}, the stages per rank", *ends)
        return
    # The stages of a rank have equal numbers of layers.
    facts.derive(f"{_PARALLELISM}.stages", [number // virtual for number in ranks] * virtual, *ends)


def derive_low_precision(facts: Facts) -> None:
    """Add the dtype and the scaling of matmuls in eight or four bits."""
    if facts.value("fp8"):
        facts.derive(f"{_PRECISION}.matmul", "float8_e4m3fn", "fp8")
        if facts.has("fp8_recipe"):
            facts.derive(f"{_PRECISION}.scaling", facts.value("fp8_recipe"), "fp8_recipe")
    elif facts.value("fp4"):
        facts.derive(f"{_PRECISION}.matmul", "float4_e2m1fn", "fp4")


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
        modules = facts.value("recompute_modules", ("core_attn",))
        named = [name for name in MODULES if name in modules]
        if named:
            facts.derive(key, _RECOMPUTED.get(named[0], named) if len(named) == 1 else named, *names)
        if others := [name for name in modules if name not in MODULES]:
            facts.not_modelled(f"not recomputed: {', '.join(others)}", "recompute_modules")
    elif kind == "full":
        layers, pp = facts.value("shape.num_layers"), facts.value(f"{_PARALLELISM}.pp", 1)
        first = facts.value("recompute_layers", 1)
        stages = pp * facts.value(f"{_PARALLELISM}.virtual_stages", 1)
        if facts.value("recompute_method") == "block" and layers is not None and 0 < layers <= _MOST_LAYERS:
            per_stage = max(1, layers // stages)
            full_layers = [layer for layer in range(layers) if layer % per_stage < first]
            facts.derive(key, "full" if len(full_layers) == layers else {"full": full_layers}, *names)
            return
        if first > 1:
            facts.not_modelled(f"each layer is recomputed by itself, not {first} together", "recompute_layers")
        facts.derive(key, "full", *names)


def derive_graphs(facts: Facts) -> None:
    """Add the parts of a layer that the host launches as CUDA graphs; every part if no scope is named."""
    names = ("cuda_graphs", "cuda_graph_kind", "cuda_graph_scopes")
    if not facts.value("cuda_graphs") and str(facts.value("cuda_graph_kind", "none")).lower() == "none":
        return
    scopes = [scope.lower() for scope in facts.value("cuda_graph_scopes", ())]
    if FULL_ITERATION in scopes:
        facts.derive("training.cuda_graphs", FULL_ITERATION, *names)
        return
    # Experts that receive a fixed number of tokens are in the graph too; here their kernels are launched one by one.
    parts = {scope: (scope,) for scope in GRAPH_SCOPES} | {"moe": ("moe_router", "moe_preprocess")}
    if others := [scope for scope in scopes if scope not in parts]:
        facts.not_modelled(f"no graph of {', '.join(others)}", "cuda_graph_scopes")
    chosen = {part for scope in scopes or parts for part in parts.get(scope, ())}
    facts.derive("training.cuda_graphs", [scope for scope in GRAPH_SCOPES if scope in chosen], *names)


def derive_optimizer(facts: Facts) -> None:
    """Add the optimizer, the dtype of its moments, the place of Muon's whole matrices, and the part on the host."""
    # A part of 0 is the whole optimizer on the GPU.
    if facts.value("offloads") and (part := facts.value("offload_fraction", 1.0)):
        facts.derive("training.offload.what", "optimizer", "offloads")
        if facts.has("offload_fraction"):
            facts.derive("training.offload.fraction", part, "offload_fraction")
    both = ("moment_dtype", "second_moment_dtype")
    moments = {facts.value(name, "float32") for name in both}
    if len(moments) > 1 or "fp8" in moments:
        facts.not_modelled("both moments have the same dtype, at least 16 bits", *both)
    elif any(map(facts.has, both)):
        facts.derive("training.optimizer.state_dtype", moments.pop(), *both)
    name = facts.value("optimizer")
    if name is not None:
        facts.derive("training.optimizer.name", name.removeprefix("dist_"), "optimizer")
        if name == "dist_muon":
            facts.derive("training.optimizer.distribution", "owners", "optimizer")


def derive_step(facts: Facts, dropout: float = 0.1) -> None:
    """Add dropout, whose default is `dropout`, and the kernels of attention and of the loss."""
    dropout = facts.value("hidden_dropout", dropout)
    why = "the program's default of --hidden-dropout"
    facts.derive("training.dropout", dropout or False, "hidden_dropout", "attention_dropout", otherwise=why)
    derive_optimizer(facts)
    if facts.value("implementation") == "local":
        _derive_local_attention(facts)
    if facts.value("loss_fusion"):
        fused = facts.value("loss_fusion_kind", "native") == "te"
        facts.derive("training.loss", "fused" if fused else "native", "loss_fusion", "loss_fusion_kind")


def _derive_local_attention(facts: Facts) -> None:
    """Add the attention kernels of Megatron-Core's own layers, without Transformer Engine.

    A fused kernel computes the softmax of 16 bits of up to 4,096 keys. Other softmaxes are PyTorch's, in float32 if
    requested; scores divided by the layer's number are always in float32.
    """
    names = ("implementation", "no_softmax_fusion", "softmax_fp32", "query_key_scaling")
    fused = not facts.value("no_softmax_fusion", False) and facts.value("training.seq_len", 1) <= _MOST_FUSED_KEYS
    wide = facts.value("softmax_fp32", False) or facts.value("query_key_scaling", False)
    facts.drop("training.attention", "the local implementation has attention kernels of its own")
    facts.derive("training.attention", "eager" if wide and not fused else "standard", *names)
    facts.assume("training.framework", "megatron_local", "--transformer-impl local; --framework changes it")
