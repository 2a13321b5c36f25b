"""Low-rank adapters on a frozen model: bytes, FLOPs and exchanges by hand, and measured fine-tuning steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from simulator.basics.measured_tables import read_table
from simulator.cluster.build import build
from simulator.cluster.gpu_file import load_gpu
from simulator.engine.play import play as play_program
from simulator.model.adapters import TARGETS, Lora
from simulator.model.flops import model_flops_per_token
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch, saved_bytes
from simulator.model.parameters import modules, total
from simulator.model.partition import ModelPartition
from simulator.model.quantised import FORMATS
from simulator.model.shape import Transformer
from simulator.records.operation import Allocate, Collective, Compute
from simulator.report.numbers.training_summary import TrainingReport, summarize_step
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.framework import BARE, load_framework
from simulator.step.kernels.framework_operations import until_needed
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.parallelism import Parallelism
from simulator.step.plan import plan_step
from simulator.step.precision import Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import bare_step
from simulator.step.units import units
from tests.training import play, step

# Width 64, 4 heads of 16, 2 heads of keys, feed-forward 256, gated.
SMALL = Transformer("small", 3, 64, 4, 2, 16, 256, 512, 128, gated=True, positions="rotary", norm="rmsnorm", tied=False,
                    attention_bias=False, output_bias=False, mlp_bias=False)  # fmt: skip
RANK = 8
# r (inputs + outputs) of q, k, v, o, gate, up, down.
OWN = RANK * sum((64 + 64, 64 + 32, 64 + 32, 64 + 64, 64 + 256, 64 + 256, 256 + 64))


def adapted(dtype: str = "bfloat16", **facts: Any) -> Transformer:
    return replace(SMALL, adapters=Lora(rank=RANK, targets=TARGETS, dtype=dtype, **facts))


def test_a_layer_has_r_times_inputs_and_outputs_of_each_matrix_and_all_else_is_frozen() -> None:
    model = adapted()
    assert total(model) - total(SMALL) == SMALL.num_layers * OWN
    assert sum(module.frozen(2) for module in modules(model)) == total(SMALL)


def test_quantised_matrices_take_four_bits_and_their_scales() -> None:
    """QLoRA, section 3: NF4 with double quantisation takes 4.127 bits; embedding, norms and head stay in 2 B."""
    layer = modules(adapted(base="nf4"))[1]
    matrices = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 512 + 256 * 64
    norms = 2 * 64
    assert layer.frozen(2) == norms + math.ceil(matrices * (4 + 8 / 64 + 32 / (64 * 256)) / 16)
    assert FORMATS["nf4"].bits_per_element(64) == pytest.approx(4.127, abs=1e-3)
    whole, narrow = (modules(adapted(base=base))[0].frozen(2) for base in ("params", "nf4"))
    assert whole == narrow


def test_a_quantised_matrix_is_written_out_forward_and_backward() -> None:
    """Both passes read 4.127 bits and write 2 B of each element of four matrices."""
    for one in layer_operations(SMALL, Batch(2, 128, 2, adapters=adapted(base="nf4").adapters)):
        wide = [kernel for kernel in (*one.forward, *one.backward) if "dequantisation" in kernel.name]
        assert len(wide) == (2 if one.name in ("qkv", "proj", "up", "down") else 0)
    up = next(one for one in layer_operations(SMALL, Batch(2, 128, 2, adapters=adapted(base="nf4").adapters)) if
              one.name == "up")  # fmt: skip
    assert up.forward[0].nbytes(2) == pytest.approx(64 * 512 * (FORMATS["nf4"].bits / 8 + 2))


def test_on_two_ranks_the_side_along_the_cut_is_halved() -> None:
    """Matrices cut by columns halve B, matrices cut by rows halve A."""
    columns = RANK * (5 * 64 + (64 + 32 + 32 + 256 + 256) // 2)
    rows = RANK * ((64 + 256) // 2 + 2 * 64)
    own, whole = (modules(model, ModelPartition(2))[1].elements for model in (adapted(), SMALL))
    assert own - whole == columns + rows


def test_model_flops_are_four_a_frozen_and_six_a_trained_parameter() -> None:
    own = SMALL.num_layers * OWN
    more = model_flops_per_token(adapted(), 128) - model_flops_per_token(SMALL, 128)
    assert more == 6 * own - 2 * total(SMALL)


@pytest.mark.parametrize(
    ("facts", "copies"),
    [
        # In the activations' dtype an adapter shares its matrix's input, with a dropout it saves a copy and a mask.
        ({"dtype": "bfloat16"}, 0), ({"dtype": "float32"}, 4), ({"dtype": "bfloat16", "dropout": True}, 3),
        ({"dtype": "float32", "dropout": True}, 5),
    ],
)  # fmt: skip
def test_a_layer_saves_inputs_only_for_adapters(facts: dict[str, Any], copies: int) -> None:
    """Frozen matrices need no input; A's output of r numbers is saved for each of seven adapters."""
    tokens, p = 256, 2
    batch = Batch(2, 128, p, adapters=adapted(**facts).adapters)
    without = Batch(2, 128, p, adapters=Lora(rank=RANK, targets=(), dtype=facts["dtype"]))
    rows = 7 * tokens * RANK * (4 if facts["dtype"] == "float32" else 2)
    # Inputs of q, k, v, o, gate and up are 64 wide, that of down is 256.
    inputs = copies * tokens * (6 * 64 + 256)
    # norm1 output, norm2 output and the activation's output; attention saves its output anyway.
    shared = 0 if copies else p * tokens * (64 + 64 + 256)
    found = saved_bytes(layer_operations(SMALL, batch)) - saved_bytes(layer_operations(SMALL, without))
    assert found == rows + inputs + shared


