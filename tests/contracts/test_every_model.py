"""What holds for every model of the catalog."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.basics import registry
from simulator.basics.document import load, parse
from simulator.model.flops import model_flops_per_token
from simulator.model.head import embedding_operations, head_operations
from simulator.model.kernel import Matmul
from simulator.model.layer import layer_operations
from simulator.model.layer_list import LayerList
from simulator.model.load import load_model
from simulator.model.operation import Batch, Operation, saved_bytes
from simulator.model.parameters import active, embedding_parameters, layer_parameters, modules, total
from simulator.model.shape import Transformer

MODELS = [name for name in registry.names("model") if isinstance(load_model(name), Transformer)]
LISTS = [name for name in registry.names("model") if name not in MODELS]
DOCS = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
CATALOG = DOCS.partition("## The catalog")[2]
KEYS = {"model_type", "vocab_size", "tie_word_embeddings", "source"}
SIZES = {
    "gpt2": {"n_embd", "n_layer", "n_head", "n_inner", "n_positions"},
    "mpt": {"d_model", "n_layers", "n_heads", "expansion_ratio", "max_seq_len", "learned_pos_emb", "no_bias",
            "attn_config"},
    "llama": {"attention_bias", "mlp_bias"},
    "bert": {"type_vocab_size"},
    "gemma2": {"head_dim", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"},
    "gemma3_text": {"head_dim", "sliding_window", "sliding_window_pattern"},
    "gpt_bigcode": {"n_embd", "n_layer", "n_head", "n_inner", "n_positions", "multi_query"},
    "gpt_oss": {"head_dim", "num_local_experts", "num_experts_per_tok", "attention_bias", "sliding_window"},
    "llama4_text": {"head_dim", "intermediate_size_mlp", "num_local_experts", "num_experts_per_tok",
                    "interleave_moe_layer_step", "attention_chunk_size", "no_rope_layer_interval", "use_qk_norm",
                    "attention_bias"},
    "mistral": {"sliding_window"},
    "olmo2": {"attention_bias"},
    "nemotron_h": {"head_dim", "hybrid_override_pattern", "mamba_num_heads", "mamba_head_dim", "ssm_state_size",
                   "n_groups", "conv_kernel", "chunk_size", "mlp_hidden_act"},
    "phi3": {"sliding_window"},
    "qwen3": {"head_dim", "attention_bias"},
    "vit": {"image_size", "patch_size", "num_channels", "qkv_bias", "num_labels"},
    "mixtral": {"num_local_experts", "num_experts_per_tok"},
    "qwen2": set(),
    "qwen3_moe": {"head_dim", "moe_intermediate_size", "num_experts", "num_experts_per_tok"},
    "deepseek_v3": {"moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group",
                    "topk_group", "topk_method", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank",
                    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"},
}  # fmt: skip
ROTARY = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "max_position_embeddings", "hidden_act"}  # fmt: skip
ROUTED = {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
          "n_group", "topk_group"}  # fmt: skip
EXPERTS = {"nemotron_3_nano": ROUTED, "nemotron_3_super": ROUTED | {"moe_latent_size"}}


# Whole tokens for each expert of every model: 1280 x 6 / 160.
LENGTH = 640


def matmul_flops(operations: tuple[Operation, ...]) -> float:
    kernels = [k for op in operations for k in (*op.forward, *op.backward)]
    return sum(k.flops for k in kernels if isinstance(k, Matmul))


def without_scan(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Operations without Mamba-2's scan, whose kernels compute more than the formula of the model FLOPs counts."""
    return tuple(op for op in operations if op.name != "mamba scan")


def test_the_catalog_holds_the_families_that_papers_measure() -> None:
    assert {name.partition("_")[0] for name in MODELS} >= {"gpt2", "gpt3", "mpt", "llama2", "llama3", "qwen2",
                                                           "mixtral", "megatron"}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_file_holds_sizes_and_their_source_and_nothing_else(name: str) -> None:
    text = registry.find("model", name).read_text()
    data = json.loads(text)
    family = data["model_type"]
    shared = {"gpt2": set(), "gpt_bigcode": set(), "mpt": set(), "bert": ROTARY - {"num_key_value_heads"},
              "nemotron_h": ROTARY - {"hidden_act"} | EXPERTS.get(name, set()),
              "vit": ROTARY - {"num_key_value_heads", "max_position_embeddings"}}.get(family, ROTARY)  # fmt: skip
    keys = KEYS - {"vocab_size", "tie_word_embeddings"} if family == "vit" else KEYS
    assert set(data) == keys | SIZES[family] | shared
    assert any(word in data["source"] for word in ("arXiv", "table", "README", "scripts/"))
    assert text.endswith("}\n")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_its_file_by_name_by_path_and_inline(name: str) -> None:
    path = registry.find("model", name)
    model = load_model(name)
    assert model.name == name
    assert load_model(str(path)) == load_model(path) == model
    assert load_model(json.loads(path.read_text()) | {"name": name}) == model
    assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize("name", MODELS)
