"""Parameter counts against those that authors and hubs print."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.model.families import FAMILIES
from simulator.model.load import load_model
from simulator.model.parameters import active, layer_parameters, total
from tests.families import CONFIGS

# Hugging Face, "safetensors" metadata of openai-community/gpt2*, meta-llama/Llama-3.1-*, Qwen/Qwen2-*,
# mistralai/Mixtral-8x7B-v0.1, as also listed by keras-hub's presets.
EXACT = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "qwen2_0.5b": 494_032_768,
    "qwen2_7b": 7_615_616_512,
    "qwen2_72b": 72_706_203_648,
    "mixtral_8x7b": 46_702_792_704,
}
# The same for meta-llama/Llama-2-*-hf. Those files also hold head_dim / 2 rotary frequencies for each layer, which are
# no parameters.
WITH_FREQUENCIES = {"llama2_7b": 6_738_417_664, "llama2_13b": 13_015_866_880, "llama2_70b": 68_976_653_312}
# Narayanan et al., SC21, arXiv:2104.04473, table 1: parameters [10^9].
MEGATRON = {
    "megatron_1.7b": 1.7, "megatron_3.6b": 3.6, "megatron_7.5b": 7.5, "megatron_18b": 18.4, "megatron_39b": 39.1,
    "megatron_76b": 76.1, "megatron_145b": 145.6, "megatron_310b": 310.1, "megatron_530b": 529.6, "megatron_1t": 1008.0,
}  # fmt: skip
MPT = list(csv.DictReader((Path(__file__).parents[1] / "golden" / "mpt_training.csv").read_text().splitlines()))


@pytest.mark.parametrize("name", EXACT)
def test_the_count_is_the_hubs(name: str) -> None:
    assert total(load_model(name)) == EXACT[name]


@pytest.mark.parametrize("name", WITH_FREQUENCIES)
def test_the_count_is_the_hubs_but_for_rotary_frequencies(name: str) -> None:
    model = load_model(name)
    frequencies = model.num_layers * model.head_dim // 2
    assert total(model) == WITH_FREQUENCIES[name] - frequencies


# What their authors and their names say, all and for each token [10^9]: Mixtral 8x22B 141 and 39, Qwen3 30.5 and 3.3,
# 235 and 22 (arXiv:2505.09388, table 2), DeepSeek-V2 236 and 21 (arXiv:2405.04434), DeepSeek-V3 671 and 37, which
# leaves the input's table out (arXiv:2412.19437), Nemotron 3 Nano 31.6 and 3.6 (arXiv:2512.20848), Super 120.6 and 12.7
# (NVIDIA-Nemotron-3-Super-120B-A12B).
# Here every active parameter counts.
EXPERTS = {
    "mixtral_8x7b": (46.703, 12.880),
    "mixtral_8x22b": (140.621, 39.152),
    "qwen3_30b_a3b": (30.532, 3.353),
    "qwen3_235b_a22b": (235.094, 22.191),
    "deepseek_v2": (235.741, 21.376),
    "deepseek_v3": (671.026, 37.552),
    "nemotron_3_nano": (31.578, 3.580),
    "nemotron_3_super": (120.669, 12.770),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_models_with_experts_have_the_parameters_of_their_names(name: str) -> None:
    model = load_model(name)
    assert (round(total(model) / 1e9, 3), round(active(model) / 1e9, 3)) == EXPERTS[name]


def test_null_for_the_short_vector_of_queries_is_a_full_matrix() -> None:
    # DeepSeek-V2-Lite: arXiv:2405.04434, appendix B (27 layers, 15.7 billion parameters, 2.4 billion of a token).
    keys = json.loads(registry.find("model", "deepseek_v2").read_text()) | {
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "n_routed_experts": 64, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
    }  # fmt: skip
    model = load_model(keys)
    attention = 2048 * 16 * 192 + 2048 * (512 + 64) + 512 + 512 * 16 * 256 + 16 * 128 * 2048
    experts = 66 * 3 * 2048 * 1408 + 64 * 2048
    layers = 27 * (attention + 2 * 2048) + 3 * 2048 * 10944 + 26 * experts
    assert total(model) == 2 * 102400 * 2048 + 2048 + layers == 15_706_484_224
    with pytest.raises(ScenarioError, match="q_lora_rank: is missing"):
        load_model({name: value for name, value in keys.items() if name != "q_lora_rank"})


def test_kimi_k2_is_deepseek_v3_with_other_sizes() -> None:
    """Kimi K2: 1,026.4 B in all, 32.86 B for each token (Moonshot AI, config.json)."""
    keys = json.loads(registry.find("model", "deepseek_v3").read_text()) | {
        "model_type": "kimi_k2", "first_k_dense_replace": 1, "n_routed_experts": 384, "num_attention_heads": 64,
        "num_key_value_heads": 64, "vocab_size": 163840,
    }  # fmt: skip
    model = load_model(keys)
    assert (round(total(model) / 1e9, 1), round(active(model) / 1e9, 2)) == (1026.4, 32.86)


def test_latent_attention_has_187_million_weights_a_layer() -> None:
    """h q + q + q a (nope + rope) + h (kv + rope) + kv + kv a (nope + v) + a v h (arXiv:2412.19437, section 4.2)."""
    named = {p.name: p.elements for p in layer_parameters(load_model("deepseek_v3"))}
    attention = [n for name, n in named.items() if name.startswith(("query", "kv", "proj"))]
    h, q, kv, a, nope, rope, v = 7168, 1536, 512, 128, 128, 64, 128
    expected = h * q + q + q * a * (nope + rope) + h * (kv + rope) + kv + kv * a * (nope + v) + a * v * h
    assert sum(attention) == expected
    assert round(expected / 1e6, 1) == 187.1


def test_gpt3_has_the_count_that_its_paper_sums_up_compute_with() -> None:
    # Brown et al. 2020, arXiv:2005.14165, table D.1: 174,600 M parameters.
    assert round(total(load_model("gpt3_175b")) / 1e6, -2) == 174_600


@pytest.mark.parametrize("name", MEGATRON)
def test_megatrons_models_obey_equation_2_and_table_1(name: str) -> None:
    model = load_model(name)
    layers, h, vocab, s = model.num_layers, model.hidden_size, model.vocab_size, model.max_positions
    equation_2 = 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab + s) / (12 * layers * h))
    assert total(model) == pytest.approx(equation_2 + 2 * h, rel=1e-12)  # the last norm is not in the equation
    assert round(total(model) / 1e9, 1) == MEGATRON[name]


@pytest.mark.parametrize(("name", "seq_len"), sorted({(row["model"], int(row["seq_len"])) for row in MPT}))
def test_mpt_has_a_position_for_each_token_of_its_sequence(name: str, seq_len: int) -> None:
    printed = {int(row["params"]) for row in MPT if (row["model"], int(row["seq_len"])) == (name, seq_len)}
    assert {total(load_model(f"mpt_{name}", seq_len=seq_len))} == printed


def test_mpt_1b_is_tables_matrices_biases_and_norms() -> None:
    d, layers, vocab, seq_len = 2048, 24, 50368, 2048
    tables = (vocab + seq_len) * d
    matrices = 12 * d * d
    biases = 3 * d + d + 4 * d + d
    norms = 4 * d
    assert tables + layers * (matrices + biases + norms) + 2 * d == 1_315_950_592
    assert total(load_model("mpt_1b")) == 1_315_950_592


def test_a_token_of_mixtral_meets_2_of_8_experts() -> None:
    d, ffn, layers = 4096, 14336, 32
    idle = 6 * 3 * d * ffn * layers
    assert active(load_model("mixtral_8x7b")) == 46_702_792_704 - idle
    assert round(active(load_model("mixtral_8x7b")) / 1e9, 1) == 12.9  # Jiang et al. 2024, arXiv:2401.04088: 13B


def test_nemotron_h_8b_has_the_count_of_its_paper() -> None:
    # NVIDIA, "Nemotron-H", 2025, arXiv:2504.03624: 8.1B.
    assert round(total(load_model("nemotron_h_8b")) / 1e9, 1) == 8.1


def test_gpt_neox_20b_has_the_count_of_its_model_card() -> None:
    # EleutherAI/gpt-neox-20b: 20,554,567,680; untied, biases everywhere, rotary positions.
    keys = {"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "vocab_size": 50432, "max_position_embeddings": 2048}  # fmt: skip
    assert total(load_model(keys)) == 20_554_567_680


def test_an_mpt_with_alibi_and_without_biases_is_matrices_and_norms() -> None:
    # As mosaicml/mpt-7b: d 4096, 32 layers, vocabulary 50432.
    keys = {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432, "no_bias": True,
            "attn_config": {"alibi": True}}  # fmt: skip
    assert total(load_model(keys, seq_len=65536)) == 50432 * 4096 + 32 * 12 * 4096**2 + 65 * 4096


# Families that a test above holds to a published count, beside those of the tables.
BY_A_TEST = {"gpt_neox", "mpt", "kimi_k2"}
# Families whose files hold the keys of another family under a key of their own, or are equal to another family
# (tests/theory/test_model_families.py).
ALIASES = {"deepseek_v2", "gemma3", "llama4", "xlm-roberta"}


def test_every_family_has_a_published_count() -> None:
    """A family that is an alias of another one, and forgets what is its own, is seen by its parameters alone."""
    folder = Path(load_model.__code__.co_filename).parents[1] / "catalog" / "models"
    named = [*EXACT, *WITH_FREQUENCIES, *EXPERTS, *MEGATRON]
    tables = {json.loads((folder / f"{name}.json").read_text())["model_type"] for name in named}
    assert set(FAMILIES) == tables | BY_A_TEST | ALIASES | {keys["model_type"] for keys in CONFIGS.values()}
