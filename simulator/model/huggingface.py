"""Reads Hugging Face's config.json as a Transformer.

Only keys that change parameters, FLOPs or bytes are read; other keys are ignored, so files from the hub work unchanged.
A null key counts as missing, as in Hugging Face's code.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from simulator.basics.document import Document, Fault, Key
from simulator.basics.errors import ScenarioError, one_of
from simulator.model.shape import LatentAttention, Transformer

# No published model comes near; these limits keep a typing error from filling the memory.
_LARGEST: Final = 10**8
_MOST_LAYERS: Final = 10**4
# Families with two stacks of layers and attention between the stacks, which the form of `Transformer` does not have.
_TWO_STACKS: Final = ("bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper")


@dataclass(slots=True)
class _Config:
    """Reads keys of a config.json and records every fault; a faulty size reads as 1, to find every fault in a single
    run.
    """

    document: Document
    seq_len: int | None
    faults: list[Fault] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def get(self, key: Key) -> Any:
        """Return the value at a nested key of the config.json, or None; `used` collects the keys with a value."""
        data = self.document.data
        for step in key:
            data = data.get(step) if isinstance(data, Mapping) else None
        if data is not None:
            self.used.add(".".join(map(str, key)))
        return data

    def list_of(self, key: str) -> tuple[Any, ...]:
        """Return a key's list, or an empty one if the key is missing; record a fault for another value."""
        value = self.get((key,))
        if not isinstance(value, list | tuple | None):
            self.fault((key,), f"got {value!r}; must be a list")
            return ()
        return tuple(value or ())

    def must_be(self, key: str, allowed: Any, reason: str) -> None:
        """Record a fault if a key has another value than the allowed value, or None."""
        value = self.get((key,))
        if value not in (None, allowed):
            self.fault((key,), f"got {value!r}; must be {allowed!r}; {reason}")

    def fault(self, key: Key, message: str) -> None:
        """Record a fault: a message about a key of the config.json."""
        self.faults.append(self.document.fault(key, message))

    def size(self, *key: str, default: int | None = None, most: int = _LARGEST, least: int = 1) -> int:
        """Return a key's whole number within limits, or its default; otherwise record a fault and return 1."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.fault(key, f"is missing; {self._hint(key)}")
        # In Python True is an int.
        elif isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"got {value!r}; must be a whole number")
        elif not least <= value <= most:
            self.fault(key, f"got {value}; must be from {least} to {most}")
        else:
            return value
        return 1

    def flag(self, *key: str, default: bool) -> bool:
        """Return a key's boolean, or its default if the key is missing; record a fault for other values."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, f"got {value!r}; must be true or false")
            return default
        return value

    def divides(self, key: Key, part: int, whole_name: str, whole: int, advice: str = "") -> None:
        """Record a fault at a key if its size `part` does not divide the size `whole` of the key `whole_name`."""
        # A faulty size reads as 1; the failed division would be reported as a second fault.
        if not self.faults and whole % part:
            self.fault(key, f"got {part}; must divide {whole_name} {whole}{advice}")

    def _hint(self, key: Key) -> str:
        """Return a hint for a missing key of the config.json: a similar key in the file, if any."""
        given = [str(name) for name, value in self.document.data.items() if value is not None]
        close = difflib.get_close_matches(str(key[-1]), given, n=1, cutoff=0.7)
        return f"is it meant by {close[0]!r}?" if close else "give it"


def read_transformer(document: Document, name: str, seq_len: int | None = None) -> Transformer:
    """Return the model that a config.json describes.

    Parameters
    ----------
    document : Document
        The file's data with the place of each key.
    name : str
        The model's name.
    seq_len : int, optional
        Sequence length of the training; MPT's position table has this many rows.

    Raises
    ------
    ScenarioError
        A line per fault: an unknown family, a missing or impossible size, a sequence longer than the table of learned
        positions.

    Notes
    -----
    Differences without parameters and with little effect on a step's time are ignored: the kind of activation, rope
    scaling and scales without parameters, GPT-NeoX's parallel residual.
    """
    if not isinstance(document.data, dict):
        raise ScenarioError(f"{document.source}: got {type(document.data).__name__}; must be a mapping (key: value)")
    family = document.data.get("model_type")
    config = _Config(document, seq_len)
    if not isinstance(family, str) or family not in _FAMILIES:
        config.fault(("model_type",), _no_family(family, config))
        document.refuse(config.faults)
    facts = _FAMILIES[str(family)](config)
    document.refuse(config.faults)
    model = Transformer(name=name, **facts)
    positions = model.max_positions - model.position_offset
    if model.patches is not None and seq_len not in (None, positions):
        raise ScenarioError(
            f"{document.source}: seq_len: got {seq_len}; {name} has {positions} tokens: {model.patches.count} patches "
            f"and a class token; write seq_len: {positions}"
        )
    if model.positions == "learned" and seq_len is not None and seq_len > positions:
        raise ScenarioError(
            f"{document.source}: seq_len: got {seq_len}; {name} has learned {positions} positions; take at "
            "most that, or give a config.json with more"
        )
    return model


