"""Families of models: published parameters, FLOPs of windows and images, saved tensors of each place of the norms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.calibration.training_runs.cut_rows import measured_cut
from simulator.calibration.training_runs.rows import measured
from simulator.cluster.gpu_file import load_gpu
from simulator.findings.measured_range import _unlike
from simulator.model.adapters import Lora
from simulator.model.flops import model_flops_per_token
from simulator.model.head import embedding_operations, head_operations
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul, keys_of_query
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch, Operation, saved_bytes
from simulator.model.parameters import active, layer_parameters, modules, total
from simulator.model.partition import Context, ModelPartition
from simulator.model.shape import Transformer
from simulator.scenario.load import load_scenario
from simulator.step.kernel_table import kernel_rows
from simulator.step.kernels.attention_time import BLOCK, AttentionConstants, _block_steps
from simulator.step.kernels.kernel_time import duration
from simulator.step.spec import bare_step
from simulator.step.units import units
from tests.families import CONFIGS, COUNTS, ON_THE_HUB, small

H100 = load_gpu("h100_sxm")


@pytest.mark.parametrize("name", COUNTS)
def test_a_published_model_has_its_number_of_parameters(name: str) -> None:
    assert total(load_model(CONFIGS[name])) == COUNTS[name]


def test_the_hub_prints_the_counts_of_at_least_30_models() -> None:
    assert ON_THE_HUB <= set(CONFIGS) == set(COUNTS)
    assert len(ON_THE_HUB) >= 30


@pytest.mark.parametrize(
    ("name", "billions"),
    # Model cards: gpt-oss 3.6B and 5.1B active without the table of the input (arXiv:2508.10925, table 1); Llama 4 17B
    # active; Qwen1.5-MoE 2.7B; OLMoE 1.3B (arXiv:2409.02060).
    [("gpt_oss_20b", 3.61), ("gpt_oss_120b", 5.13), ("llama4_scout", 17.2), ("llama4_maverick", 17.2),
     ("qwen1.5_moe_a2.7b", 2.69), ("olmoe_1b_7b", 1.28)],
)  # fmt: skip
def test_models_with_experts_have_their_active_parameters(name: str, billions: float) -> None:
    model = load_model(CONFIGS[name])
    table = model.vocab_size * model.hidden_size if name.startswith("gpt_oss") else 0
    assert active(model) - table == pytest.approx(billions * 1e9, rel=0.01)


def test_text_models_inside_other_models_are_read_from_text_config() -> None:
    for outer, name in (("gemma3", "gemma3_27b"), ("llama4", "llama4_scout")):
        keys = CONFIGS[name]
        nested = {"model_type": outer, "name": "same", "text_config": keys, "vision_config": {"hidden_size": 7}}
        assert load_model(nested) == load_model(keys | {"name": "same"})
    # google/gemma-3-4b-pt leaves out the heads and the vocabulary.
    left_out = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    assert total(load_model({"model_type": "gemma3", "text_config": left_out})) == COUNTS["gemma3_4b"]


def test_a_fault_inside_text_config_is_told_with_its_place() -> None:
    keys = CONFIGS["llama4_scout"] | {"num_key_value_heads": 3}
    with pytest.raises(ScenarioError, match=r"^model: text_config.num_key_value_heads: got 3; must divide"):
        load_model({"model_type": "llama4", "text_config": keys})


def test_xlm_roberta_is_roberta_and_deepseek_v2_is_deepseek_v3_with_other_sizes() -> None:
    keys = CONFIGS["roberta_base"]
    assert load_model(keys | {"model_type": "xlm-roberta"}) == load_model(keys)
    # FacebookAI/xlm-roberta-base: 278,295,186 with 250,002 words.
    assert total(load_model(keys | {"vocab_size": 250002})) == 278_295_186
    assert total(load_model("deepseek_v2")) == 235_741_434_880


WINDOWS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({}, (4096, 0)),
    ({"layer_types": ["full_attention", "sliding_attention"] * 21}, (0, 4096)),
    ({"layer_types": ["sliding_attention"] * 42, "sliding_window": 512}, (512,)),
    ({"layer_types": ["full_attention"] * 42}, ()),
]


@pytest.mark.parametrize(("keys", "windows"), WINDOWS)
def test_layer_types_say_which_layers_have_a_window(keys: dict[str, Any], windows: tuple[int, ...]) -> None:
    model = load_model(CONFIGS["gemma2_9b"] | keys)
    assert model.windows == windows
    period = windows or (0,)
    assert [model.of_layer(layer).window for layer in range(42)] == [period[i % len(period)] for i in range(42)]


def test_each_family_has_the_windows_of_its_reference() -> None:
    """`layer_types` that transformers 5.24 makes of the same keys."""
    patterns = {
        "gemma2_9b": (4096, 0),
        "gemma3_27b": (1024, 1024, 1024, 1024, 1024, 0),
        "gpt_oss_20b": (128, 0),
        "llama4_scout": (8192, 8192, 8192, 0),
        "command_r7b": (4096, 4096, 4096, 0),
        "mistral_7b": (4096,),
        "starcoder2_3b": (4096,),
        "qwen2.5_7b": (),
        "phi4": (),
    }
    assert {name: load_model(CONFIGS[name]).windows for name in patterns} == patterns
    late = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 26}
    assert load_model(CONFIGS["qwen2.5_7b"] | late).windows == (*[0] * 26, 64, 64)


def test_experts_are_in_every_second_layer_of_maverick() -> None:
    model = load_model(CONFIGS["llama4_maverick"])
    assert [bool(model.of_layer(layer).num_experts) for layer in range(4)] == [False, True, False, True]
    assert model.expert_layers == 24
    # Experts and chunks: odd layers have experts, every fourth sees all keys, and is among the odd ones.
    assert [len(layers) for layers in model.kinds.values()] == [24, 12, 12]
    sizes = {len({p.name for p in layer_parameters(kind)}) for kind in model.kinds}
    assert len(sizes) == 2


def visible(seq_len: int, window: int, chunk: int) -> int:
    """Return the pairs of query and key under a causal mask, counted one by one."""
    return sum(
        all((key <= query, not window or query - key < window, not chunk or query // chunk == key // chunk))
        for query in range(seq_len)
        for key in range(seq_len)
    )


@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (16, 0), (64, 0), (200, 0), (0, 16), (0, 64), (0, 48), (0, 200)])
def test_keys_of_a_query_are_the_visible_pairs(window: int, chunk: int) -> None:
    """Whole keys on the diagonal count half: the continuous formula, as s / 2 without a window."""
    seq_len = 96
    pairs = visible(seq_len, window, chunk)
    assert keys_of_query(seq_len, window or chunk, chunked=bool(chunk), diagonal=1) * seq_len == pytest.approx(
        pairs + _beyond(seq_len, window)
    )


def _beyond(seq_len: int, window: int) -> int:
    """Return the queries whose window ends inside a key's tile: they see one key more with tiles."""
    return seq_len - min(window, seq_len) if window else 0


