"""Activations that a played step holds under each checkpointing policy, to the byte.

p bytes an element, b s tokens, hidden size d, L layers: full keeps L b s d p between forward and backward; sqrt keeps
one input for each of k = round(sqrt(L)) segments, and holds a whole segment when it runs it again (Chen et al., 2016).
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from simulator.cluster.gpu_file import load_gpu
from simulator.model.expert_partition import ExpertPartition
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch, saved_bytes
from simulator.model.partition import WHOLE
from simulator.model.shape import Transformer
from simulator.step.checkpointing import kept
from simulator.step.framework import load_framework
from simulator.step.kernels.framework_operations import until_needed
from simulator.step.spec import bare_step
from simulator.step.units import units
from tests.training import play, step

MODEL = Transformer("eight", 8, 64, 4, 4, 16, 256, 512, 128)
BOUNDARY = 2 * 32 * MODEL.hidden_size * 2
LAYER = saved_bytes(layer_operations(MODEL, Batch(2, 32)))


def held(policy: object) -> tuple[int, int]:
    """Activations of layers after the forward pass, and the most of them in the backward pass [B]."""
    made = step("ddp", MODEL, activation_checkpointing=policy)
    layers = {f"layer {i} activations 0" for i in range(8)} | {f"layer {i} recomputed 0" for i in range(8)}
    live = most = after_forward = 0
    for op in play(made, 1).plan.program.ranks[0]:
        name = getattr(op, "allocation", op.name)
        if name in layers:
            live += op.nbytes if hasattr(op, "nbytes") else -sizes(made)[name]
            most = max(most, live)
        if op.name == "head forward 0":
            after_forward = live
    return after_forward, most


def sizes(made: object) -> dict[str, int]:
    """Bytes of every allocation of a step, by name."""
    ops = play(made, 1).plan.program.ranks[0]  # type: ignore[arg-type]
    return {op.name: op.nbytes for op in ops if hasattr(op, "category")}


@pytest.mark.parametrize(
    ("policy", "after_forward", "peak"),
    [
        ("none", 8 * LAYER, 8 * LAYER),
        ("full", 8 * BOUNDARY, 7 * BOUNDARY + LAYER),
        (2, 4 * BOUNDARY + 4 * LAYER, 4 * BOUNDARY + 4 * LAYER),
        ((0, 7), 2 * BOUNDARY + 6 * LAYER, BOUNDARY + 7 * LAYER),
    ],
)
def test_layers_keep_what_the_policy_says(policy: object, after_forward: int, peak: int) -> None:
    assert held(policy) == (after_forward, peak)


def test_sqrt_keeps_an_input_a_segment_and_holds_a_segment_when_it_is_run_again() -> None:
    count = round(sqrt(8))
    lengths = [8 // count + (i < 8 % count) for i in range(count)]
    # Segment i is at work: the inputs of those before it, and all its own layers.
    peaks = [i * BOUNDARY + length * LAYER for i, length in enumerate(lengths)]
    assert held("sqrt") == (count * BOUNDARY, max(peaks))


@pytest.mark.parametrize("gated", [True, False])
def test_selective_op_keeps_attentions_output_and_every_second_matmul(gated: bool) -> None:
    """torchtitan's rule, of a layer's four matmuls qkv and up; what the backward pass does not need is not run again.

    With t tokens of width d, feed-forward f and two bytes: the layer's input and attention's output are t d each, qkv
    3 t d, up f (2 f where gated), and attention keeps four bytes a head and token.
    """
    model = replace(MODEL, gated=gated)
    tokens, d, f = 2 * 32, model.hidden_size, model.ffn_size
    operations = layer_operations(model, Batch(2, 32))
    found = kept("selective_op", 0, model, operations, 2 * tokens * d)
    assert found.nbytes == 2 * tokens * (d + d + 3 * d + (2 if gated else 1) * f) + 4 * tokens * model.num_heads
    again = [op.name for op in found.operations]
    assert again == ["norm1", "proj", "residual1", "norm2", "activation"]


@pytest.mark.parametrize("gated", [True, False])
def test_the_feed_forward_block_is_run_again_from_its_norm_or_its_activation_alone(gated: bool) -> None:
    """As llmq's --recompute-ffn and --recompute-swiglu, and Megatron-Core's recompute_modules mlp.

    With t tokens of width d, feed-forward f and two bytes: the norm's output is t d, the activation's input t f (2 t f
    where gated), its output t f. The norm's statistics stay, and the last matmul is not run again.
    """
    model = replace(MODEL, gated=gated)
    tokens, d, f = 2 * 32, model.hidden_size, model.ffn_size
    operations = layer_operations(model, Batch(2, 32))
    everything = saved_bytes(operations)
    whole = kept("feed_forward", 0, model, operations, 2 * tokens * d)
    assert [op.name for op in whole.operations] == ["norm2", "up", "activation"]
    assert whole.recomputed == 2 * tokens * (d + (3 if gated else 2) * f)
    alone = kept("activation", 0, model, operations, 2 * tokens * d)
    assert [op.name for op in alone.operations] == ["activation"]
    assert alone.recomputed == 2 * tokens * f
    for found in (whole, alone):
        assert found.nbytes + found.recomputed == everything


@pytest.mark.parametrize("policy", ["feed_forward", "activation"])
def test_experts_are_run_again_without_the_exchange_of_their_results(policy: str) -> None:
    model = replace(MODEL, num_experts=4, active_experts=2, gated=True)
    operations = layer_operations(model, Batch(2, 32))
    again = [op.name for op in kept(policy, 0, model, operations, 100).operations]
    assert again[-1] == "activation"
    assert ("up" in again) == (policy == "feed_forward")


def test_selective_op_does_not_run_the_last_exchange_of_experts_again() -> None:
    """What brings experts' results together is the layer's last operation: no backward pass needs its output."""
    model = replace(MODEL, num_experts=4, active_experts=2, gated=True)
    operations = layer_operations(model, Batch(2, 32))
    names = [op.name for op in operations]
    assert any(name.startswith("combine") for name in names)
    again = [op.name for op in kept("selective_op", 0, model, operations, 100).operations]
    assert not any(name.startswith(("combine", "residual2")) for name in again)
    assert again


MIXTURE = replace(MODEL, num_experts=4, active_experts=2, gated=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_selective_op_recomputes_grouped_matmuls_and_keeps_exchanged_tokens(ranks: int) -> None:
    """torchtitan's list names aten.mm and all_to_all_single, neither grouped matmuls nor the router.

    With t tokens of width d, each to k experts, and two bytes: of qkv and out every second output stays, 3 t d; input
    and attention's output are t d each, and attention keeps four bytes a head and token. With experts on other ranks
    the tokens of both exchanges stay too, k t d each.
    """
    tokens, d, k = 2 * 32, MIXTURE.hidden_size, MIXTURE.active_experts
    operations = layer_operations(MIXTURE, Batch(2, 32, cut=replace(WHOLE, experts=ExpertPartition(ranks))))
    found = kept("selective_op", 0, MIXTURE, operations, 2 * tokens * d)
    exchanged = 2 * k if ranks > 1 else 0
    assert found.nbytes == 2 * tokens * d * (1 + 1 + 3 + exchanged) + 4 * tokens * MIXTURE.num_heads
    again = [op.name for op in found.operations]
    assert ({"router", "up", "activation"} - {*again}, "dispatch" in again, "down" in again) == (
        set(), ranks == 1, ranks == 1,
    )  # fmt: skip
    # The early end of the recompute keeps the experts' outputs that combine reads.
    assert [op.name for op in until_needed(found.operations)] == again


def test_megatron_core_saves_no_outputs_of_experts() -> None:
    """The router's weights multiply the activation from Megatron Core 0.13 on (its CHANGELOG.md).

    Qwen3-30B-A3B, 8,192 tokens, two stages: 24 layers save 8 x 8,192 x 2,048 outputs in two bytes, twice in flight on
    the first stage: 12 GiB (alibaba/Pai-Megatron-Patch, issue 643, a run that fits on 80 GB).
    """
    model = load_model("qwen3_30b_a3b", 8192)
    saved = {}
    older = load_framework("nemo").with_constants(name="0.12", weights_activations=False)
    for framework in (older, *map(load_framework, ("nemo", "megatron_core", "nemo_2025"))):
        made = bare_step(model, 8192, 1, framework=framework)
        saved[framework.name] = sum(unit.kept for unit in units(made, load_gpu("h100_sxm"))[1:-1])
    assert saved["nemo"] == saved["megatron_core"] == saved["nemo_2025"]
    assert saved["0.12"] - saved["nemo"] == 48 * 8 * 8192 * 2048 * 2 == 12 * 2**30
