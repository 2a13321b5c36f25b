"""Layers that predict further tokens (multi-token prediction): parameters, FLOPs, kernels, stages and measured steps.

DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 2.2: such a layer joins a normed hidden
state with the normed embedding of the next token by a matrix of 2 d x d, runs a layer, and uses the model's output
matrix.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator.basics.errors import ScenarioError
from simulator.model.flops import model_flops_per_token
from simulator.model.load import load_model
from simulator.model.model import layer_operations, total
from simulator.model.operation import Batch
from simulator.model.parameters import layer_parameters
from simulator.model.shape import Transformer
from simulator.step.pipeline import Pipeline


def _transformer(name: str) -> Transformer:
    model = load_model(name)
    assert isinstance(model, Transformer)
    return model


def test_deepseek_v3_with_a_further_token_has_the_parameters_of_its_published_weights() -> None:
    """11.5 B parameters without embedding and output matrix: deepseek-ai/DeepSeek-V3, README_WEIGHTS.md."""
    deepseek = _transformer("deepseek_v3")
    d = deepseek.hidden_size
    more = total(deepseek.predicting(1)) - total(deepseek)
    assert more == sum(one.elements for one in layer_parameters(deepseek.of_layer(60))) + 2 * d * d + 3 * d
    assert more == pytest.approx(11.5e9, rel=0.01)


def test_a_further_token_adds_a_layer_a_matrix_and_the_head_to_the_flops() -> None:
    llama, s = _transformer("llama3_8b"), 4096
    more = model_flops_per_token(llama.predicting(1), s) - model_flops_per_token(llama, s)
    d, words = llama.hidden_size, llama.vocab_size
    layer = sum(one.elements for one in layer_parameters(llama.of_layer(0)))
    assert more == 6 * (layer + 2 * d * d + 3 * d + words * d) + 12 * llama.attention_width * s


def test_the_kernels_before_the_layer_are_a_lookup_two_norms_and_a_matrix_with_twice_the_inputs() -> None:
    llama = _transformer("llama3_8b")
    batch, more = Batch(1, 256), llama.predicting(2)
    plain, own = (layer_operations(kind, batch) for kind in (llama.of_layer(0), more.of_layer(33)))
    added = own[: len(own) - len(plain)]
    assert [op.name for op in added] == ["next token embedding", "next token norm", "hidden norm", "join"]
    matmul = added[-1].forward[0]
    assert (matmul.m, matmul.n, matmul.k) == (256, 4096, 8192)  # type: ignore[union-attr]
    assert [op.name for op in own[len(added) :]] == [op.name for op in plain]
    assert len(more.kinds) == 2
    assert more.kinds[more.of_layer(33)] == (32, 33)


def _report(**training: Any) -> Any:
    keys = {
        "model": "llama3_8b", "seq_len": 1024, "framework": "bare", "sharding": "zero1", "collectives": "closed_form",
    }  # fmt: skip
    cluster = {"topology": "dgx_h100", "world_size": 8}
    return simulator.simulate({"name": "further", "cluster": cluster, "training": keys | training}, limit_memory=False)


def test_the_head_runs_once_more_and_its_parameters_exist_once() -> None:
    plain, more = _report(), _report(mtp_layers=1)
    logits = [Counter(s.name for s in run.timeline.spans if s.rank == 0)["head forward 0"] for run in (plain, more)]
    assert logits == [1, 1]
    llama = _transformer("llama3_8b")
    flops = [sum(s.flops for s in run.timeline.spans if s.rank == 0) for run in (plain, more)]
    d, words, tokens = llama.hidden_size, llama.vocab_size, 1024
    matrices = sum(p.elements for p in layer_parameters(llama.of_layer(0)) if len(p.shape) > 1) + 2 * d * d + words * d
    # Attention's seven products under the causal mask: half of 7/3 of 6 s d per token for flash attention.
    attention = 14 * llama.attention_width * tokens / 2
    assert flops[1] - flops[0] == pytest.approx(tokens * (6 * matrices + attention), rel=1e-2)


def test_the_last_stage_has_the_layer_and_a_copy_of_the_embedding_table() -> None:
    runs = [_report(mtp_layers=n, parallelism={"pp": 4}, gradient_accumulation_steps=4) for n in (0, 1)]
    assert Pipeline.of(runs[1].plan.step).layers() == (8, 8, 8, 9)
    summed = [op.name for op in runs[1].plan.program.ranks[6] if op.name.startswith("sum the shared table's gradient")]
    assert len(summed) == 1
    assert not any(op.name.startswith("sum the shared") for op in runs[0].plan.program.ranks[6])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"lora": {"rank": 4}}, "beside adapters; write 0, or omit lora"),
        ({"trainable": ["head"]}, "beside frozen parts of the model; write 0, or omit trainable"),
        ({"activation_checkpointing": "sqrt"}, "write 0, or write activation_checkpointing: full"),
        ({"model": "resnet50", "seq_len": 1}, "is no decoder"),
        ({"model": "vit_b16", "seq_len": 197}, "is no decoder"),
    ],
)
def test_models_and_keys_without_a_next_token_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        _report(mtp_layers=1, **keys)


# 14 layers of DeepSeek-V3's shape with one further token on 64 H100: pp 4 with two chunks, ep 16, all-to-all of NCCL,
# 256 sequences of 2,048 tokens, without overlap of the exchange: model TFLOP/s per GPU or seconds, and MB of the peak.
# Sources: NVIDIA/Megatron-LM pull requests 6311 and 6429 (2026), tables in the threads. The two that print seconds and
# TFLOP/s (3.044 s, 185.2) give 564e12 FLOP per GPU and step.
MEASURED = [("none", 564e12 / 225.1e12, 68704), ("full", 564e12 / 184.2e12, 60154), ("full", 3.044, 60154)]


@pytest.mark.parametrize(("recompute", "seconds", "peak"), MEASURED)
@pytest.mark.one_of(3)
def test_steps_of_deepseek_v3s_shape_are_met_in_time_and_memory(recompute: str, seconds: float, peak: float) -> None:
    deepseek = _transformer("deepseek_v3")
    config = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 14, "first_k_dense_replace": 3, "num_attention_heads": 128, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "n_shared_experts": 1,
        "topk_method": "noaux_tc",
    }  # fmt: skip
    model = load_model(config)
    assert replace(model, name="", max_positions=0) == replace(deepseek, num_layers=14, name="", max_positions=0)
    cluster = {"topology": "dgx_h100", "world_size": 64}
    training = {
        "model": config, "seq_len": 2048, "gradient_accumulation_steps": 16, "mtp_layers": 1, "sharding": "zero1",
        "precision": {"params": "bfloat16", "grads": "float32"}, "attention_generation": 3,
        "activation_checkpointing": recompute, "framework": "megatron_core",
        "parallelism": {
            "pp": 4, "schedule": "interleaved", "virtual_stages": 2, "ep": 16, "stages": [2, 2, 2, 2, 2, 2, 2, 1],
        },
    }  # fmt: skip
    report = simulator.simulate({"name": "pr", "cluster": cluster, "training": training}, limit_memory=False).report
    assert report.step_time_s == pytest.approx(seconds, rel=0.06)
    assert report.peak_memory_bytes / 2**20 == pytest.approx(peak, rel=0.05)