@pytest.mark.parametrize(
    ("facts", "again"),
    [
        ({"dtype": "bfloat16"}, ["down", "down adapter A"]),
        ({"dtype": "float32"}, ["down", "down adapter cast", "down adapter A"]),
        (
            {"dtype": "float32", "dropout": True},
            ["down", "down adapter cast", "down adapter dropout", "down adapter A"],
        ),
    ],
)
def test_early_stop_runs_the_last_matrix_again_for_its_adapter(facts: dict[str, Any], again: list[str]) -> None:
    """torch.utils.checkpoint without reentry, 2.13, ends when the last saved tensor is saved again.

    With an adapter on `down` this is A x, which B saves before B runs. Listed with a TorchDispatchMode for a layer
    y = x + W silu(V x) + s B A (silu(V x)): V, silu, W, cast, dropout and A run again. Without that adapter the list
    ends with silu: a frozen W saves nothing of its own.
    """
    tokens = Batch(2, 128, 2, adapters=adapted(**facts).adapters)
    operations = until_needed(layer_operations(SMALL, tokens))
    assert [op.name for op in operations][-3:] == ["up", "activation", "down"]
    assert [kernel.name for kernel in operations[-1].forward] == again
    others = replace(SMALL, adapters=Lora(rank=RANK, targets=("q", "gate", "up"), **facts))
    without = until_needed(layer_operations(others, Batch(2, 128, 2, adapters=others.adapters)))
    assert without[-1].name == "activation"


def test_early_stop_runs_dora_again_until_the_adapters_product() -> None:
    """(f - 1) W x and f B A x each save their factors when they begin; their sum saves nothing."""
    batch = Batch(2, 128, 2, adapters=adapted("float32", dora=True).adapters)
    last = until_needed(layer_operations(SMALL, batch))[-1]
    names = [kernel.name for kernel in last.forward]
    assert names[-1] == "down dora base product"
    assert "down adapter B" in names


