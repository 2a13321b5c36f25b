"""Models of the catalog, written as the arguments of Megatron-LM, are imported as these models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.basics import registry
from simulator.importing.importer import import_files
from simulator.importing.machine import Options
from simulator.importing.settings import Reason

# Families whose every size Megatron-LM's arguments can tell.
FAMILIES = ("gpt2", "llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
SEQ_LEN = 1024


def config(name: str) -> dict[str, Any]:
    path = registry.find("model", name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else {}
    return found


NAMES = [name for name in registry.names("model") if config(name).get("model_type") in FAMILIES]


def arguments(model: dict[str, Any]) -> list[str]:
    """The arguments of Megatron-LM for a config.json, by the meaning of both."""
    if model["model_type"] == "gpt2":
        hidden = model["n_embd"]
        return [
            f"--num-layers {model['n_layer']} --hidden-size {hidden} --num-attention-heads {model['n_head']}",
            f"--ffn-hidden-size {model['n_inner'] or 4 * hidden} --max-position-embeddings {model['n_positions']}",
        ]
    heads, kv = model["num_attention_heads"], model.get("num_key_value_heads", model["num_attention_heads"])
    words = [
        f"--num-layers {model['num_hidden_layers']} --hidden-size {model['hidden_size']} --num-attention-heads {heads}",
        f"--ffn-hidden-size {model['intermediate_size']} --swiglu --normalization RMSNorm --disable-bias-linear",
        "--position-embedding-type rope --max-position-embeddings 2048",
    ]
    words += [] if model["tie_word_embeddings"] else ["--untie-embeddings-and-output-weights"]
    words += [f"--group-query-attention --num-query-groups {kv}"] if kv != heads else []
    words += [f"--kv-channels {model['head_dim']}"] if "head_dim" in model else []
    words += ["--add-qkv-bias"] if model["model_type"] == "qwen2" else []
    words += ["--qk-layernorm"] if model["model_type"].startswith("qwen3") else []
    experts = model.get("num_local_experts", model.get("num_experts", model.get("n_routed_experts")))
    if experts:
        words += [f"--num-experts {experts} --moe-router-topk {model['num_experts_per_tok']}"]
        words += [f"--moe-ffn-hidden-size {model.get('moe_intermediate_size', model['intermediate_size'])}"]
    if model["model_type"] == "deepseek_v3":
        dense, width = model["first_k_dense_replace"], model["moe_intermediate_size"]
        words += [
            f"--moe-layer-freq ([0]*{dense}+[1]*{model['num_hidden_layers'] - dense}) --multi-latent-attention",
            f"--moe-shared-expert-intermediate-size {model['n_shared_experts'] * width}",
            f"--q-lora-rank {model['q_lora_rank']} --kv-lora-rank {model['kv_lora_rank']}",
            f"--qk-head-dim {model['qk_nope_head_dim']} --qk-pos-emb-head-dim {model['qk_rope_head_dim']}",
            f"--v-head-dim {model['v_head_dim']}",
        ]
        if "n_group" in model:
            words += [f"--moe-router-num-groups {model['n_group']} --moe-router-group-topk {model['topk_group']}"]
        words += ["--moe-router-enable-expert-bias"] if model.get("topk_method") == "noaux_tc" else []
    return words


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_catalog_is_found_by_its_numbers(tmp_path: Path, name: str) -> None:
    model = config(name)
    text = " ".join([*arguments(model), f"--seq-length {SEQ_LEN} --vocab-size {model['vocab_size']}"])
    # Quoted as in a script, because brackets are words of the shell.
    text = text.replace("([", "'([").replace("])", "])'").replace("*", "*")
    (tmp_path / "args.sh").write_text(f"run {_quoted(text)} --micro-batch-size 1 --bf16\n", encoding="utf-8")
    found = import_files([str(tmp_path / "args.sh")], Options(gpus=8))
    (entry,) = (one for one in found.understood if one.key == "training.model")
    if isinstance(entry.value, str):
        # Several names may have the same numbers.
        assert same_numbers(entry.value, name)
    else:
        pytest.fail(f"{name}: {entry.value}")
    wrong = [one.setting.key for one in found.ignored_for(Reason.NOT_MODELLED)]
    assert wrong == []


def _quoted(text: str) -> str:
    """The words of a text, with quotation marks around those that have brackets."""
    return " ".join(f"'{word.strip(chr(39))}'" if "[" in word else word for word in text.split(" "))


def same_numbers(one: str, other: str) -> bool:
    """True if two files of the catalog have the same keys, except for names and lengths of rotary tables."""
    idle = ("source", "max_position_embeddings", "model_type", "hidden_act", "attention_bias", "mlp_bias", "head_dim")
    first, second = ({key: value for key, value in config(name).items() if key not in idle} for name in (one, other))
    return one == other or first == second


def test_an_unknown_shape_is_written_out(tmp_path: Path) -> None:
    text = "run --num-layers 3 --hidden-size 96 --num-attention-heads 4 --seq-length 64 --vocab-size 300 --fp16\n"
    (tmp_path / "args.sh").write_text(text, encoding="utf-8")
    found = import_files([str(tmp_path / "args.sh")])
    (entry,) = (one for one in found.understood if one.key == "training.model")
    # GPT-2 is Megatron-LM's default architecture; its MLP is four times as wide.
    assert entry.value["model_type"] == "gpt2"
    assert {"n_layer": 3, "n_embd": 96, "n_head": 4, "n_inner": 384, "vocab_size": 300}.items() <= entry.value.items()


def test_a_feature_that_no_family_has_is_told(tmp_path: Path) -> None:
    text = "run --num-layers 3 --hidden-size 96 --num-attention-heads 4 --seq-length 64 --normalization RMSNorm\n"
    (tmp_path / "args.sh").write_text(text, encoding="utf-8")
    found = import_files([str(tmp_path / "args.sh")])
    told = {one.setting.key: one.why for one in found.ignored_for(Reason.NOT_MODELLED)}
    assert "--normalization" in told or "--num-layers" in told
