"""Families of decoders: which fields of a Transformer does a config.json mean?

Only keys that change parameters, FLOPs or bytes are read; other keys are ignored, so files from the hub work unchanged.
Defaults, and features that no key tells, follow Hugging Face's transformers: `configuration_*.py` and `modeling_*.py`
of each family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

from simulator.basics.errors import one_of
from simulator.model.config_keys import MOST_LAYERS, ConfigKeys
from simulator.model.encoders import bert, roberta, vit
from simulator.model.shape import LatentAttention, Mamba

# Entries of `layer_types`, and whether such a layer has a window.
_ATTENDED: Final = MappingProxyType({"full_attention": False, "sliding_attention": True, "chunked_attention": True})
# Blocks of layers by their words in `layers_block_type`.
_BLOCKS: Final = MappingProxyType({"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"})
# OPTLearnedPositionalEmbedding adds two rows.
_OPT_OFFSET: Final = 2


def _gpt2(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a GPT-2 config.json."""
    hidden, heads = config.size("n_embd"), config.size("n_head")
    config.divides(("n_head",), heads, "n_embd", hidden)
    # Experts instead of each MLP, under Mixtral's names: the models that Megatron-LM trains with --num-experts.
    experts = _chosen(config, "num_local_experts") if config.get(("num_local_experts",)) is not None else (0, 0)
    return _plain(config, hidden, heads, "n_layer") | {
        "ffn_size": config.size("n_inner", default=4 * hidden),
        "max_positions": config.size("n_positions"),
        "tied": config.flag("tie_word_embeddings", default=True),
        "num_experts": experts[0],
        "active_experts": experts[1],
    }


