"""Keys of config.json, family by family."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.model.families import FAMILIES
from simulator.model.load import load_model
from simulator.model.parameters import layer_parameters

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
                         "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
MPT: dict[str, Any] = {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 8, "vocab_size": 1000,
                       "no_bias": False, "attn_config": {"alibi": False}}  # fmt: skip
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 128,
                        "vocab_size": 1000}  # fmt: skip
# The message lists the first families.
KNOWN = "bert, bloom, cohere, cohere2, deepseek_v2, deepseek_v3, falcon, gemma, gemma2, gemma3, gemma3_text, glm, ..."


def biases(keys: dict[str, Any]) -> set[str]:
    return {p.name for p in layer_parameters(load_model(keys)) if p.name.endswith("bias")}


def test_gpt2_is_tied_has_biases_and_an_mlp_of_four_times_its_width_unless_said_otherwise() -> None:
    model = load_model(GPT2)
    assert (model.ffn_size, model.tied, model.norm, model.gated) == (256, True, "layernorm", False)
    assert (model.positions, model.max_positions, model.head_dim) == ("learned", 128, 8)
    other = load_model(GPT2 | {"n_inner": 100, "tie_word_embeddings": False})
    assert (other.ffn_size, other.tied) == (100, False)


def test_llama_has_no_biases_unless_said_otherwise() -> None:
    assert biases(LLAMA) == set()
    assert biases(LLAMA | {"attention_bias": True}) == {"qkv.bias", "proj.bias"}
    assert biases(LLAMA | {"mlp_bias": True}) == {"mlp.up.bias", "mlp.down.bias"}
    model = load_model(LLAMA)
    assert (model.norm, model.gated, model.positions, model.tied) == ("rmsnorm", True, "rotary", False)


def test_qwen2_has_biases_on_q_k_and_v_only() -> None:
    assert biases(LLAMA | {"model_type": "qwen2"}) == {"qkv.bias"}


def test_mistral_ignores_llamas_switches() -> None:
    assert biases(LLAMA | {"model_type": "mistral", "attention_bias": True}) == set()


def test_gpt_neox_is_rotary_with_layer_norms_and_biases() -> None:
    keys = LLAMA | {"model_type": "gpt_neox"}
    model = load_model(keys)
    assert (model.norm, model.gated, model.positions, model.tied) == ("layernorm", False, "rotary", False)
    assert biases(keys) == {"norm1.bias", "norm2.bias", "qkv.bias", "proj.bias", "mlp.up.bias", "mlp.down.bias"}
    assert "qkv.bias" not in biases(keys | {"attention_bias": False})
    assert (model.form, load_model(keys | {"use_parallel_residual": False}).form) == ("parallel", "pre")


def test_key_value_heads_and_head_dim_follow_from_the_heads_where_they_are_not_given() -> None:
    plain = load_model(LLAMA | {"num_key_value_heads": None, "head_dim": None})
    assert (plain.num_kv_heads, plain.head_dim) == (8, 8)
    wide = load_model(LLAMA | {"head_dim": 32, "hidden_size": 60})
    assert (wide.head_dim, wide.attention_width, wide.kv_width) == (32, 256, 64)


def test_mixtral_has_experts() -> None:
    model = load_model(LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert (model.num_experts, model.active_experts) == (8, 2)


def test_a_run_sizes_the_position_table_of_mpt() -> None:
    assert load_model(MPT).max_positions == 2048
    assert load_model(MPT | {"max_seq_len": 4096}).max_positions == 4096
    assert load_model(MPT | {"max_seq_len": 4096}, seq_len=512).max_positions == 512


@pytest.mark.parametrize(
    ("attention", "positions"),
    [({"alibi": False}, "learned"), ({"alibi": True}, "none"), ({}, "none"), ({"rope": True}, "rotary")],
)
def test_mpt_learns_positions_unless_alibi_or_rope_stands_for_them(attention: dict[str, Any], positions: str) -> None:
    assert load_model(MPT | {"attn_config": attention}).positions == positions


def test_mpt_has_neither_positions_nor_alibi_if_both_are_switched_off() -> None:
    assert load_model(MPT | {"learned_pos_emb": False}).positions == "none"


@pytest.mark.parametrize(
    ("attention", "kv_heads"),
    [
        ({"attn_type": "multihead_attention"}, 8),
        ({"attn_type": "multiquery_attention"}, 1),
        ({"attn_type": "grouped_query_attention", "kv_n_heads": 4}, 4),
    ],
)
def test_mpt_groups_its_queries_as_its_attention_says(attention: dict[str, Any], kv_heads: int) -> None:
    assert load_model(MPT | {"attn_config": attention}).num_kv_heads == kv_heads


def test_mpt_without_biases_has_none_in_its_norms_either() -> None:
    assert len(biases(MPT)) == 6
    assert biases(MPT | {"no_bias": True}) == set()


MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (LLAMA | {"model_type": "lama"}, f"model_type: got 'lama'; one of {KNOWN}; did you mean 'llama'"),
        (LLAMA | {"model_type": None}, f"model_type: is missing; one of {KNOWN}"),
        (LLAMA | {"model_type": ["llama"]}, "model_type: got \\['llama'\\]; one of"),
        (LLAMA | {"vocab_size": None}, "vocab_size: is missing; give it"),
        (LLAMA | {"vocab_size": None, "vocabsize": 3}, "vocab_size: is missing; is it meant by 'vocab.*size'"),
        (LLAMA | {"vocab_size": -5}, "vocab_size: got -5; must be from 1 to 100000000"),
        (LLAMA | {"vocab_size": 10**20}, "vocab_size: got 1.*; must be from 1 to 100000000"),
        (LLAMA | {"hidden_size": 64.0}, "hidden_size: got 64.0; must be a whole number"),
        (LLAMA | {"hidden_size": True}, "hidden_size: got True; must be a whole number"),
        (LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers: got 1000000; must be from 1 to 10000"),
        (LLAMA | {"num_attention_heads": 7}, "num_attention_heads: got 7; must divide hidden_size 64; or give head_d"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads: got 3; must divide num_attention_heads 8"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings: got 'no'; must be true or false"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok: got 9; must be at most num_local_experts 8"),
        (GPT2 | {"n_head": 7}, "n_head: got 7; must divide n_embd 64"),
        (MPT | {"n_heads": 7}, "n_heads: got 7; must divide d_model 64"),
        (MPT | {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln: got True; norms of queries and keys are not"),
        (MPT | {"attn_config": {"alibi": 1}}, "attn_config.alibi: got 1; must be true or false"),
        (
            MPT | {"attn_config": {"attn_type": "multiquery"}},
            "attn_config.attn_type: got 'multiquery'; one of .*did you mean 'multiquery_attention'",
        ),
        (
            MPT | {"attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 3}},
            "attn_config.kv_n_heads: got 3; must divide n_heads 8",
        ),
    ],
)
def test_a_wrong_key_is_told_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=f"^model: {message}") as caught:
        load_model(keys)
    assert "\n" not in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        load_model({"model_type": "llama", "hidden_size": 0})
    keys = {line.split(": ")[1] for line in str(caught.value).splitlines()}
    assert keys == {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"}


def test_the_documentation_lists_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    told = {name for row in rows[: len(FAMILIES)] for name in re.findall("`(.+?)`", row)}
    assert set(FAMILIES) <= told


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            LLAMA,
            "model_type: llama if its layers have RMSNorm before attention and MLP, a gated MLP, rotary positions, no "
            "biases, and these keys mean the same as in llama: hidden_size, intermediate_size, num_attention_heads, "
            "num_hidden_layers, num_key_value_heads, vocab_size",
        ),
        (
            GPT2,
            "model_type: gpt2 if its layers have LayerNorm before attention and MLP, an MLP of two matrices, learned "
            "positions, biases of Q, K and V and the MLP, and these keys mean the same as in gpt2: n_embd, n_head, "
            "n_layer, n_positions, vocab_size",
        ),
        (MIXTRAL, "model_type: mixtral if its layers have RMSNorm before attention and MLP"),
    ],
)
def test_an_unknown_family_is_told_the_known_family_that_reads_its_keys(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=f"^model: model_type: got 'xyz', an unknown family; write {message}"):
        load_model(keys | {"model_type": "xyz"})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types: has 1 entries; must have one"),
        ({"model_type": "gemma2", "layer_types": ["full", "full"]}, "layer_types: got 'full'; one of chunked"),
        ({"model_type": "gemma2", "attn_logit_softcapping": True}, "attn_logit_softcapping: got True; must be a nu"),
        ({"model_type": "qwen2", "layer_types": "all", "use_sliding_window": True}, "layer_types: got 'all'; must be"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm: got True; must be false; these norms"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder: got True; must be false; attention to an encoder"),
        (
            {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
             "mlp_only_layers": [1]},
            r"mlp_only_layers: got \[1\]; must be the first layers",
        ),
        (
            {"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
             "shared_expert_intermediate_size": 48},
            "moe_intermediate_size: got 32; must divide shared_expert_intermediate_size 48",
        ),
        (
            {"model_type": "llama4", "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
             "moe_layers": [0, 1]},
            "moe_layers: must be every 2-th layer, as interleave_moe_layer_step says",
        ),
    ],
)  # fmt: skip
def test_a_key_with_a_value_that_is_not_modelled_is_told(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=f"^model: {message}"):
        load_model(LLAMA | keys)


def test_opt_350m_is_refused_with_the_reasons() -> None:
    keys = {"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "vocab_size": 50272,
            "num_attention_heads": 16, "do_layer_norm_before": False, "word_embed_proj_dim": 512}  # fmt: skip
    with pytest.raises(ScenarioError, match="must be true; norms after the residual addition") as told:
        load_model(keys)
    assert "word_embed_proj_dim: got 512; must be 1024" in str(told.value)


def test_a_null_cap_switches_it_off_and_a_missing_one_has_the_default_of_its_family() -> None:
    keys = LLAMA | {"model_type": "gemma2"}
    assert load_model(keys).score_cap
    assert load_model(keys).logit_cap
    assert not load_model(keys | {"attn_logit_softcapping": None}).score_cap
    assert not load_model(keys | {"model_type": "gemma3_text"}).score_cap
