"""Which model do the numbers of an architecture describe: a model of the catalog, or the keys of a config.json?

Facts "shape.*" are named after the fields of a Transformer where such a field exists. Each family of models is tried;
the family that has the most of the wanted sizes is taken, among equals the family with the most of the wanted features,
and the other features are reported.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.document import Document
from simulator.basics.errors import ScenarioError
from simulator.importing.facts import Facts
from simulator.model.config_keys import ConfigKeys
from simulator.model.families import FAMILIES
from simulator.model.load import load_model
from simulator.model.shape import Transformer

MODEL: Final = "training.model"
# Sizes without which no model can be written.
_NEEDED: Final = {"shape.num_layers": "layers", "shape.hidden_size": "hidden size", "shape.num_heads": "heads"}
# Families in order of preference, dense and with experts; the features of each stand in model/families.py.
_DENSE: Final = ("llama", "gpt2", "qwen2", "qwen3", "gpt_neox", "starcoder2", "stablelm")
_SPARSE: Final = ("mixtral", "granitemoe", "qwen3_moe", "glm4_moe", "gpt2")
_LATENT: Final = ("deepseek_v3",)
_HYBRID: Final = ("nemotron_h",)
# Fields of a Transformer that the facts name, with words for a message.
_FEATURES: Final = {
    "norm": "norm",
    "gated": "gated MLP",
    "positions": "positions",
    "attention_bias": "bias of Q, K and V",
    "output_bias": "bias of attention's output",
    "mlp_bias": "bias of the MLP",
    "qk_norm": "norm of Q and K",
    "tied": "shared embedding and head",
    "num_kv_heads": "key heads",
    "head_dim": "width of a head",
    "ffn_size": "width of the MLP",
    "num_experts": "experts",
    "active_experts": "experts per token",
    "expert_groups": "groups of experts",
    "active_groups": "groups per token",
    "shared_experts": "shared experts",
    "dense_layers": "first dense layers",
    "expert_every": "distance of layers with experts",
}
# Features without which matrices would have other sizes: a gated MLP has half as many parameters again.
_SIZES: Final = frozenset(_FEATURES) - {
    "norm", "positions", "attention_bias", "output_bias", "mlp_bias", "qk_norm", "active_experts",
}  # fmt: skip


def derive_model(facts: Facts, seq_len: int) -> None:
    """Add the fact `training.model` from the numbers of an architecture, if any are known."""
    names = [name for name in facts.names() if name.startswith("shape.")]
    if facts.has(MODEL):
        return
    if not any(name in _NEEDED for name in names):
        _derive_hub_model(facts)
        return
    missing = [word for name, word in _NEEDED.items() if not facts.has(name)]
    if missing:
        what = "; ".join(facts.lost(*_NEEDED)) or "write them"
        facts.fault(f"the model's {' and '.join(missing)} are missing; {what}, or give --model NAME", *names)
        return
    shape = {name.removeprefix("shape."): facts.value(name) for name in names}
    vocab = shape.get("vocab_size")
    family = _family_model(shape, seq_len, vocab or 1)
    if family is None:
        facts.fault("no family of models has these sizes; give --model with a config.json", *names)
        return
    config, model = family
    shipped = _shipped(model, seq_len, any_vocab=vocab is None)
    for field, word in _FEATURES.items():
        if field in shape and getattr(model, field) != shape[field]:
            why = f"{word}: {getattr(model, field)} is simulated, as in the family {config['model_type']}"
            facts.not_modelled(why, f"shape.{field}")
    if shipped is not None:
        facts.derive(MODEL, shipped[0], *names)
        if vocab is None:
            facts.assume(f"{MODEL} (vocab_size)", shipped[1], f"{shipped[0]} has the same other numbers")
        return
    if vocab is None:
        facts.assume(f"{MODEL} (vocab_size)", _VOCABULARY, "the files give none; GPT-2's, padded to 128 x 8")
        config["vocab_size"] = _VOCABULARY
    facts.derive(MODEL, config, *names)


def _derive_hub_model(facts: Facts) -> None:
    """Add the fact `training.model` from a name on a model hub, or a path that ends in such a name."""
    name = facts.value("hub_model")
    if name is None:
        # A default in place of a model that the files name would be another model.
        if lost := facts.lost("hub_model", *_NEEDED):
            facts.fault(f"{'; '.join(lost)}, or give --model NAME")
        return
    last = name.rstrip("/").rpartition("/")[2]
    model = registry.shipped("model", name) or registry.shipped("model", last)
    if model is None:
        facts.fault(f"got {name[:100]!r}, which is not in the catalog; give --model with a name of `simulator list "
                    "models`, or the path of its config.json", "hub_model")  # fmt: skip
        return
    facts.derive(MODEL, model, "hub_model")


# 50,257 tokens of GPT-2, padded by Megatron-LM to a multiple of 128 for 8 tensor-parallel ranks.
_VOCABULARY: Final = 51200


def _family_model(shape: dict[str, Any], seq_len: int, vocab: int) -> tuple[dict[str, Any], Transformer] | None:
    """Return the config.json of the family with the most of the sizes and features, and its model."""
    keys = _config_keys(shape, seq_len, vocab)
    families = _LATENT if "kv_rank" in shape else _SPARSE if shape.get("num_experts") else _DENSE
    families = _HYBRID if "blocks" in shape else families
    best: tuple[tuple[int, int], dict[str, Any], Transformer] | None = None
    for family in families:
        reader = ConfigKeys(Document("model", {**keys, "model_type": family}), seq_len)
        fields = FAMILIES[family](reader)
        if reader.faults:
            continue
        try:
            model = Transformer("", **fields)
        except ValueError:
            continue
        unlike = [field for field in _FEATURES if field in shape and getattr(model, field) != shape[field]]
        wrong = len(_SIZES.intersection(unlike)), len(unlike)
        if best is None or wrong < best[0]:
            used = {name: value for name, value in keys.items() if name in reader.used or value is None}
            best = wrong, {"model_type": family, **used}, model
    return None if best is None else (best[1], best[2])


def _config_keys(shape: dict[str, Any], seq_len: int, vocab: int) -> dict[str, Any]:
    """Return the keys of a config.json under the names of every family, of which each family reads its own."""
    hidden, heads, layers = shape["hidden_size"], shape["num_heads"], shape["num_layers"]
    ffn, bias = shape.get("ffn_size", 4 * hidden), shape.get("mlp_bias", True)
    attention_bias, kv = shape.get("attention_bias", bias), shape.get("num_kv_heads", heads)
    experts, active = shape.get("num_experts", 0), shape.get("active_experts", 1)
    dense_ffn, shared = shape.get("dense_ffn_size", ffn), shape.get("shared_experts", 0)
    positions = shape.get("max_positions", seq_len)
    keys = {
        "n_layer": layers, "num_hidden_layers": layers, "n_embd": hidden, "hidden_size": hidden, "n_head": heads,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": shape.get("head_dim"), "n_inner": ffn,
        "intermediate_size": dense_ffn if "dense_ffn_size" in shape else ffn, "moe_intermediate_size": ffn,
        "vocab_size": vocab, "n_positions": positions, "max_position_embeddings": positions,
        "tie_word_embeddings": shape.get("tied", True), "attention_bias": attention_bias, "mlp_bias": bias,
        "use_bias": bias, "use_qkv_bias": attention_bias, "use_parallel_residual": False,
        "use_qk_norm": shape.get("qk_norm") == "head", "first_k_dense_replace": shape.get("dense_layers", 0),
        "decoder_sparse_step": shape.get("expert_every", 1), "n_shared_experts": shared,
    }  # fmt: skip
    if shape.get("qk_norm") == "head":
        keys["mlp_only_layers"] = list(range(shape.get("dense_layers", 0)))
    if experts:
        keys |= {
            "num_local_experts": experts, "num_experts": experts, "n_routed_experts": experts,
            "num_experts_per_tok": active, "n_group": shape.get("expert_groups"),
            "topk_group": shape.get("active_groups"),
        }  # fmt: skip
    if "kv_rank" in shape:
        keys |= {
            "q_lora_rank": shape.get("query_rank"), "kv_lora_rank": shape["kv_rank"],
            "qk_nope_head_dim": shape.get("plain_dim", 128), "qk_rope_head_dim": shape.get("rotary_dim", 64),
            "v_head_dim": shape.get("value_dim", 128), "topk_method": "noaux_tc" if shape.get("router_bias") else "",
        }  # fmt: skip
    if "blocks" in shape:
        keys |= {
            "hybrid_override_pattern": shape["blocks"], "mamba_num_heads": shape["mamba_heads"],
            "mamba_head_dim": shape["mamba_head_dim"], "n_groups": shape["mamba_groups"],
            "ssm_state_size": shape["mamba_state"], "moe_latent_size": shape.get("expert_latent"),
            "moe_shared_expert_intermediate_size": shared * ffn,
            "head_dim": shape.get("head_dim", hidden // heads),
        }  # fmt: skip
    # Null is a value of this key alone: queries from the input.
    return {name: value for name, value in keys.items() if value is not None or name == "q_lora_rank"}


def _shipped(model: Transformer, seq_len: int, *, any_vocab: bool) -> tuple[str, int] | None:
    """Return the name and the vocabulary of the shipped model with the same numbers; None if there is none."""
    numbers = _numbers(model, any_vocab=any_vocab)
    for shipped in _transformers(seq_len):
        if _numbers(shipped, any_vocab=any_vocab) == numbers:
            return shipped.name, shipped.vocab_size
    return None


# Reading the catalog takes longer than the rest of an import.
@lru_cache(maxsize=16)
def _transformers(seq_len: int) -> tuple[Transformer, ...]:
    """Return the catalog's transformers that take sequences of this length."""
    models = list[Transformer]()
    for name in registry.names("model"):
        try:
            model = load_model(name, seq_len)
        except ScenarioError:
            # A list of layers, or fewer learned positions than the sequence has tokens.
            continue
        if isinstance(model, Transformer):
            models.append(model)
    return tuple(models)


def _numbers(model: Transformer, *, any_vocab: bool) -> Transformer:
    """Return a model without its name, and without numbers that change no step."""
    # Rotary positions have no table, whose rows would count.
    rows = model.max_positions if model.positions == "learned" else 1
    vocab = 1 if any_vocab else model.vocab_size
    # The width of dense layers, where every layer has experts.
    dense = model.dense_ffn_size if model.dense_layers or model.expert_every > 1 else 0
    return replace(model, name="", max_positions=rows, vocab_size=vocab, dense_ffn_size=dense)