def test_heads_fill_the_hidden_size(name: str) -> None:
    model = load_model(name)
    # Later families say how wide a head is.
    family = json.loads(registry.find("model", name).read_text())["model_type"]
    if "head_dim" not in SIZES[family] and family != "deepseek_v3":
        assert model.attention_width == model.hidden_size
    assert model.num_heads % model.num_kv_heads == 0


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_embedding_layers_and_head(name: str) -> None:
    model = load_model(name)
    found = modules(model)
    assert len(found) == model.num_layers + 2
    assert total(model) == sum(module.elements for module in found)
    assert active(model) <= total(model)
    assert (active(model) == total(model)) == (model.num_experts == 0)
    assert len({p.name for p in layer_parameters(model)}) == len(layer_parameters(model))
    rows = [p.shape[0] for p in embedding_parameters(model)]
    expected = [model.vocab_size] if model.patches is None else [model.hidden_size] * 3
    expected += [model.max_positions] * (model.positions == "learned")
    expected += [model.token_types] * bool(model.token_types) + [model.hidden_size] * 2 * model.embedding_norm
    assert rows == expected


@pytest.mark.parametrize("attention", ["standard", "flash"])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_multiplies_by_each_of_its_matrices_three_times(name: str, attention: str) -> None:
    model = load_model(name)
    batch = Batch(sequences=2, seq_len=LENGTH, attention=attention)  # type: ignore[arg-type]
    weights = [p for p in layer_parameters(model) if len(p.shape) == 2]
    expert = sum(p.elements for p in weights if p.name.startswith("expert 0."))
    used = sum(p.elements for p in weights) - (model.num_experts - model.active_experts) * expert
    attends = attention == "standard" and "*" in model.layer_blocks
    scores = 12 * model.attention_width * batch.seq_len * batch.tokens if attends else 0
    assert matmul_flops(layer_operations(model, batch)) == 6 * used * batch.tokens + scores


@pytest.mark.parametrize("name", MODELS)
def test_all_kernels_together_compute_the_model_flops(name: str) -> None:
    # Scores in HBM are computed for all keys, windows or not.
    model = replace(load_model(name), windows=())
    batch = Batch(sequences=2, seq_len=LENGTH, attention="standard")
    layers = sum(
        matmul_flops(without_scan(layer_operations(model.of_layer(i), batch))) for i in range(model.num_layers)
    )
    if model.mamba is not None:
        scans = sum(blocks == "M" for blocks in model.blocks)
        layers += 21 * batch.tokens * scans * model.mamba.inner * model.mamba.state
    ends = matmul_flops(embedding_operations(model, batch)) + matmul_flops(head_operations(model, batch))
    if model.patches is not None:
        # Images need no gradient, and only class tokens pass the head: the formula neglects both.
        ends = 6 * batch.tokens * model.patches.width * model.hidden_size
    assert layers + ends == batch.tokens * model_flops_per_token(model, batch.seq_len, count="matrices")


@pytest.mark.parametrize("name", MODELS)
def test_names_within_a_pass_are_unique_and_what_is_saved_has_a_source(name: str) -> None:
    model = load_model(name)
    batch = Batch(sequences=1, seq_len=256, dropout=True, attention="standard")
    for operations in (embedding_operations(model, batch), layer_operations(model, batch),
                       head_operations(model, batch)):  # fmt: skip
        names = [op.name for op in operations]
        assert len(set(names)) == len(names)
        assert {saved.source for op in operations for saved in op.saved} <= {*names, "input"}
        assert all(saved.nbytes > 0 for op in operations for saved in op.saved)


@pytest.mark.parametrize("name", MODELS)
def test_activations_grow_with_sequences_and_with_their_dtype(name: str) -> None:
    model = load_model(name)
    one = saved_bytes(layer_operations(model, Batch(1, 512)))
    assert saved_bytes(layer_operations(model, Batch(3, 512))) == 3 * one
    assert saved_bytes(layer_operations(model, Batch(1, 1024))) == 2 * one  # flash: nothing quadratic
    assert one < saved_bytes(layer_operations(model, Batch(1, 512, itemsize=4))) < 2 * one  # statistics stay


@pytest.mark.parametrize("name", MODELS)
def test_docs_list_the_model_with_its_parameters(name: str) -> None:
    model = load_model(name)
    heads = {f"{model.num_heads}", f"{model.num_heads} / {model.num_kv_heads}"}
    rows = [line.strip("| ").split(" | ") for line in CATALOG.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    _, layers, hidden, printed_heads, ffn, vocab, parameters = rows[0]
    assert (int(layers), int(hidden), int(ffn), int(vocab)) == (
        model.num_layers, model.hidden_size, model.ffn_size, model.vocab_size,
    )  # fmt: skip
    assert printed_heads in heads
    assert parameters.split(", ")[0].split(" ")[0] == f"{total(model):,}"


@pytest.mark.parametrize("name", LISTS)
def test_docs_list_a_list_of_layers_with_its_parameters(name: str) -> None:
    model = load_model(name)
    assert isinstance(model, LayerList)
    parameters = sum(module.elements for module in model.modules)
    assert f"| `{name}` | {model.num_layers} | {parameters:,} |" in DOCS
    # Equal by name, by path and inline.
    path = registry.find("model", name)
    assert load_model(path) == model == load_model(dict(load(path).data) | {"name": name})


def test_the_inline_model_of_the_docs_is_read() -> None:
    text = DOCS.partition("```yaml\n")[2].partition("```")[0]
    model = load_model(parse(text).data["training"]["model"])
    tables, layer = 2 * 32000 * 2048, 2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 5632 + 2 * 2048
    assert total(model) == tables + 22 * layer + 2048
