"""Hybrids of Mamba-2, attention, MLPs and experts (Nemotron-H): parameters, kernels, saved tensors, cuts, recompute.

Dao & Gu, "Transformers are SSMs", 2024, arXiv:2405.21060, section 6: the scan's products of matrices. Sizes by hand for
a small mixer of 4 heads in 2 groups.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.cluster.gpu_file import load_gpu
from simulator.importing.importer import import_files
from simulator.importing.machine import Options
from simulator.model.flops import model_flops_per_token
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import GRAPH_SCOPES, Batch, Operation, saved_bytes
from simulator.model.parameters import layer_parameters, modules, total
from simulator.model.partition import ModelPartition
from simulator.model.shape import Transformer
from simulator.model.trained import operation_parameter, parameter_path
from simulator.step.checkpointing import kept
from simulator.step.kernel_table import kernel_rows
from simulator.step.kernels.framework_operations import until_needed
from simulator.step.spec import bare_step

CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "hybrid_override_pattern": "M*-E", "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 32,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 24, "moe_latent_size": 8, "vocab_size": 64,
}  # fmt: skip
HEADS, P, GROUPS, N, Q = 4, 8, 2, 16, 32
TOKENS, CHUNKS = 2 * 64, 2 * 2
BATCH = Batch(2, 64)


def hybrid(**keys: Any) -> Transformer:
    model = load_model(CONFIG | keys)
    assert isinstance(model, Transformer)
    return model


def shipped(name: str) -> Transformer:
    model = load_model(name)
    assert isinstance(model, Transformer)
    return model


def mixer(batch: Batch = BATCH) -> dict[str, Operation]:
    """The operations of the layer with a Mamba-2 mixer."""
    return {op.name: op for op in layer_operations(hybrid().of_layer(0), batch)}


def flops(kernels: tuple[Kernel, ...]) -> float:
    return sum(kernel.flops for kernel in kernels)


def elements(model: Transformer, layer: int) -> int:
    return sum(one.elements for one in layer_parameters(model.of_layer(layer)))


def test_each_layer_is_a_norm_a_block_and_a_residual_addition() -> None:
    model = hybrid()
    names = [[op.name for op in layer_operations(model.of_layer(layer), BATCH)] for layer in range(4)]
    assert names == [
        ["mamba norm", "mamba in", "mamba scan", "mamba out", "mamba residual"],
        ["norm1", "qkv", "attention", "proj", "residual1"],
        ["norm2", "up", "activation", "down", "residual2"],
        ["norm2", "shared up", "shared activation", "shared down", "router", "latent down", "dispatch", "up",
         "activation", "down", "combine", "latent up", "shared add", "residual2"],
    ]  # fmt: skip


def test_parameters_are_those_of_each_block() -> None:
    model, d, inner = hybrid(), 16, HEADS * P
    convolved = inner + 2 * GROUPS * N
    mamba = d * (inner + convolved + HEADS) + 5 * convolved + 3 * HEADS + inner + inner * d
    experts = 4 * 2 * 8 * 12 + 2 * d * 24 + 2 * 8 * d + 4 * d + 4
    assert [elements(model, layer) for layer in range(4)] == [
        d + mamba, d + 4 * d * d, d + 2 * d * 24, d + experts,
    ]  # fmt: skip


def test_both_forms_of_a_pattern_are_the_same_model() -> None:
    words = {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "attention", "mlp", "moe"]}
    assert hybrid(**words) == hybrid()
    # Older files have another name for the width of a head.
    assert hybrid(head_dim=None, attention_head_dim=8) == hybrid()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hybrid_override_pattern": "M*-X"}, "hybrid_override_pattern: got 'X'; one of"),
        ({"hybrid_override_pattern": "M*-"}, "hybrid_override_pattern: has 3 layers; must have num_hidden_layers 4"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern: has 0 layers; must have num_hidden_layers 4"),
        ({"layers_block_type": ["mamba", "conv", "mlp", "moe"]}, "layers_block_type: got 'conv'; one of"),
        ({"n_groups": 3}, "n_groups: got 3; must divide mamba_num_heads 4"),
        ({"mamba_num_heads": None}, "mamba_num_heads: is missing"),
        ({"use_bias": True}, "use_bias: got True; must be false"),
        ({"use_conv_bias": False}, "use_conv_bias: got False; must be true"),
        ({"moe_shared_expert_intermediate_size": 30}, "moe_intermediate_size: got 12; must divide"),
    ],
)
def test_a_faulty_file_is_refused_with_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        hybrid(**keys)


def test_model_flops_count_keys_of_attention_and_states_of_mixers() -> None:
    """The formula of Megatron-LM: 7 for each number of a state forward, 12 for each key of an attention head."""
    model = hybrid()
    idle = (4 - 2) * 2 * 8 * 12
    assert model_flops_per_token(model, 64) == 6 * (total(model) - idle) + 12 * 16 * 64 + 21 * HEADS * P * N


def test_megatrons_own_count_of_nemotron_3_nano_is_met() -> None:
    """NVIDIA-NeMo/Megatron-Bridge 067f987d, docs/performance-summary-archive.md, H100: 14,336 tokens/s and 321 TFLOP/s
    per GPU with sequences of 8,192 tokens, where Megatron-LM counts every matrix and half of the keys.
    """
    counted = model_flops_per_token(shipped("nemotron_3_nano"), 8192, count="matrices")
    assert counted == pytest.approx(321e12 / 14336, rel=0.02)
    # Super predicts two further tokens: 6,656 tokens/s and 564 TFLOP/s.
    counted = model_flops_per_token(shipped("nemotron_3_super").predicting(2), 8192, count="matrices")
    assert counted == pytest.approx(564e12 / 6656, rel=0.05)


def test_the_scan_computes_the_products_of_the_paper() -> None:
    scan = mixer()["mamba scan"]
    chunk, pairs = HEADS * 2 * Q * P * N, GROUPS * 2 * Q * Q * N
    inside = HEADS * 2 * Q * P * (N + Q)
    assert flops(scan.forward) == CHUNKS * (chunk + pairs + inside)
    # The states and products again, then two products for each product of the forward pass, and the decays' gradient
    # with pairs of tokens for every head.
    again, both = chunk + pairs, 2 * (chunk + inside) + 2 * pairs
    assert flops(scan.backward) == CHUNKS * (again + both + HEADS * 2 * Q * Q * P)


def test_each_kernel_of_the_scan_moves_its_arrays_once() -> None:
    scan = mixer()["mamba scan"]
    x, b, decays = 2 * TOKENS * HEADS * P, 2 * TOKENS * GROUPS * N, 4 * TOKENS * HEADS
    states, pairs, statistics = 4 * CHUNKS * HEADS * P * N, 4 * CHUNKS * GROUPS * Q * Q, 4 * TOKENS * GROUPS
    half = states // 2
    forward = {
        "convolution": 2 * (x + 2 * b),
        "chunk cumsum": decays // 2 + 2 * decays,
        "chunk state": x + b + 2 * decays + states,
        "chunk product": 2 * b + pairs,
        "state passing": states + half,
        "chunk scan": pairs + 2 * x + b + 2 * decays + half,
        "gated norm": 3 * x + statistics,
    }
    found = {kernel.name.removeprefix("mamba "): kernel.nbytes(2) for kernel in scan.forward}
    assert found == forward
    backward = {
        "gated norm gradient": 5 * x + statistics,
        "state passing": 2 * states,
        "chunk scan states gradient": b + x + decays + states,
        "state passing gradient": 2 * states + 2 * half,
        "chunk scan x gradient": 3 * x + b + 3 * decays + pairs + half,
        "chunk state B gradient": x + b + 3 * decays + half + 2 * b,
        "chunk scan C gradient": x + b + 2 * decays + half + 2 * b,
        "chunk product gradient": 2 * x + 2 * decays + pairs,
        "B gradient": pairs + 2 * b + 2 * b,
        "C gradient": pairs + 2 * b + 2 * b,
        "decays gradient": 2 * x + 3 * decays + pairs,
        "chunk cumsum gradient": 2 * decays + decays,
        "convolution gradient": 3 * (x + 2 * b),
    }
    again = {name: forward[name] for name in ("convolution", "chunk cumsum", "chunk state", "chunk product")}
    found = {kernel.name.removeprefix("mamba "): kernel.nbytes(2) for kernel in scan.backward}
    assert found == backward | again


def test_a_mixer_saves_the_inputs_of_its_matrices_and_the_scans_output() -> None:
    """MambaSplitConv1dScanCombinedFn saves z, x, B, C, dt, the scan's output and the norm's statistics."""
    hidden, inner = 2 * TOKENS * 16, 2 * TOKENS * HEADS * P
    projected = 2 * TOKENS * (2 * HEADS * P + 2 * GROUPS * N + HEADS)
    saved = {tensor.name: tensor.nbytes for op in mixer().values() for tensor in op.saved}
    assert saved == {
        "input": hidden,
        "mamba norm statistics": 4 * TOKENS,
        "mamba norm output": hidden,
        "mamba in output": projected,
        "scan output": inner,
        "scan statistics": 4 * TOKENS * GROUPS,
        "mamba scan output": inner,
    }


def test_wider_activations_take_the_dtype_of_the_steps_matmuls() -> None:
    narrow, wide = (mixer(Batch(2, 64, itemsize=size))["mamba scan"] for size in (2, 4))
    products = [[k.dtype for k in scan.forward if isinstance(k, Matmul)] for scan in (narrow, wide)]
    assert products == [["bfloat16"] * 3, [None] * 3]
    scan = mixer(replace(BATCH, float16=True))["mamba scan"]
    assert {k.dtype for k in scan.backward if isinstance(k, Matmul)} == {"float16"}
    assert flops(narrow.forward) == flops(wide.forward)


def test_an_incomplete_chunk_costs_a_whole_one() -> None:
    whole, part = (mixer(Batch(1, length))["mamba scan"] for length in (64, 40))
    assert flops(part.forward) == flops(whole.forward)
    assert sum(k.nbytes(2) for k in part.forward) < sum(k.nbytes(2) for k in whole.forward)


def test_tensor_parallel_ranks_share_the_work_of_a_mixer() -> None:
    whole, half = mixer(), mixer(replace(BATCH, cut=ModelPartition(tensor=2)))
    for name in ("mamba in", "mamba scan", "mamba out"):
        assert 2 * flops(half[name].forward) == flops(whole[name].forward)
        assert 2 * flops(half[name].backward) == flops(whole[name].backward)
    for one, other in zip(half["mamba scan"].forward, whole["mamba scan"].forward, strict=True):
        assert 2 * one.nbytes(2) == other.nbytes(2)
    assert [call.name for call in half["mamba out"].communications] == ["sum mamba out output"]
    assert [call.name for call in half["mamba in"].communications] == ["sum mamba in input gradient"]
    model = hybrid()
    cut = sum(module.elements for module in modules(model, ModelPartition(tensor=2)))
    parts = [p for p in layer_parameters(model.of_layer(0)) if p.name.startswith(("mamba in", "mamba scan"))]
    assert sum(p.elements for p in parts) == 2 * sum(
        p.elements
        for p in layer_parameters(model.of_layer(0), ModelPartition(tensor=2))
        if p.name.startswith(("mamba in", "mamba scan"))
    )
    assert cut < total(model)


def test_latent_experts_exchange_and_multiply_narrow_tokens() -> None:
    latent, wide = (
        {op.name: op for op in layer_operations(hybrid(moe_latent_size=width).of_layer(3), BATCH)} for width in (8, 0)
    )
    assert "latent down" not in wide
    for name in ("up", "down"):
        assert 2 * flops(latent[name].forward) == flops(wide[name].forward)
    assert 2 * latent["dispatch"].output == wide["dispatch"].output
    assert latent["router"] == wide["router"]
    assert latent["shared up"] == wide["shared up"]
    down = latent["latent down"].forward[0]
    assert isinstance(down, Matmul)
    assert (down.m, down.n, down.k) == (TOKENS, 8, 16)
    assert [kernel.name for kernel in latent["shared add"].forward] == ["shared add add"]


def test_a_further_token_costs_a_layer_of_attention_and_experts() -> None:
    more = hybrid().predicting(1)
    assert more.num_layers == 5
    names = [op.name for op in layer_operations(more.of_layer(4), BATCH)]
    assert names[:5] == ["next token embedding", "next token norm", "hidden norm", "join", "norm1"]
    assert {"attention", "router", "latent up"} <= set(names)
    both = elements(hybrid(), 1) + elements(hybrid(), 3)
    assert total(more) - total(hybrid()) == both + 2 * 16 * 16 + 3 * 16


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        ("full", ["mamba norm", "mamba in", "mamba scan", "mamba out", "mamba residual"]),
        ("selective_op", ["mamba norm", "mamba scan"]),
        ("layernorm+core_attn", []),
        ("feed_forward", []),
        ("attention", []),
    ],
)
def test_recompute_of_a_mixer(policy: str, again: list[str]) -> None:
    operations = layer_operations(hybrid().of_layer(0), BATCH)
    found = kept(policy, 0, hybrid(), operations, 2 * TOKENS * 16)
    assert [op.name for op in found.operations] == again
    assert found.calls == (0 if policy == "layernorm+core_attn" else 1)
    assert found.nbytes + found.recomputed == pytest.approx(saved_bytes(operations), rel=0.1)


@pytest.mark.parametrize(
    ("policy", "again"), [("full", slice(None)), ("moe", slice(1, -2)), ("feed_forward", slice(-5))]
)
def test_recomputed_experts_include_the_matrices_around_them(policy: str, again: slice) -> None:
    operations = layer_operations(hybrid().of_layer(3), BATCH)
    found = kept(policy, 3, hybrid(), operations, 2 * TOKENS * 16)
    assert found.operations == operations[again]
    assert found.nbytes + found.recomputed >= saved_bytes(operations)


def test_a_recompute_ends_where_only_the_next_layer_reads() -> None:
    """The matrix after latent experts needs its input, and nothing needs its output."""
    model = hybrid()
    ends = [until_needed(layer_operations(model.of_layer(layer), BATCH))[-1].name for layer in range(4)]
    assert ends == ["mamba scan", "attention", "activation", "combine"]
    operations = layer_operations(model.of_layer(3), BATCH)
    assert kept("selective_op", 3, model, operations, 2 * TOKENS * 16).operations[-1].name == "combine"


def test_a_graph_of_mixers_is_a_scope_of_its_own() -> None:
    """A step whose host is slower than its GPU becomes faster by each graph."""
    assert GRAPH_SCOPES["mamba"] == set(mixer())
    model = registry.find("model", "nemotron_h_8b").read_text()
    keys = json.loads(model) | {"num_hidden_layers": 6, "hybrid_override_pattern": "M*-M*-"}
    issued = []
    for scopes in ([], ["mamba"], ["attn"], ["attn", "mamba", "mlp"]):
        report = _run(model=keys, framework="nemo", seq_len=128, cuda_graphs=scopes).report
        issued.append(report.step_time_s)
    assert issued[0] > issued[1] > issued[3]
    assert issued[0] > issued[2] > issued[3]


def test_the_table_of_kernels_names_the_blocks_of_a_layer() -> None:
    rows = kernel_rows(bare_step(shipped("nemotron_3_nano"), 8192, 1), load_gpu("h100_sxm"))
    parts = {row.part: row.times for row in rows}
    assert parts == {"embedding": 1, "Mamba-2 layer": 23, "expert layer": 23, "attention layer": 6, "head": 1}
    scans = [row for row in rows if row.kernel.name == "mamba chunk scan"]
    assert len(scans) == 1
    assert scans[0].seconds >= scans[0].kernel.nbytes(2) / load_gpu("h100_sxm").hbm_bandwidth


def _run(engine: str = "auto", **training: Any) -> Any:
    keys = {"model": CONFIG, "seq_len": 64, "sharding": "zero1", "precision": "bf16"} | training
    cluster = {"topology": "dgx_h100", "world_size": 4}
    return simulator.simulate({"name": "hybrid", "engine": engine, "cluster": cluster, "training": keys})


@pytest.mark.parametrize(
    "training",
    [
        {"sharding": "zero3", "micro_batch_size": 2},
        {"parallelism": {"tp": 2, "pp": 2}, "gradient_accumulation_steps": 2, "activation_checkpointing": "full"},
        {"parallelism": {"ep": 2}, "mtp_layers": 1},
    ],
)
def test_both_engines_agree(training: dict[str, Any]) -> None:
    reports = [_run(engine, **training).report for engine in ("compiled", "events")]
    assert reports[0].step_time_s == pytest.approx(reports[1].step_time_s, rel=1e-9)
    assert reports[0].peak_memory_bytes == reports[1].peak_memory_bytes


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"parallelism": {"cp": 2}}, "parallelism.cp: got 2; context-parallel ranks cannot cut the scans of"),
        ({"parallelism": {"tp": 4}, "model": CONFIG | {"num_attention_heads": 4, "head_dim": 4}},
         "parallelism.tp: got 4; must divide the 2 groups of Mamba-2 of"),
        ({"numerics": True}, "real training supports only GPT-2"),
        ({"lora": {"rank": 4}}, "adapters are not supported yet for the layers of one block of"),
    ],
)  # fmt: skip
def test_what_a_hybrid_cannot_do_is_refused(training: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        _run(**training)


def test_parts_of_a_mixer_are_trained_by_their_paths() -> None:
    assert parameter_path("layer 2", "mamba in.weight") == "layers.2.mamba.in.weight"
    assert parameter_path("layer 2", "mamba norm.weight") == "layers.2.mamba_norm.weight"
    assert operation_parameter("mamba scan.dt_bias") == "mamba scan.dt_bias"
    every, some = _run().report, _run(trainable=["layers.*.mamba.*"]).report
    assert some.step_time_s < every.step_time_s


@pytest.mark.parametrize("name", ["nemotron_h_8b", "nemotron_3_nano", "nemotron_3_super"])
def test_arguments_of_megatron_and_megatron_bridge_mean_the_shipped_model(tmp_path: Path, name: str) -> None:
    model = shipped(name)
    assert model.mamba is not None
    sizes = {
        "num-layers": model.num_layers, "hidden-size": model.hidden_size, "num-attention-heads": model.num_heads,
        "num-query-groups": model.num_kv_heads, "kv-channels": model.head_dim, "seq-length": 1024,
        "ffn-hidden-size": model.dense_ffn_size or model.ffn_size, "mamba-num-heads": model.mamba.heads,
        "normalization": "RMSNorm", "position-embedding-type": "none",
    }  # fmt: skip
    if model.num_experts:
        sizes |= {
            "moe-router-topk": model.active_experts, "moe-ffn-hidden-size": model.ffn_size,
            "moe-shared-expert-intermediate-size": model.shared_experts * model.ffn_size,
        }  # fmt: skip
    if model.expert_latent:
        sizes["moe-latent-size"] = model.expert_latent
    blocks = "".join(model.blocks)
    words = [f"--{key} {value}" for key, value in sizes.items()]
    words += [f"--num-experts {model.num_experts}"] if model.num_experts else []
    script = f"run {' '.join(words)} --hybrid-override-pattern '{blocks}' --is-hybrid-model --group-query-attention"
    script += " --disable-bias-linear --untie-embeddings-and-output-weights --micro-batch-size 1 --bf16"
    script += f" --vocab-size {model.vocab_size} --moe-router-enable-expert-bias\n"
    (tmp_path / "train.sh").write_text(script, encoding="utf-8")
    lines = ["model:", *(f"  {key.replace('-', '_')}: {value}" for key, value in sizes.items())]
    lines += [f"  num_moe_experts: {model.num_experts}"] if model.num_experts else []
    lines += [f"  hybrid_layer_pattern: '{blocks[:5]}|{blocks[5:]}/*E'", "  is_hybrid_model: true"]
    lines += ["  add_bias_linear: false", "  share_embeddings_and_output_weights: false", "train:"]
    lines += ["  micro_batch_size: 1", "  global_batch_size: 8", f"  vocab_size: {model.vocab_size}"]
    (tmp_path / "bridge.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for file in ("train.sh", "bridge.yaml"):
        found = import_files([str(tmp_path / file)], Options(gpus=8))
        (entry,) = (one for one in found.understood if one.key == "training.model")
        assert entry.value == name


def test_a_pattern_of_unknown_letters_is_refused(tmp_path: Path) -> None:
    text = "run --hidden-size 96 --num-attention-heads 4 --seq-length 64 --hybrid-override-pattern MXM\n"
    (tmp_path / "args.sh").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"got 'MXM'; must be letters M, \*, - and E"):
        import_files([str(tmp_path / "args.sh")])


def test_kernels_are_matmuls_and_copies() -> None:
    kinds = {type(kernel) for op in mixer().values() for kernel in (*op.forward, *op.backward)}
    assert kinds == {Matmul, Elementwise}