@pytest.mark.parametrize("name", ["gemma2_9b", "gemma3_27b", "gpt_oss_20b", "llama4_scout", "mistral_7b"])
def test_attention_computes_the_keys_of_each_layers_window(name: str) -> None:
    """4 h hd (w s - w^2 / 2) for a window w, 4 h hd s w / 2 in chunks, 4 h hd s^2 / 2 for all keys, and 5 / 2 of it
    backward.
    """
    model, seq_len = load_model(CONFIGS[name]), 16384
    expected = 0.0
    for layer in range(model.num_layers):
        window = model.windows[layer % len(model.windows)]
        keys = seq_len**2 / 2 if not window else window * seq_len - (0 if model.chunked else window**2 / 2)
        expected += 4 * model.attention_width * (keys / 2 if model.chunked and window else keys)
    computed = dict.fromkeys((False, True), 0.0)
    for kind, layers in model.kinds.items():
        for op in layer_operations(kind, Batch(1, seq_len)):
            for backward, kernels in ((False, op.forward), (True, op.backward)):
                own = sum(kernel.flops for kernel in kernels if isinstance(kernel, Attention))
                computed[backward] += len(layers) * own
    assert computed[False] == pytest.approx(expected)
    assert computed[True] == pytest.approx(2.5 * expected)
    counted = model_flops_per_token(model, seq_len, scores="causal", count="matrices")
    without = model_flops_per_token(replace(model, windows=(1,), chunked=True), seq_len, count="matrices")
    one_key = 12 * model.num_layers * model.attention_width
    assert (counted - without + one_key) * seq_len == pytest.approx(3 * expected, rel=1e-6)