@pytest.mark.parametrize("policy", ["full", "selective_op", "feed_forward"])
def test_each_policy_recomputes_what_the_last_adapter_needs(policy: str) -> None:
    """For t tokens, width d, feed-forward f and rank r: W takes 2 t f d FLOP, A takes 2 t f r FLOP."""
    tokens, d, f = 2 * 128, SMALL.hidden_size, SMALL.ffn_size
    framework = BARE.with_constants(stops_early=True)
    rest = tuple(target for target in TARGETS if target != "down")

    def recomputed(targets: tuple[Any, ...]) -> float:
        model = replace(SMALL, adapters=Lora(rank=RANK, targets=targets, dtype="bfloat16"))
        made = step("ddp", model, activation_checkpointing=policy, framework=framework, micro_batch_size=2, seq_len=128)
        found = units(made, load_gpu("h100_sxm"))[1].recompute
        assert found is not None
        return found.flops

    assert recomputed(TARGETS) - recomputed(rest) == 2 * tokens * f * (d + RANK)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_nothing_is_computed_or_sent_for_what_is_frozen(strategy: str, accumulation: int) -> None:
    """Gradients and updated parameters of adapters alone travel; ZeRO-3 gathers every parameter."""
    model = adapted()
    run = play(step(strategy, model, gradient_accumulation_steps=accumulation), 4)
    ops = next(iter(run.plan.program.ranks))
    sent: dict[str, int] = {}
    for op in ops:
        if isinstance(op, Collective) and "norm" not in op.name:
            sent[op.schedule.operation] = sent.get(op.schedule.operation, 0) + op.elements
    own, every = SMALL.num_layers * OWN, total(model)
    times = accumulation if strategy in ("zero2", "zero3") else 1
    assert (
        sent
        == {
            "ddp": {"all_reduce": own},
            "zero1": {"reduce_scatter": own, "all_gather": own},
            "zero2": {"reduce_scatter": own * times, "all_gather": own},
            # Embedding, head and the last layer stay gathered for the backward pass.
            "zero3": {
                "reduce_scatter": own * times,
                "all_gather": accumulation * (every + 2 * modules(model)[1].elements),
            },
        }[strategy]
    )
    kernels = [op for op in ops if isinstance(op, Compute) and "weight gradient" in op.name]
    assert not kernels


def test_states_are_those_of_the_adapters_and_frozen_parameters_are_held_in_their_dtype() -> None:
    """float32 adapters without a master copy: 4 B and 8 B of Adam each; the frozen model 2 B."""
    precision = Precision(grads="float32", master=None).resolved()
    run = play(step("ddp", adapted("float32"), precision=precision), 2)
    held = {op.name: op.nbytes for op in next(iter(run.plan.program.ranks)) if isinstance(op, Allocate)}
    own = SMALL.num_layers * OWN
    assert (held["parameters"], held["optimizer states"]) == (2 * total(SMALL) + 4 * own, 8 * own)


LLAMA_1B = {
    "model_type": "llama", "name": "llama_1b", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip


def measured_step(
    model: Transformer, topology: str, gpus: int, tokens: tuple[int, int], checkpointing: str, **facts: Any
) -> TrainingReport:
    cluster = build(topology, gpus, gpu=facts.pop("gpu", None))
    sequences, seq_len = tokens
    own = model.adapters.dtype if model.adapters else "bfloat16"
    states = "float32" if model.adapters else "bfloat16"
    asked = bare_step(
        model, seq_len, sequences, activation_checkpointing=checkpointing,
        precision=Precision(grads=own, reduce="float32", master=None).resolved(),
        framework=load_framework("transformers").on_ranks(gpus),
        sharding=Sharding(strategy="zero3" if gpus > 1 else "ddp"),
        optimizer=replace(OPTIMIZERS.find("adam"), state_dtype=states, **facts),
    )  # fmt: skip
    planned = plan_step(cluster, asked)
    played = play_program("auto", planned.program, cluster, limit_memory=False)
    return summarize_step(planned, cluster, played)


@pytest.mark.parametrize("row", [row for row in read_table("steps_h200.csv") if row["kind"] == "step" and "llama" in
                                 row["what"]], ids=lambda row: row["what"])  # fmt: skip
def test_fine_tuning_steps_on_an_h200_take_the_measured_time_and_memory(row: dict[str, str]) -> None:
    """Hugging Face Transformers and PEFT, adapters of every matrix in float32, fused AdamW: 9 % and 1 %.

    Nothing was fitted to Transformers. The smallest model, Llama 1B, is 8.2 % too slow, the others at most 8 %.
    """
    words = row["what"].split()
    rank = next((int(word.removeprefix("lora")) for word in words if word.startswith("lora")), 0)
    tokens = next(tuple(map(int, word.split("x"))) for word in words if "x" in word and word[0].isdigit())
    model = load_model("llama3_8b") if words[1] == "8B" else load_model(LLAMA_1B)
    model = replace(model, adapters=Lora(rank=rank, targets=TARGETS)) if rank else model
    policy = "full" if "checkpointed" in words else "none"
    found = measured_step(model, "dgx_h100", 1, (tokens[0], tokens[1]), policy, gpu="h200", implementation="fused")
    assert found.step_time_s == pytest.approx(float(row["seconds"]), rel=0.09)
    assert found.peak_memory_bytes == pytest.approx(float(row["peak_bytes"]), rel=0.01)


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ("{rank: 8, targets: [q, x]}", "training.lora.targets: got 'x'; one of down, gate, k, o, q, up, v"),
        ("{rank: 8, targets: some}", "got 'some'; one of all, attention, feed_forward, or a list of"),
        ("{rank: -1}", "training.lora.rank: got -1; must be at least 0"),
    ],
)
def test_wrong_adapters_get_one_line(lora: str, told: str, tmp_path: Any) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(
        "name: a\nquestion: b\ncluster: {topology: star_100g, world_size: 2}\n"
        f"training: {{model: gpt2, seq_len: 128, lora: {lora}}}\n"
    )
    with pytest.raises(Exception, match=told.replace("{", r"\{")):
        load_scenario(path)