def _no_family(family: object, config: _Config) -> str:
    """Return the error message for a config.json with an unknown or missing model family.

    The message names the known family that reads the most of the file's keys, and the features that the model's layers
    must have for an equal count.
    """
    if family is None:
        return f"is missing; {one_of(_FAMILIES, '')}"
    if family in _TWO_STACKS:
        return (
            f"got {family!r}; not modelled, because an encoder and a decoder with attention between them are two "
            "stacks of layers, and a model here is one stack"
        )
    known = f"got {family!r}; {one_of(_FAMILIES, family)}"
    read = {name: _Config(config.document, config.seq_len) for name in _FAMILIES}
    models = {name: (one, Transformer("", **_FAMILIES[name](one))) for name, one in read.items() if _sizes(name, one)}
    if "did you mean" in known or not models:
        return known
    nearest = max(models, key=lambda name: len(models[name][0].used))
    keys, model = models[nearest]
    return (
        f"{known}; write model_type: {nearest} if the model has {_features(model)}; these keys must have the meaning "
        f"that they have in {nearest}: {', '.join(sorted(keys.used))}"
    )


def _sizes(family: str, config: _Config) -> bool:
    """Return True if the family reads the config.json without a fault."""
    _FAMILIES[family](replace(config, faults=(own := list[Fault]()), used=set()))
    return not own


def _features(model: Transformer) -> str:
    """Return the features of a model's layers that no size tells, as text."""
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "unweighted": "LayerNorm without weights"}[model.norm]
    biases = [name for name, has in (("Q, K and V", model.attention_bias), ("MLP", model.mlp_bias)) if has]
    return ", ".join(
        (
            f"{norm} ({model.form})",
            f"an MLP of {'three' if model.gated else 'two'} matrices",
            f"{model.positions} positions" if model.positions != "none" else "no table of positions",
            f"biases of {' and '.join(biases)}" if biases else "no biases",
        )
    )