def _mpt(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for an MPT config.json."""
    hidden, heads = config.size("d_model"), config.size("n_heads")
    config.divides(("n_heads",), heads, "d_model", hidden)
    kv = _mpt_kv_heads(config, heads)
    if config.flag("attn_config", "qk_ln", default=False):
        config.fault(("attn_config", "qk_ln"), "got True; norms of queries and keys are not modelled; set it to false")
    rotary = config.flag("attn_config", "rope", default=False)
    alibi = config.flag("attn_config", "alibi", default=not rotary)
    # ALiBi and rotary positions replace the learned table.
    table = config.flag("learned_pos_emb", default=True) and not (alibi or rotary)
    rows = config.size("max_seq_len", default=2048)
    bias = not config.flag("no_bias", default=True)
    return _plain(config, hidden, heads, "n_layers") | {
        "num_kv_heads": kv,
        "ffn_size": hidden * config.size("expansion_ratio", default=4),
        # MPT models are built for a run: the run's sequence length sizes the table.
        "max_positions": config.seq_len or rows,
        "positions": "rotary" if rotary else "learned" if table else "none",
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "norm_bias": bias,
        "tied": config.flag("tie_word_embeddings", default=True),
    }


def _mpt_kv_heads(config: ConfigKeys, heads: int) -> int:
    """Return the number of key heads in an MPT config.json (multi-head, grouped or multi-query attention)."""
    kind = config.get(("attn_config", "attn_type"))
    if kind == "multiquery_attention":
        return 1
    if kind == "grouped_query_attention":
        kv = config.size("attn_config", "kv_n_heads")
        config.divides(("attn_config", "kv_n_heads"), kv, "n_heads", heads)
        return kv
    if kind not in (None, "multihead_attention"):
        kinds = ("grouped_query_attention", "multihead_attention", "multiquery_attention")
        config.fault(("attn_config", "attn_type"), f"got {kind!r}; {one_of(kinds, kind)}")
    return heads


def _plain(config: ConfigKeys, hidden: int, heads: int, layers: str) -> dict[str, Any]:
    """Return the sizes of a model in which key heads equal query heads and span the hidden size, as in GPT-2."""
    return {
        "num_layers": config.layers(layers),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "vocab_size": config.size("vocab_size"),
    }


def _rotary(config: ConfigKeys, head_dim: int | None = None, **defaults: int) -> dict[str, Any]:
    """Return the Transformer fields that all model families with rotary positions share (Llama and relatives).

    Parameters
    ----------
    **defaults
        Sizes that files of the family leave out, by key.
    """
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads", default=defaults.get("num_attention_heads"))
    # An explicit head_dim need not be hidden_size / heads.
    if config.get(("head_dim",)) is None and head_dim is None:
        config.divides(("num_attention_heads",), heads, "hidden_size", hidden, "; or give head_dim")
    kv = config.size("num_key_value_heads", default=defaults.get("num_key_value_heads", heads))
    config.divides(("num_key_value_heads",), kv, "num_attention_heads", heads)
    return {
        "num_layers": config.layers("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv,
        "head_dim": head_dim or config.size("head_dim", default=max(1, hidden // heads)),
        "ffn_size": config.size("intermediate_size"),
        "vocab_size": config.size("vocab_size", default=defaults.get("vocab_size")),
        "max_positions": config.size("max_position_embeddings", default=2048),
        "norm": "rmsnorm",
        "gated": True,
        "positions": "rotary",
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "tied": config.flag("tie_word_embeddings", default=False),
    }


def _llama(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Llama config.json."""
    bias = config.flag("attention_bias", default=False)
    mlp = config.flag("mlp_bias", default=False)
    return _rotary(config) | {"attention_bias": bias, "output_bias": bias, "mlp_bias": mlp}


def _mistral(config: ConfigKeys) -> dict[str, Any]:
    """Return the fields for Mistral or Phi-3: a llama without biases, with any `sliding_window` in every layer."""
    keys = _rotary(config)
    return keys | {"windows": _windows(config, keys["num_layers"], (True,), default=0)}


def _qwen2(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen2 config.json."""
    # Qwen2 has biases on Q, K and V but not on the output projection; the file does not say so.
    return _with_late_windows(config, _rotary(config) | {"attention_bias": True})


def _mixtral(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Mixtral config.json."""
    experts, active = _chosen(config, "num_local_experts")
    return _mistral(config) | {"num_experts": experts, "active_experts": active}


def _granitemoe(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Granite config.json with experts."""
    bias = config.flag("attention_bias", default=False)
    return _mixtral(config) | {"attention_bias": bias, "output_bias": bias}


def _olmoe(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for an OLMoE config.json."""
    experts, active = _chosen(config, "num_experts")
    return _llama(config) | {"num_experts": experts, "active_experts": active, "qk_norm": "width"}


def _chosen(config: ConfigKeys, experts: str, default: int | None = None) -> tuple[int, int]:
    """Return the numbers of experts in total (key `experts`) and per token, from a config.json."""
    count = config.size(experts, default=default, most=MOST_LAYERS)
    active = config.size("num_experts_per_tok")
    if not config.faults and active > count:
        config.fault(("num_experts_per_tok",), f"got {active}; must be at most {experts} {count}")
    return count, active


def _chosen_groups(config: ConfigKeys, experts: int, active: int) -> tuple[int, int]:
    """Return the number of groups of a model's `experts` experts, and of the groups to which a token's `active` experts
    belong, from a config.json; 1 and 1 if the router chooses among all experts.
    """
    # DeepSeek-V2-Lite's router ignores the groups.
    if config.get(("topk_method",)) == "greedy":
        return 1, 1
    groups = config.size("n_group", default=1)
    config.divides(("n_group",), groups, "n_routed_experts", experts)
    active_groups = config.size("topk_group", default=groups)
    # A fault reads as 1 everywhere.
    if config.faults:
        return 1, 1
    if active_groups > groups:
        config.fault(("topk_group",), f"got {active_groups}; must be at most n_group {groups}")
    elif active_groups * (experts // groups) < active:
        text = (
            f"got {active_groups}, groups of {experts // groups} experts; must hold num_experts_per_tok {active} "
            "experts"
        )
        config.fault(("topk_group",), text)
    return groups, active_groups


def _qwen3(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen3 config.json."""
    return _with_late_windows(config, _llama(config) | {"qk_norm": "head"})


def _qwen3_moe(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen3 config.json with experts."""
    return _qwen3(config) | _sparse(config)


def _qwen2_moe(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen2 config.json with experts, of which a wide one sees every token."""
    sparse = _sparse(config)
    shared, width = config.size("shared_expert_intermediate_size"), sparse["ffn_size"]
    # The shared expert counts as several experts of the routed experts' width.
    config.divides(("moe_intermediate_size",), width, "shared_expert_intermediate_size", shared)
    bias = config.flag("qkv_bias", default=True)
    gated = {"attention_bias": bias, "shared_experts": shared // width, "shared_gate": True}
    return _with_late_windows(config, _rotary(config) | sparse | gated)


def _sparse(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields of the experts in a Qwen config.json: every `decoder_sparse_step`-th layer has
    experts, without the layers in `mlp_only_layers`.
    """
    experts, active = _chosen(config, "num_experts")
    layers, dense = config.layers("num_hidden_layers"), config.list_of("mlp_only_layers")
    if dense != tuple(range(min(len(dense), layers))):
        config.fault(("mlp_only_layers",), f"got {list(dense)}; must be the first layers, such as [0, 1]")
    return {
        "num_experts": experts,
        "active_experts": active,
        "ffn_size": config.size("moe_intermediate_size"),
        "expert_every": config.size("decoder_sparse_step", default=1, most=layers),
        "dense_layers": len(dense),
        "dense_ffn_size": config.size("intermediate_size"),
    }


def _deepseek_v3(config: ConfigKeys) -> dict[str, Any]:
    """Return the fields for DeepSeek-V3, without the multi-token prediction layer, which the deployed model lacks."""
    experts, active = _chosen(config, "n_routed_experts")
    if config.get(("moe_layer_freq",)) not in (None, 1):
        config.fault(("moe_layer_freq",), "must be 1; others are not modelled")
    latent = LatentAttention(
        # Null, as in DeepSeek-V2-Lite: a full matrix for the queries.
        query_rank=config.size("q_lora_rank") if config.has_number("q_lora_rank", default=True) else 0,
        kv_rank=config.size("kv_lora_rank"),
        plain_dim=config.size("qk_nope_head_dim"),
        rotary_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )
    layers = config.layers("num_hidden_layers")
    dense = _first_dense(config, layers)
    groups, active_groups = _chosen_groups(config, experts, active)
    # Attention's FLOPs need a single head width: the mean of a key's (192) and a value's (128).
    return _rotary(config, head_dim=(latent.key_dim + latent.value_dim) // 2) | {
        "num_experts": experts,
        "active_experts": active,
        "expert_groups": groups,
        "active_groups": active_groups,
        "shared_experts": config.size("n_shared_experts", default=0, least=0),
        "ffn_size": config.size("moe_intermediate_size"),
        # "noaux_tc" adds a bias per expert to balance the load.
        "router_bias": config.get(("topk_method",)) == "noaux_tc",
        "dense_layers": dense,
        "dense_ffn_size": config.size("intermediate_size"),
        "latent": latent,
    }


def _gpt_neox(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a GPT-NeoX config.json."""
    bias = config.flag("attention_bias", default=True)
    form = "parallel" if config.flag("use_parallel_residual", default=True) else "pre"
    plain = {"norm": "layernorm", "gated": False, "mlp_bias": True, "form": form}
    return _rotary(config) | plain | {"attention_bias": bias, "output_bias": bias}


def _first_dense(config: ConfigKeys, layers: int) -> int:
    """Return the number of first layers with a dense MLP, of `layers` layers."""
    dense = config.size("first_k_dense_replace", default=0, least=0)
    if not config.faults and dense > layers:
        config.fault(("first_k_dense_replace",), f"got {dense}; must be at most num_hidden_layers {layers}")
    return min(dense, layers)


def _glm4_moe(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a GLM-4.5 config.json."""
    keys = _glm(config, bias=False)
    experts, active = _chosen(config, "n_routed_experts")
    groups, active_groups = _chosen_groups(config, experts, active)
    return keys | {
        "expert_groups": groups,
        "active_groups": active_groups,
        "qk_norm": "head" if config.flag("use_qk_norm", default=False) else "none",
        "num_experts": experts,
        "active_experts": active,
        "shared_experts": config.size("n_shared_experts", default=0, least=0),
        "ffn_size": config.size("moe_intermediate_size"),
        # A number per expert balances the load, as in DeepSeek-V3.
        "router_bias": True,
        "dense_layers": _first_dense(config, keys["num_layers"]),
        "dense_ffn_size": config.size("intermediate_size"),
    }


def _glm(config: ConfigKeys, *, bias: bool = True) -> dict[str, Any]:
    """Return the Transformer fields for a GLM-4 config.json; `bias` is the default for biases of Q, K and V."""
    return _rotary(config) | {"attention_bias": config.flag("attention_bias", default=bias)}


def _glm4(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a config.json of GLM-4-0414, with norms before and after each block."""
    return _glm(config) | {"form": "both"}


def _gemma(config: ConfigKeys, **defaults: int) -> dict[str, Any]:
    """Return the Transformer fields for a Gemma config.json; `defaults` are sizes that its files leave out."""
    keys = _rotary(config, head_dim=config.size("head_dim", default=256), **defaults)
    bias = config.flag("attention_bias", default=False)
    tied = config.flag("tie_word_embeddings", default=True)
    return keys | {"attention_bias": bias, "output_bias": bias, "tied": tied}


def _gemma2(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Gemma 2 config.json: windows in every second layer, and soft-caps."""
    keys = _gemma(config)
    return keys | {
        "form": "both",
        "windows": _windows(config, keys["num_layers"], (True, False), default=4096),
        "score_cap": config.has_number("attn_logit_softcapping", default=True),
        "logit_cap": config.has_number("final_logit_softcapping", default=True),
    }


def _gemma3(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Gemma 3 config.json, of the text model alone: windows in 5 of 6 layers."""
    text = config.within("text_config")
    keys = _gemma(text, num_attention_heads=8, num_key_value_heads=4, vocab_size=262208)
    period = text.size("sliding_window_pattern", default=6)
    return keys | {
        "form": "both",
        "qk_norm": "head",
        "windows": _windows(text, keys["num_layers"], _last_of(period), default=4096),
        "score_cap": text.has_number("attn_logit_softcapping", default=False),
        "logit_cap": text.has_number("final_logit_softcapping", default=False),
    }


def _olmo(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for an OLMo config.json: LayerNorm without parameters."""
    return _llama(config) | {"norm": "unweighted"}


def _olmo2(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for an OLMo 2 config.json: norms after each block, and of queries and keys."""
    return _llama(config) | {"form": "post", "qk_norm": "width"}


def _olmo3(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for an OLMo 3 config.json: OLMo 2 with windows in 3 of 4 layers."""
    keys = _olmo2(config)
    return keys | {"windows": _windows(config, keys["num_layers"], _last_of(4), default=4096)}


def _cohere(config: ConfigKeys) -> dict[str, Any]:
    """Return the fields for Cohere: attention and MLP beside each other, after one norm without bias."""
    return _llama(config) | {
        "norm": "layernorm",
        "norm_bias": False,
        "form": "shared",
        "qk_norm": "width" if config.flag("use_qk_norm", default=False) else "none",
        "tied": config.flag("tie_word_embeddings", default=True),
    }


def _cohere2(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Cohere 2 config.json: Cohere with windows in 3 of 4 layers."""
    keys, period = _cohere(config), config.size("sliding_window_pattern", default=4)
    return keys | {"windows": _windows(config, keys["num_layers"], _last_of(period), default=4096)}


def _stablelm(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a StableLM config.json."""
    return _rotary(config) | {
        "norm": "layernorm",
        "attention_bias": config.flag("use_qkv_bias", default=False),
        "qk_norm": "width" if config.flag("qk_layernorm", default=False) else "none",
        "form": "shared" if config.flag("use_parallel_residual", default=False) else "pre",
    }


def _starcoder2(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a StarCoder2 config.json."""
    bias = config.flag("use_bias", default=True)
    return _mistral(config) | {
        "norm": "layernorm",
        "gated": False,
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "tied": config.flag("tie_word_embeddings", default=True),
    }


def _phi(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Phi-2 config.json: attention and MLP beside each other, after one norm."""
    config.must_be("qk_layernorm", False, "these norms of queries and keys are not modelled")
    biases = dict.fromkeys(("attention_bias", "output_bias", "mlp_bias", "head_bias"), True)
    return _rotary(config) | biases | {"norm": "layernorm", "gated": False, "form": "shared"}


def _gptj(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a GPT-J config.json."""
    biases = {"attention_bias": False, "output_bias": False, "head_bias": True}
    tied = config.flag("tie_word_embeddings", default=False)
    return _gpt2(config) | biases | {"positions": "rotary", "form": "shared", "tied": tied}


def _gpt_bigcode(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a config.json of SantaCoder or StarCoder: GPT-2 with one head of keys."""
    keys = _gpt2(config)
    return keys | {"num_kv_heads": 1 if config.flag("multi_query", default=True) else keys["num_heads"]}


def _falcon(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Falcon config.json, of 7B (one norm), 40B (two norms) or RW (sequential)."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.divides(("num_attention_heads",), heads, "hidden_size", hidden)
    newer = config.flag("new_decoder_architecture", default=False)
    kv = 1 if config.flag("multi_query", default=True) else heads
    if newer:
        kv = config.size("num_kv_heads", default=heads)
        config.divides(("num_kv_heads",), kv, "num_attention_heads", heads)
    beside = "parallel" if config.size("num_ln_in_parallel_attn", default=2 if newer else 1) == 2 else "shared"
    biases = dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), config.flag("bias", default=False))
    return (
        _plain(config, hidden, heads, "num_hidden_layers")
        | biases
        | {
            "num_kv_heads": kv,
            "ffn_size": config.size("ffn_hidden_size", default=4 * hidden),
            "max_positions": config.size("max_position_embeddings", default=2048),
            "positions": "none" if config.flag("alibi", default=False) else "rotary",
            "form": beside if config.flag("parallel_attn", default=True) else "pre",
            "tied": config.flag("tie_word_embeddings", default=True),
        }
    )


def _bloom(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a BLOOM config.json; older files have other names for the same keys."""
    width, count = config.first("hidden_size", "n_embed"), config.first("n_head", "num_attention_heads")
    hidden, heads = config.size(width), config.size(count)
    config.divides((count,), heads, width, hidden)
    return _plain(config, hidden, heads, config.first("n_layer", "num_hidden_layers")) | {
        "ffn_size": 4 * hidden,
        "max_positions": config.size("seq_length", default=2048),
        "positions": "none",
        "embedding_norm": True,
        "tied": config.flag("tie_word_embeddings", default=True),
    }


def _opt(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for an OPT config.json; the first two positions belong to no token."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.divides(("num_attention_heads",), heads, "hidden_size", hidden)
    config.must_be("do_layer_norm_before", True, "norms after the residual addition (OPT-350M) are not modelled")
    config.must_be("word_embed_proj_dim", hidden, "a projection after the embedding (OPT-350M) is not modelled")
    weighted = config.flag("layer_norm_elementwise_affine", default=True)
    biases = dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), config.flag("enable_bias", default=True))
    return (
        _plain(config, hidden, heads, "num_hidden_layers")
        | biases
        | {
            "ffn_size": config.size("ffn_dim"),
            "max_positions": config.size("max_position_embeddings", default=2048) + _OPT_OFFSET,
            "position_offset": _OPT_OFFSET,
            "norm": "layernorm" if weighted else "unweighted",
            "tied": config.flag("tie_word_embeddings", default=True),
        }
    )


def _gpt_oss(config: ConfigKeys) -> dict[str, Any]:
    """Return the fields for gpt-oss: biases of experts and router, attention sinks, windows in every second layer."""
    keys = _rotary(config)
    experts, active = _chosen(config, "num_local_experts")
    bias = config.flag("attention_bias", default=True)
    return keys | {
        "num_experts": experts,
        "active_experts": active,
        "router_bias": True,
        "mlp_bias": True,
        "attention_bias": bias,
        "output_bias": bias,
        "sinks": True,
        "windows": _windows(config, keys["num_layers"], (True, False), default=128),
    }


def _llama4(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Llama 4 config.json, of the text model alone: every
    `interleave_moe_layer_step`-th layer has experts and a shared expert, and 3 of 4 layers attend in chunks.
    """
    text = config.within("text_config")
    keys = _llama(text)
    experts, active = _chosen(text, "num_local_experts")
    layers, every = keys["num_layers"], text.size("interleave_moe_layer_step", default=1, most=keys["num_layers"])
    listed = text.list_of("moe_layers")
    if listed and listed != tuple(range(every - 1, layers, every)):
        text.fault(("moe_layers",), f"must be every {every}-th layer, as interleave_moe_layer_step says; omit the key")
    # Layers with rotary positions attend in chunks.
    marks = text.list_of("no_rope_layers") or _last_of(text.size("no_rope_layer_interval", default=4))
    windows = _windows(text, layers, marks, default=8192, width="attention_chunk_size")
    return keys | {
        "num_experts": experts,
        "active_experts": active,
        "shared_experts": 1,
        "expert_every": every,
        "dense_ffn_size": text.size("intermediate_size_mlp", default=2 * keys["ffn_size"]),
        "qk_norm": "unweighted" if text.flag("use_qk_norm", default=True) else "none",
        "windows": windows,
        "chunked": bool(windows),
    }


def _nemotron_h(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a Nemotron-H config.json: layers of one block each, attention without
    positions, and MLPs of two matrices.
    """
    for key in ("use_bias", "mamba_proj_bias"):
        config.must_be(key, False, "biases of the matrices of Mamba-2 are not modelled")
    config.must_be("use_conv_bias", True, "a convolution without bias is not modelled")
    head_dim = config.size(config.first("head_dim", "attention_head_dim"))
    blocks = _blocks_of(config)
    keys = _rotary(config, head_dim) | {"gated": False, "positions": "none", "blocks": blocks}
    bias = config.flag("attention_bias", default=False)
    keys |= {"attention_bias": bias, "output_bias": bias, "mlp_bias": config.flag("mlp_bias", default=False)}
    if "M" in blocks:
        sizes = {"heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "groups": "n_groups",
                 "state": "ssm_state_size"}  # fmt: skip
        read = {name: config.size(key) for name, key in sizes.items()}
        config.divides(("n_groups",), read["groups"], "mamba_num_heads", read["heads"])
        taps, chunk = config.size("conv_kernel", default=4), config.size("chunk_size", default=128)
        keys["mamba"] = Mamba(**read, taps=taps, chunk=chunk)
    if "E" not in blocks:
        return keys
    experts, active = _chosen(config, "n_routed_experts")
    groups, active_groups = _chosen_groups(config, experts, active)
    width = config.size("moe_intermediate_size")
    shared = config.size("moe_shared_expert_intermediate_size", default=0, least=0)
    # The shared expert counts as several experts of the routed experts' width.
    config.divides(("moe_intermediate_size",), width, "moe_shared_expert_intermediate_size", shared)
    return keys | {
        "num_experts": experts,
        "active_experts": active,
        "expert_groups": groups,
        "active_groups": active_groups,
        "ffn_size": width,
        "dense_ffn_size": keys["ffn_size"],
        "shared_experts": shared // width,
        "expert_latent": config.size("moe_latent_size", default=0, least=0),
        "router_bias": True,
    }


def _blocks_of(config: ConfigKeys) -> tuple[str, ...]:
    """Return the block of each layer, from a pattern of letters or a list of words."""
    layers, letters = config.layers("num_hidden_layers"), tuple(_BLOCKS.values())
    listed, key = config.list_of("layers_block_type"), "layers_block_type"
    blocks = tuple(_BLOCKS.get(str(word), str(word)) for word in listed)
    if not listed:
        key = "hybrid_override_pattern"
        blocks = tuple(str(config.get((key,)) or ""))
    if unknown := [block for block in blocks if block not in letters]:
        allowed = letters if key == "hybrid_override_pattern" else _BLOCKS
        config.fault((key,), f"got {unknown[0]!r}; {one_of(allowed, unknown[0])}")
        return ("*",)
    if len(blocks) != layers:
        config.fault((key,), f"has {len(blocks)} layers; must have num_hidden_layers {layers}")
    return blocks


def _last_of(period: int) -> tuple[bool, ...]:
    """Return which of a period's layers have a window: all except the last."""
    return (*[True] * (period - 1), False)


def _with_late_windows(config: ConfigKeys, keys: dict[str, Any]) -> dict[str, Any]:
    """Return a Qwen model's fields, with windows from `max_window_layers` on if `use_sliding_window`."""
    if not config.flag("use_sliding_window", default=False):
        return keys
    layers, first = keys["num_layers"], config.size("max_window_layers", default=28, least=0)
    marks = [layer >= first for layer in range(layers)]
    return keys | {"windows": _windows(config, layers, marks, default=4096)}


def _windows(
    config: ConfigKeys, layers: int, marks: Sequence[Any], *, default: int, width: str = "sliding_window"
) -> tuple[int, ...]:
    """Return a model's windows, from the key `layer_types` or a pattern of layers.

    Parameters
    ----------
    marks : sequence
        A true value for each layer of a period that has a window, if the file has no `layer_types`.
    default : int
        Width of the windows if the key `width` is missing; 0 for none.
    """
    size = config.size(width, default=default)
    kinds = config.list_of("layer_types")
    if kinds and len(kinds) != layers:
        config.fault(("layer_types",), f"has {len(kinds)} entries; must have one for each of {layers} layers")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _ATTENDED:
            config.fault(("layer_types",), f"got {kind!r}; {one_of(_ATTENDED, kind)}")
            return ()
    sizes = tuple(size if mark else 0 for mark in ([_ATTENDED[kind] for kind in kinds] or marks))
    # The shortest period, so that equal models compare equal.
    periods = (n for n in range(1, len(sizes) + 1) if all(window == sizes[i % n] for i, window in enumerate(sizes)))
    return sizes[: next(periods, 0)] if any(sizes) else ()


FAMILIES: Final[MappingProxyType[str, Callable[[ConfigKeys], dict[str, Any]]]] = MappingProxyType(
    {
        "bert": bert,
        "bloom": _bloom,
        "cohere": _cohere,
        "cohere2": _cohere2,
        "deepseek_v2": _deepseek_v3,
        "deepseek_v3": _deepseek_v3,
        "falcon": _falcon,
        "gemma": _gemma,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "gemma3_text": _gemma3,
        "glm": _glm,
        "glm4": _glm4,
        "glm4_moe": _glm4_moe,
        "gpt2": _gpt2,
        "gpt_bigcode": _gpt_bigcode,
        "gpt_neox": _gpt_neox,
        "gpt_oss": _gpt_oss,
        "gptj": _gptj,
        "granite": _llama,
        "granitemoe": _granitemoe,
        "kimi_k2": _deepseek_v3,
        "llama": _llama,
        "llama4": _llama4,
        "llama4_text": _llama4,
        "mistral": _mistral,
        "mixtral": _mixtral,
        "mpt": _mpt,
        "nemotron_h": _nemotron_h,
        "olmo": _olmo,
        "olmo2": _olmo2,
        "olmo3": _olmo3,
        "olmoe": _olmoe,
        "opt": _opt,
        "phi": _phi,
        "phi3": _mistral,
        "qwen2": _qwen2,
        "qwen2_moe": _qwen2_moe,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "roberta": roberta,
        "stablelm": _stablelm,
        "starcoder2": _starcoder2,
        "vit": vit,
        "xlm-roberta": roberta,
    }
)