def test_adapters_are_refused_where_they_are_not_supported() -> None:
    base = {"name": "a", "cluster": {"topology": "dgx_h100", "world_size": 8}}
    for model, targets, told in (
        ("deepseek_v3", "all", "latent attention"),
        ("mixtral_8x7b", ["up"], "expert layers"),
        ("gpt2", ["gate"], "no such matrix"),
    ):
        training = {"model": model, "seq_len": 128, "lora": {"rank": 8, "targets": targets}}
        with pytest.raises(Exception, match=told):
            load_scenario({**base, "training": training})


def test_tensor_parallel_ranks_sum_the_whole_side_of_each_adapter() -> None:
    """A of matrices cut by columns and B of matrices cut by rows see a part of the other side on each rank."""
    run = play(step("ddp", adapted(), parallelism=Parallelism(tp=2)), 2)
    ops = next(iter(run.plan.program.ranks))
    summed = [op.elements for op in ops if isinstance(op, Collective) and op.name.startswith("sum partial")]
    assert summed == [SMALL.num_layers * RANK * (5 * 64 + 2 * 64)]


@pytest.mark.parametrize(
    ("keys", "nbytes"),
    [
        # Adam's two moments: float32 beside a float32 master copy, and like half-precision numbers without one.
        ({}, 4 + 8),
        ({"precision": {"params": "bfloat16", "master": None}}, 4),
        ({"precision": {"params": "bfloat16", "master": None}, "optimizer": {"state_dtype": "float32"}}, 8),
        ({"precision": "fp32"}, 8),
    ],
)
def test_states_have_the_dtype_of_what_they_update(keys: dict[str, Any], nbytes: int) -> None:
    training = {"model": "gpt2", "seq_len": 128, "sharding": "ddp"} | keys
    cluster = {"topology": "dgx_h100", "world_size": 1}
    scenario = load_scenario({"name": "states", "cluster": cluster, "training": training})
    assert scenario.training is not None
    plan = plan_step(build("dgx_h100", 1), to_step(scenario.training, 1))
    held = {op.name: op.nbytes for ops in plan.program.ranks for op in ops if isinstance(op, Allocate)}
    assert held["optimizer states"] == nbytes * 124_439_808


def test_states_of_float32_adapters_are_float32() -> None:
    training = {"model": "gpt2", "seq_len": 128, "sharding": "ddp", "lora": {"rank": 4, "targets": "attention"}}
    scenario = load_scenario({"name": "s", "cluster": {"topology": "dgx_h100", "world_size": 1}, "training": training})
    assert scenario.training is not None
    step = to_step(scenario.training, 1)
    assert (step.precision.master, step.optimizer.state_dtype) == (None, "float32")


def test_megatron_keeps_the_gathered_inputs_of_adapters_unless_they_are_gathered_again() -> None:
    """Two matrices of a layer are cut by columns, qkv and up: kept, each of two ranks has the other's half as well.

    Megatron-Bridge's LoRA has `sequence_parallel_input_regather`, off by default: the full output of the norm stays.
    """
    runs = [
        play(
            step(
                "ddp",
                adapted(regather=regather),
                precision=Precision().resolved(),
                parallelism=Parallelism(tp=2),
                seq_len=64,
            ),
            2,
        )
        for regather in (False, True)
    ]
    again = [
        sum(isinstance(op, Collective) and "input again" in op.name for op in next(iter(run.plan.program.ranks)))
        for run in runs
    ]
    assert again == [0, 2 * SMALL.num_layers]
    peaks = [run.report.peak_memory_bytes for run in runs]
    assert peaks[0] - peaks[1] >= SMALL.num_layers * 2 * 64 * 64 * 2 // 2