def _gpt2(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a GPT-2 config.json."""
    hidden, heads = config.size("n_embd"), config.size("n_head")
    config.divides(("n_head",), heads, "n_embd", hidden)
    # Experts instead of each MLP, under Mixtral's names: the models that Megatron-LM trains with --num-experts.
    chosen = _chosen(config, "num_local_experts") if config.get(("num_local_experts",)) is not None else (0, 0)
    return _plain(config, hidden, heads, "n_layer") | {
        "ffn_size": config.size("n_inner", default=4 * hidden),
        "max_positions": config.size("n_positions"),
        "tied": config.flag("tie_word_embeddings", default=True),
        "num_experts": chosen[0],
        "active_experts": chosen[1],
    }


def _mpt(config: _Config) -> dict[str, Any]:
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


def _mpt_kv_heads(config: _Config, heads: int) -> int:
    """Return the number of key heads in an MPT config.json with `heads` heads (multi-head, grouped or multi-query
    attention).
    """
    kind = config.get(("attn_config", "attn_type"))
    if kind == "multiquery_attention":
        return 1
    if kind == "grouped_query_attention":
        kv = config.size("attn_config", "kv_n_heads")
        config.divides(("attn_config", "kv_n_heads"), kv, "n_heads", heads)
        return kv
    if kind not in (None, "multihead_attention"):
        known = ("grouped_query_attention", "multihead_attention", "multiquery_attention")
        config.fault(("attn_config", "attn_type"), f"got {kind!r}; {one_of(known, kind)}")
    return heads


def _plain(config: _Config, hidden: int, heads: int, layers: str) -> dict[str, Any]:
    """Return the Transformer fields that GPT-2 and MPT share; key heads equal query heads and span the hidden size."""
    return {
        "num_layers": config.size(layers, most=_MOST_LAYERS),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "vocab_size": config.size("vocab_size"),
    }


def _rotary(config: _Config, head_dim: int | None = None) -> dict[str, Any]:
    """Return the Transformer fields that all model families with rotary positions share (Llama and relatives)."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    # An explicit head_dim need not be hidden_size / heads.
    if config.get(("head_dim",)) is None and head_dim is None:
        config.divides(("num_attention_heads",), heads, "hidden_size", hidden, "; or give head_dim")
    kv = config.size("num_key_value_heads", default=heads)
    config.divides(("num_key_value_heads",), kv, "num_attention_heads", heads)
    return {
        "num_layers": config.size("num_hidden_layers", most=_MOST_LAYERS),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv,
        "head_dim": head_dim or config.size("head_dim", default=max(1, hidden // heads)),
        "ffn_size": config.size("intermediate_size"),
        "vocab_size": config.size("vocab_size"),
        "max_positions": config.size("max_position_embeddings", default=2048),
        "norm": "rmsnorm",
        "gated": True,
        "positions": "rotary",
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "tied": config.flag("tie_word_embeddings", default=False),
    }


def _llama(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a Llama config.json."""
    bias = config.flag("attention_bias", default=False)
    mlp = config.flag("mlp_bias", default=False)
    return _rotary(config) | {"attention_bias": bias, "output_bias": bias, "mlp_bias": mlp}


def _qwen2(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen2 config.json."""
    # Qwen2 has biases on Q, K and V but not on the output projection; the file does not say so.
    return _rotary(config) | {"attention_bias": True}


def _mixtral(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a Mixtral config.json."""
    experts, active = _chosen(config, "num_local_experts")
    return _rotary(config) | {"num_experts": experts, "active_experts": active}


def _chosen(config: _Config, experts: str, default: int | None = None) -> tuple[int, int]:
    """Return the numbers of experts in total (key `experts`) and per token, from a config.json."""
    count = config.size(experts, default=default, most=_MOST_LAYERS)
    active = config.size("num_experts_per_tok")
    if not config.faults and active > count:
        config.fault(("num_experts_per_tok",), f"got {active}; must be at most {experts} {count}")
    return count, active


def _qwen3(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen3 config.json."""
    return _llama(config) | {"qk_norm": "head"}


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a Qwen3 config.json with experts."""
    # Other patterns of dense and expert layers would be counted wrongly.
    if config.get(("decoder_sparse_step",)) not in (None, 1) or config.get(("mlp_only_layers",)):
        config.fault(("decoder_sparse_step",), "must be 1, with experts in every layer; others are not modelled")
    experts, active = _chosen(config, "num_experts")
    width = config.size("moe_intermediate_size")
    return _qwen3(config) | {"num_experts": experts, "active_experts": active, "ffn_size": width}


def _deepseek_v3(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a DeepSeek-V3 config.json, without the multi-token prediction layer, which the
    deployed model lacks.
    """
    experts, active = _chosen(config, "n_routed_experts")
    if config.get(("moe_layer_freq",)) not in (None, 1):
        config.fault(("moe_layer_freq",), "must be 1; others are not modelled")
    latent = LatentAttention(
        query_rank=config.size("q_lora_rank"),
        kv_rank=config.size("kv_lora_rank"),
        plain_dim=config.size("qk_nope_head_dim"),
        rotary_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )
    dense = config.size("first_k_dense_replace", default=0, least=0)
    layers = config.size("num_hidden_layers", most=_MOST_LAYERS)
    if not config.faults and dense > layers:
        config.fault(("first_k_dense_replace",), f"got {dense}; must be at most num_hidden_layers {layers}")
    # Attention's FLOPs need a single head width: the mean of a key's (192) and a value's (128).
    return _rotary(config, head_dim=(latent.key_dim + latent.value_dim) // 2) | {
        "num_experts": experts,
        "active_experts": active,
        "shared_experts": config.size("n_shared_experts", default=0, least=0),
        "ffn_size": config.size("moe_intermediate_size"),
        # "noaux_tc" adds a bias per expert to balance the load.
        "router_bias": config.get(("topk_method",)) == "noaux_tc",
        "dense_layers": min(dense, layers),
        "dense_ffn_size": config.size("intermediate_size"),
        "latent": latent,
    }


def _gpt_neox(config: _Config) -> dict[str, Any]:
    """Return the Transformer fields for a GPT-NeoX config.json."""
    bias = config.flag("attention_bias", default=True)
    plain = {"norm": "layernorm", "gated": False, "mlp_bias": True}
    return _rotary(config) | plain | {"attention_bias": bias, "output_bias": bias}


_FAMILIES: Final[MappingProxyType[str, Callable[[_Config], dict[str, Any]]]] = MappingProxyType(
    {
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "deepseek_v3": _deepseek_v3,
        "kimi_k2": _deepseek_v3,
        "llama": _llama,
        "mistral": _rotary,
        "mixtral": _mixtral,
        "mpt": _mpt,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
    }
)