@pytest.mark.parametrize("window", [128, 256, 1024, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_tiles_of_a_window_are_those_that_flash_attention_visits(window: int, chunked: bool) -> None:
    tiles, strips = -(-window // BLOCK), 64
    kernel = Attention("a", 1, 132, 8, strips * BLOCK, 128, causal=True, backward=False, window=window, chunked=chunked)
    visited = sum(
        sum(key <= query and (query // tiles == key // tiles if chunked else query - key <= tiles) for key in range(64))
        for query in range(strips)
    )
    constants = AttentionConstants(1e15, 132, 3e12, 3e-6, 0.5, 4e12, 2, 1e5, 2)
    assert _block_steps(kernel, constants, 132) == pytest.approx(visited)


def test_a_short_window_is_faster_and_a_long_one_changes_nothing() -> None:
    own = Attention("a", 2, 32, 8, 16384, 128, causal=True, backward=False)
    whole, half, short = (duration(replace(own, window=w), H100, "bfloat16") for w in (0, 8192, 1024))
    assert duration(replace(own, window=16384), H100, "bfloat16") == whole
    # 8192 of 16384 keys: 3 / 4 of the scores; 1024: 1 / 8 (1 - 1 / 32) = 0.121, and a tile more.
    assert half / whole == pytest.approx(0.75, rel=0.02)
    assert short / whole == pytest.approx(0.121, rel=0.15)
    assert duration(replace(own, capped=True), H100, "bfloat16") > whole


def gmacs(operations: tuple[Operation, ...]) -> float:
    kernels: list[Kernel] = [kernel for op in operations for kernel in op.forward]
    return sum(kernel.flops for kernel in kernels) / 2e9


@pytest.mark.parametrize(
    ("name", "published"),
    # torchvision.models, "GFLOPS" of ViT_B_16, ViT_B_32 and ViT_L_16 (multiply-adds): 17.56, 4.41, 61.55.
    [("vit_b16", 17.56), ("vit_b32", 4.41), ("vit_l16", 61.55)],
)
def test_a_vit_computes_the_published_multiply_adds_of_an_image(name: str, published: float) -> None:
    model = load_model(CONFIGS[name])
    batch = Batch(1, model.max_positions)
    layers = model.num_layers * gmacs(layer_operations(model, batch))
    assert layers + gmacs(embedding_operations(model, batch)) + gmacs(head_operations(model, batch)) == pytest.approx(
        published, rel=0.01
    )


def test_an_encoder_computes_twice_the_scores_of_a_decoder() -> None:
    bert = load_model(CONFIGS["bert_large"])

    def scores(model: Transformer) -> float:
        kernels = [kernel for op in layer_operations(model, Batch(4, 512)) for kernel in op.forward]
        return sum(kernel.flops for kernel in kernels if isinstance(kernel, Attention))

    assert scores(bert) == 2 * scores(replace(bert, causal=True)) == 4 * 4 * 512**2 * 1024
    assert model_flops_per_token(bert, 512, scores="causal") == model_flops_per_token(bert, 512, scores="full")


def test_an_image_has_as_many_tokens_as_patches_and_a_class_token() -> None:
    assert load_model("vit_b16", seq_len=197).max_positions == 197
    with pytest.raises(ScenarioError, match=r"seq_len: got 196; .* has 197 tokens: 196 patches .* write seq_len: 197"):
        load_model(CONFIGS["vit_b16"], seq_len=196)
    larger = CONFIGS["vit_b16"] | {"image_size": 384}
    assert load_model(larger).max_positions == 24**2 + 1
    with pytest.raises(ScenarioError, match="patch_size: got 15; must divide image_size 224"):
        load_model(CONFIGS["vit_b16"] | {"patch_size": 15})


def test_positions_that_belong_to_no_token_are_not_offered() -> None:
    assert load_model(CONFIGS["roberta_base"], seq_len=512).max_positions == 514
    with pytest.raises(ScenarioError, match=r"seq_len: got 513; .* has learned 512 positions"):
        load_model(CONFIGS["roberta_base"], seq_len=513)
    with pytest.raises(ScenarioError, match=r"seq_len: got 2049; .* has learned 2048 positions"):
        load_model(CONFIGS["opt_125m"], seq_len=2049)


# Tensors of tokens x hidden size that a layer of each form saves around its matrices: norms' inputs and outputs. With
# the residual stream x, x' after attention, and blocks A and F:
FORMS = {
    "pre": 4,  # x, norm x, x', norm x'
    "post": 4,  # x, A, x', F
    "both": 6,  # x, norm x, A, x', norm x', F
    "sum": 4,  # x, x + A, its norm, the sum with F
    "parallel": 3,  # x, norm x, norm' x
    "shared": 2,  # x, norm x
}


@pytest.mark.parametrize(("form", "tensors"), FORMS.items())
def test_a_layer_saves_the_inputs_of_norms_and_matrices_once(form: Any, tensors: int) -> None:
    model = replace(load_model("llama3_8b"), form=form)
    operations = layer_operations(model, Batch(1, 1024))
    around = {
        saved.name: saved.nbytes
        for op in operations
        for saved in op.saved
        if saved.nbytes == 1024 * 4096 * 2 and saved.name not in ("queries", "attention output")
    }
    assert len(around) == tensors, around
    names = [op.name for op in operations]
    assert {saved.source for op in operations for saved in op.saved} <= {*names, "input"}
    norms = sum(name.startswith("norm") for name in names)
    assert norms == sum(p.name.startswith("norm") for p in layer_parameters(model))


def test_a_parallel_layer_reads_its_norm_for_both_blocks() -> None:
    saved = saved_bytes(layer_operations(load_model(CONFIGS["phi2"]), Batch(1, 2048)))
    assert saved < saved_bytes(layer_operations(replace(load_model(CONFIGS["phi2"]), form="pre"), Batch(1, 2048)))


def test_soft_caps_are_elementwise_operations_with_a_saved_output() -> None:
    model = load_model(CONFIGS["gemma2_9b"])
    head = {op.name: op for op in head_operations(model, Batch(1, 1024))}
    assert head["logit soft-cap"].saved[0].nbytes == 2 * 1024 * 256000
    standard = Batch(1, 1024, attention="standard")
    names = [op.name for op in layer_operations(model, standard)]
    assert names.index("scores") < names.index("score soft-cap") < names.index("softmax")
    bare = replace(model, score_cap=False, logit_cap=False)
    assert "score soft-cap" not in [op.name for op in layer_operations(bare, standard)]
    assert "logit soft-cap" not in [op.name for op in head_operations(bare, standard)]


def test_the_shared_expert_of_qwen2_moe_is_scaled_by_a_number_per_token() -> None:
    model = load_model(CONFIGS["qwen1.5_moe_a2.7b"])
    gate = next(op for op in layer_operations(model, Batch(2, 1024)) if op.name == "shared gate")
    assert [k for k in gate.forward if isinstance(k, Matmul)] == [Matmul("shared gate", 2048, 1, 2048)]
    assert any(isinstance(kernel, Elementwise) for kernel in gate.forward)
    widths = {p.name: p.shape for p in layer_parameters(model)}
    assert widths["shared gate.weight"] == (1, 2048)


def test_layers_with_windows_have_units_and_kernels_of_their_own() -> None:
    step = bare_step(load_model(CONFIGS["gemma3_27b"]), 32768, 1)
    made = units(step, H100)[1:-1]
    seconds = [sum(piece.cost.alone for piece in unit.forward.pieces) for unit in made]
    assert len(set(seconds)) == 2
    whole = [second == max(seconds) for second in seconds]
    assert whole == [(layer + 1) % 6 == 0 for layer in range(62)]
    parts = {(row.part, row.times) for row in kernel_rows(step, H100)}
    assert {("layer, window 1024", 52), ("layer, all keys", 10)} <= parts


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_fit_the_matrices_of_every_family(name: str) -> None:
    """A and B of each target: r (inputs + outputs) parameters a layer, and nothing else trained."""
    model = load_model(small(name, 2))
    rank, d, f = 4, model.hidden_size, model.ffn_size
    adapted = replace(model, adapters=Lora(rank=rank, targets=model.adapter_targets))
    sizes = {"q": d + model.attention_width, "k": d + model.kv_width, "v": d + model.kv_width,
             "o": model.attention_width + d, "gate": d + f, "up": d + f, "down": f + d}  # fmt: skip
    expected = 2 * rank * sum(sizes[target] for target in model.adapter_targets)
    assert sum(p.elements for module in modules(adapted) for p in module.parameters if p.trained) == expected
    assert total(adapted) == total(model) + expected
    batch = Batch(1, model.max_positions if model.patches else 32, adapters=adapted.adapters)
    names = {kernel.name for op in layer_operations(adapted, batch) for kernel in op.backward}
    assert {f"{target} adapter A weight gradient" for target in model.adapter_targets} <= names
    assert not any(name.endswith(("up weight gradient", "qkv weight gradient")) for name in names)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_model_of_two_stacks_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(
        ScenarioError, match=f"^model: model_type: got '{family}'; not modelled, because .* two"
    ) as told:
        load_model({"model_type": family, "d_model": 512})
    assert "\n" not in str(told.value)


def attention_flops(model: Transformer, cut: ModelPartition, seq_len: int) -> float:
    """Return the FLOPs of a rank's attention kernels in the forward pass of a layer."""
    kernels = [kernel for op in layer_operations(model, Batch(1, seq_len, cut=cut)) for kernel in op.forward]
    return sum(kernel.flops for kernel in kernels if isinstance(kernel, Attention))


@pytest.mark.parametrize(
    "context",
    [
        Context(4),
        Context(1, 4),
        Context(1, 4, balanced=False),
        Context(1, 4, gathers=True),
        Context(2, 2, gathers=True),
    ],
)
def test_context_ranks_of_an_encoder_compute_all_scores_together(context: Context) -> None:
    bert = load_model(CONFIGS["bert_large"])
    own = attention_flops(bert, ModelPartition(context=context), 512)
    assert context.ranks * own == attention_flops(bert, ModelPartition(), 512)


@pytest.mark.parametrize("context", [Context(4), Context(1, 4, gathers=True)])
def test_context_ranks_compute_all_scores_of_a_window_together(context: Context) -> None:
    model = replace(load_model(CONFIGS["mistral_7b"]), num_kv_heads=32)
    own = attention_flops(model, ModelPartition(context=context), 32768)
    assert context.ranks * own == pytest.approx(attention_flops(model, ModelPartition(), 32768))


def checked(model: Any, seq_len: int, **training: Any) -> None:
    """Check a training scenario."""
    load_scenario(
        {
            "name": "checked",
            "cluster": {"topology": "dgx_h100", "world_size": 8},
            "training": {"model": model, "seq_len": seq_len, **training},
        }
    )


def test_windows_in_a_ring_of_keys_are_refused_and_long_windows_are_none() -> None:
    with pytest.raises(
        ScenarioError, match=r"parallelism.cp: got a ring of 4; layers of gemma3_27b have windows of 1024"
    ):
        checked("gemma3_27b", 8192, parallelism={"cp": 4})
    checked("gemma3_27b", 8192, parallelism={"cp": 4, "context": "all_gather"})
    checked("gemma3_27b", 1024, parallelism={"cp": 4})


@pytest.mark.parametrize("name", ["santacoder", "opt_125m", "bloom_560m", "bert_base", "phi2", "gemma2_2b"])
def test_real_training_refuses_other_families_than_gpt2(name: str) -> None:
    """A family with a single feature beside GPT-2's: heads of keys, shifted positions, a norm of the embedding, ..."""
    with pytest.raises(ScenarioError, match="real training supports only GPT-2"):
        checked(small(name, 2) | {"name": name}, 16, numerics=True, learning={})


def test_an_old_bigcode_model_without_multi_query_is_a_gpt2() -> None:
    keys = small("santacoder", 2) | {"multi_query": False, "n_inner": 256}
    checked(keys, 16, numerics=True, learning={}, precision="fp32")


def test_no_measured_model_has_the_features_that_a_run_warns_of() -> None:
    assert {_unlike(row.transformer, row.seq_len) for row in (*measured(), *measured_cut())} == {()}
    assert _unlike(load_model("gemma2_9b"), 8192) == (
        "windows of attention", "norms after attention and MLP", "a soft-cap",
    )  # fmt: skip
    assert "windows of attention" not in _unlike(load_model("gemma2_9b"), 4096)


def test_stages_of_a_pipeline_hold_their_own_kinds_of_layers() -> None:
    """Four dense layers, then four with experts: the second stage holds and computes more."""
    keys = small("qwen1.5_moe_a2.7b", 8) | {"num_experts": 16, "intermediate_size": 64, "mlp_only_layers": [0, 1, 2, 3]}
    model = load_model(keys)
    layers = [module.elements for module in modules(model)[1:-1]]
    # Queries of 64, keys and values of 32 with biases; the output; two norms.
    attention = (64 + 2 * 32) * 64 + 64 * 64 + 128 + 2 * 64
    assert layers == [attention + 3 * 64 * 64] * 4 + [attention + 16 * 64 + (16 + 2) * 3 * 64 * 32 + 64] * 4
    made = units(bare_step(model, 64, 1), H100)[1:-1]
    assert [unit.elements for unit in made] == layers
    kept = [unit.kept for unit in made]
    assert kept[:4] == [kept[0]] * 4
    assert kept[4:] == [kept[4]] * 4
    assert kept[4] > kept[0]
