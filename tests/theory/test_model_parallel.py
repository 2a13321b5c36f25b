"""A step that is cut over ranks sends and holds what papers say, and takes what an independent player says.

References: Korthikanti et al. 2022 (arXiv:2205.05198), table 2 and section 4; Narayanan et al., SC21, section 2.2.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.gpu_file import load_gpu
from simulator.engine.events import execute as events
from simulator.model.context import _round, attention_kernels
from simulator.model.expert_partition import ExpertPartition
from simulator.model.experts_spec import ExpertsSpec
from simulator.model.kernel import Attention
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch, saved_bytes
from simulator.model.overlap import _shifts
from simulator.model.parameters import layer_parameters, modules
from simulator.model.partition import Communication, Context, ModelPartition
from simulator.model.shape import LatentAttention, Transformer
from simulator.records.operation import Allocate, Collective, Compute
from simulator.records.timeline import Timeline
from simulator.step.framework import BARE, load_framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.parallelism import Parallelism
from simulator.step.pipelines.schedule import SCHEDULES, PipelineShape, Work
from simulator.step.plan import StepPlan, plan_step
from simulator.step.precision import Precision
from simulator.step.spec import bare_step
from simulator.testing.pipelines import most_held, played
from tests.training import play, step

MODEL = Transformer("cut", 4, 64, 8, 8, 8, 256, 512, 64, tied=False)
GROUPED = replace(MODEL, num_kv_heads=2, norm="rmsnorm", gated=True, positions="rotary", attention_bias=False)


def planned(ranks: int, model: Transformer = MODEL, topology: str = "dgx_h100", **facts: Any) -> StepPlan:
    return plan_step(build(topology, ranks), step(facts.pop("strategy", "ddp"), model, **facts))


def collectives(plan: StepPlan, rank: int) -> list[Collective]:
    return [op for op in plan.program.ranks[rank] if isinstance(op, Collective)]


def sent_by_a_rank(op: Collective) -> float:
    """Bytes that each rank sends, by the closed forms of rings (Patarasuk & Yuan 2009)."""
    n, times = len(op.group), {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    return times[op.schedule.operation] * (n - 1) / n * op.nbytes


@pytest.mark.parametrize("t", [2, 4, 8])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_sends_what_megatron_sends(t: int, recompute: str, sequence: bool) -> None:
    """8 (t-1)/t A a layer and micro-batch without cut sequences, 10 with them, and 4 more where it is run again."""
    plan = planned(t, activation_checkpointing=recompute, parallelism=Parallelism(tp=t, sequence_parallel=sequence))
    made = plan.step
    a = made.keys.micro_batch_size * made.keys.seq_len * MODEL.hidden_size * 2
    own = [op for op in collectives(plan, 0) if op.name.startswith("layer 1 ")]
    factor = (10 if sequence else 8) + (4 if recompute == "full" else 0)
    assert sum(map(sent_by_a_rank, own)) == factor * (t - 1) / t * a
    counts = Counter(op.schedule.operation for op in own)
    if recompute == "none":
        assert counts == ({"all_gather": 6, "reduce_scatter": 4} if sequence else {"all_reduce": 4})


@pytest.mark.parametrize("t", [2, 4])
def test_the_loss_tells_three_numbers_a_token_and_the_embedding_is_summed_once(t: int) -> None:
    plan = planned(t, parallelism=Parallelism(tp=t))
    tokens = plan.step.keys.micro_batch_size * plan.step.keys.seq_len
    head = [op for op in collectives(plan, 0) if op.name.startswith("head forward") and op.dtype == "float32"]
    assert [(op.schedule.operation, op.elements) for op in head] == [("all_reduce", tokens)] * 3
    (summed,) = (op for op in collectives(plan, 0) if op.name.startswith("embedding forward"))
    assert (summed.schedule.operation, summed.elements) == ("reduce_scatter", tokens * MODEL.hidden_size)


def test_fewer_heads_of_keys_than_ranks_gather_what_the_first_matrix_makes() -> None:
    plan = planned(8, GROUPED, parallelism=Parallelism(tp=8))
    tokens = plan.step.keys.micro_batch_size * plan.step.keys.seq_len
    width = GROUPED.attention_width + 2 * GROUPED.kv_width
    own = [op for op in collectives(plan, 0) if op.name.startswith("layer 0 ") and "qkv output" in op.name]
    assert [(op.schedule.operation, op.elements) for op in own] == [
        ("all_gather", tokens * width),
        ("reduce_scatter", tokens * width),
    ]


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_keeps_what_korthikanti_says(t: int, sequence: bool) -> None:
    """s b h (10 + 24/t + 5 a s/(h t)), or all of it over t; and the norms' statistics, which the paper leaves out."""
    b, s, h, a = 2, 64, MODEL.hidden_size, MODEL.num_heads
    for attention, scores in (("standard", 5 * a * s / (h * t)), ("flash", 0.0)):
        batch = Batch(b, s, attention=attention, dropout=True, cut=ModelPartition(t, sequence and t > 1))  # type: ignore[arg-type]
        cut = t if sequence or t == 1 else 1
        statistics = 2 * 2 * 4 * b * s / cut
        # Flash attention keeps the log-sum-exp of each row instead of scores.
        logsumexp = 4 * b * s * a / t if attention == "flash" else 0.0
        whole = 34 / t if cut == t else 10 + 24 / t
        assert saved_bytes(layer_operations(MODEL, batch)) == s * b * h * (whole + scores) + statistics + logsumexp


@pytest.mark.parametrize("model", [MODEL, GROUPED])
@pytest.mark.parametrize(("t", "p"), [(1, 4), (2, 2), (4, 1), (8, 2)])
def test_what_ranks_hold_sums_to_the_model(model: Transformer, t: int, p: int) -> None:
    """Cut tensors once over a group, whole ones t times; a vocabulary of 512 needs no padding up to t = 4."""
    plan = planned(t * p, model, parallelism=Parallelism(tp=t, pp=p))
    held = [
        next(op.nbytes for op in ops if isinstance(op, Allocate) and op.name == "parameters")
        for ops in plan.program.ranks
    ]
    whole = [tensor for module in modules(model) for tensor in module.parameters]
    own = [tensor for module in modules(model, ModelPartition(t, True)) for tensor in module.parameters]
    same = sum(one.elements for one, mine in zip(whole, own, strict=True) if one.shape == mine.shape)
    rows = ModelPartition(t).vocabulary(model) - model.vocab_size
    padded = 2 * rows * model.hidden_size
    assert sum(held) == 2 * (sum(one.elements for one in whole) + (t - 1) * same * (t > 1) + padded)


def test_overlap_by_user_buffers_moves_the_same_bytes_and_makes_the_same_products() -> None:
    plans = [
        planned(4, topology="star_100g", parallelism=Parallelism(tp=4, tp_overlap=way))  # type: ignore[arg-type]
        for way in ("none", "bulk", "ring_exchange")
    ]
    sent, flops = [], []
    for plan in plans:
        own = [op for op in collectives(plan, 0) if op.stream == "communication tensor" and op.name.startswith("layer")]
        # A shift sends each rank's part once.
        sent.append(sum(op.nbytes / 4 if "piece" in op.name else sent_by_a_rank(op) for op in own))
        flops.append(sum(op.flops for op in plan.program.ranks[0] if isinstance(op, Compute)))
    assert sent[0] == sent[1] == sent[2]
    assert flops[0] == flops[1] == pytest.approx(flops[2], rel=1e-12)
    pieces = [op for op in collectives(plans[2], 0) if "piece" in op.name]
    # Before queries and up, behind projection and down, forward; backward before the gradients of these two.
    assert len(pieces) == MODEL.num_layers * 6 * 3


def test_pieces_go_round_while_others_are_multiplied() -> None:
    """G / t + (t - 1) max(G / t, g): on a slow network one piece's product and t - 1 shifts."""
    cluster = build("star_100g", 4, network_time=2.0)
    made = step("ddp", MODEL, parallelism=Parallelism(tp=4, tp_overlap="ring_exchange"))
    timeline = events(plan_step(cluster, made).program, cluster)
    for name in ("qkv input", "up input"):
        shifts = [s for s in timeline.spans if s.rank == 0 and s.name.startswith(f"layer 1 forward 0: gather {name}")]
        products = [s for s in timeline.spans if s.rank == 0 and s.name.startswith("layer 1 forward 0")]
        first = next(
            s for s in products if s.stream == "compute" and s.start == pytest.approx(shifts[0].start, abs=1e-12)
        )
        last = next(
            s for s in products if s.stream == "compute" and s.start == pytest.approx(shifts[-1].end, abs=1e-12)
        )
        g = shifts[1].end - shifts[1].start
        assert first.end - first.start < g
        assert len(shifts) == 3
        assert last.start - first.start == pytest.approx(3 * g, rel=1e-9)


def by_category(timeline: Timeline, rank: int, category: str) -> int:
    """Most bytes of a category that a rank held."""
    return max(dict(sample.by_category).get(category, 0) for sample in timeline.memory if sample.rank == rank)


SHAPES = [
    ("gpipe", 4, 6, 1), ("1f1b", 4, 8, 1), ("1f1b", 4, 2, 1), ("interleaved", 2, 4, 2), ("looped_bfs", 2, 4, 2),
    ("zb_h1", 4, 8, 1), ("zb_h2", 4, 8, 1), ("zb_v", 2, 4, 2), ("v_half", 4, 8, 2), ("v_min", 4, 9, 2),
    ("dualpipe_v", 2, 6, 2), ("interleaved_zero_bubble", 2, 4, 2), ("zbv_zero_bubble", 2, 4, 2),
]  # fmt: skip


def even(stages: int) -> Transformer:
    return replace(MODEL, num_layers=2 * stages)


@pytest.mark.parametrize(("name", "p", "m", "v"), SHAPES)
def test_a_rank_holds_as_many_micro_batches_as_its_order_says(name: str, p: int, m: int, v: int) -> None:
    """Of ranks without embedding and head all chunks are alike: held chunks times what a chunk keeps."""
    model, schedule = even(p * v), SCHEDULES.find(name)
    parallelism = Parallelism(pp=p, schedule=name, virtual_stages=v)
    plan = planned(p, model, gradient_accumulation_steps=m, parallelism=parallelism)
    timeline = events(plan.program, build("dgx_h100", p), limit_memory=False)
    shape = PipelineShape(p, m, v, p)
    layer = saved_bytes(layer_operations(model, Batch(2, 32)))
    for rank, own in enumerate(schedule.order(shape)):
        if {0, shape.stages - 1} & set(schedule.stages_of(rank, shape)):
            continue
        assert by_category(timeline, rank, "activations") == most_held(own) * 2 * layer
    if name == "1f1b":
        embedding = 8 * 2 * 32
        assert by_category(timeline, 0, "activations") == min(m, p) * (2 * layer + embedding)


@pytest.mark.parametrize(("name", "p", "m", "v"), SHAPES)
def test_a_step_takes_what_its_order_takes_with_sends_that_cost(name: str, p: int, m: int, v: int) -> None:
    """An independent player of the same order, with each stage's own kernels and a send's latency and bytes."""
    model, schedule = even(p * v), SCHEDULES.find(name)
    parallelism = Parallelism(pp=p, schedule=name, virtual_stages=v)
    # Gradients that are added up in another dtype are so from the first micro-batch on: all take the same.
    precision = Precision(grads="float32").resolved()
    plan = planned(p, model, "star_100g", gradient_accumulation_steps=m, parallelism=parallelism, precision=precision)
    timeline = events(plan.program, build("star_100g", p), limit_memory=False)
    shape = PipelineShape(p, m, v, p)
    nbytes = 2 * 32 * model.hidden_size * 2
    # Two hops of 5 us, 12.5 GB/s (topologies/star_100g.yaml).
    send = 10e-6 + nbytes / 12.5e9
    times = _times_of_passes(plan, shape.stages)
    # Two passes at once take turns: the forward pass sends what it has made before the backward pass begins.
    order = tuple(tuple((one,) for slot in own for one in slot) for own in schedule.order(shape))
    found = played(schedule, shape, order, times, send, _behind(plan, shape.stages))
    ends = [max(s.end for s in timeline.spans if s.rank == r and s.kind in _PASSES) for r in range(p)]
    assert ends == pytest.approx([own[-1][1] for own in found.slots], rel=1e-9)


_PASSES = ("forward", "backward", "weight gradient", "accumulate")
_LAYERS_A_STAGE = 2


def _times_of_passes(plan: StepPlan, stages: int) -> dict[tuple[Work, int], float]:
    """Kernels of a micro-batch through each stage [s]; all micro-batches are alike."""
    sums: Counter[tuple[Work, int]] = Counter()
    # By unit and what is done with it: "layer 3", "weight gradient".
    own = {op.name.rpartition(" ")[0]: op for ops in plan.program.ranks for op in ops if isinstance(op, Compute)}
    works = {
        "forward": (Work.FORWARD,),
        "backward": (Work.BACKWARD,),
        "input gradient": (Work.INPUT_GRADIENT,),
        "weight gradient": (Work.WEIGHT_GRADIENT,),
        "accumulate": (Work.BACKWARD, Work.WEIGHT_GRADIENT),
    }
    for name, op in own.items():
        unit, *words = name.split()
        layer = int(words.pop(0)) if unit == "layer" else 0
        stage = {"embedding": 0, "head": stages - 1}.get(unit, layer // _LAYERS_A_STAGE)
        for work in works.get(" ".join(words), ()):
            sums[work, stage] += op.duration
    return dict(sums)


def _behind(plan: StepPlan, stages: int) -> dict[tuple[Work, int], float]:
    """What each stage adds up when its input's gradient is there already: gradients of its first unit [s]."""
    durations = {op.name: op.duration for ops in plan.program.ranks for op in ops if isinstance(op, Compute)}
    first = ["embedding", *(f"layer {stage * _LAYERS_A_STAGE}" for stage in range(1, stages))]
    return {(Work.BACKWARD, stage): durations[f"{unit} accumulate 0"] for stage, unit in enumerate(first)}


@pytest.mark.parametrize("sequence", [False, True])
def test_each_boundary_carries_a_micro_batch_each_way(sequence: bool) -> None:
    plan = planned(8, gradient_accumulation_steps=3, parallelism=Parallelism(tp=2, pp=4, sequence_parallel=sequence))
    a = 2 * 32 * MODEL.hidden_size * 2 // (2 if sequence else 1)
    sends = [op for rank in range(8) for op in collectives(plan, rank) if op.schedule.operation == "send"]
    once = {op.name: op for op in sends}
    assert {op.nbytes for op in once.values()} == {a}
    # Three boundaries, three micro-batches, two directions, two ranks of a group side by side.
    assert len(once) == 3 * 3 * 2 * 2


def test_both_ends_sum_the_gradient_of_the_table_that_they_share() -> None:
    tied = replace(MODEL, tied=True)
    plan = planned(8, tied, parallelism=Parallelism(pp=4))
    (shared,) = (op for op in collectives(plan, 0) if "shared table" in op.name)
    assert (shared.group, shared.elements) == ((0, 6), tied.vocab_size * tied.hidden_size)
    assert not any("shared table" in op.name for op in collectives(plan, 2))


def test_norms_are_summed_over_the_group_where_sequences_are_cut() -> None:
    """Four layers of two norms and two biases that stay whole, the table of positions, the last norm; at the end."""
    plan = planned(2, parallelism=Parallelism(tp=2))
    (summed,) = (op for op in collectives(plan, 0) if op.name.startswith("sum partial"))
    h = MODEL.hidden_size
    assert summed.elements == 4 * (2 * 2 * h + 2 * h) + MODEL.max_positions * h + 2 * h
    plain = planned(2, parallelism=Parallelism(tp=2, sequence_parallel=False))
    assert not any(op.name.startswith("sum partial") for op in collectives(plain, 0))


def test_gradients_are_reduced_over_ranks_that_hold_the_same() -> None:
    plan = planned(16, strategy="zero1", parallelism=Parallelism(tp=2, pp=2))
    scattered = {
        rank: {op.group for op in collectives(plan, rank) if op.name.startswith("scatter bucket")} for rank in range(16)
    }
    assert scattered[0] == {(0, 2, 4, 6)}
    assert set.union(*scattered.values()) == {(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)}


def context_bytes(plan: StepPlan, rank: int, which: str) -> float:
    """Bytes that a rank sends over its context-parallel group in one layer's forward or backward pass."""
    total = 0.0
    for op in collectives(plan, rank):
        if op.name.startswith(f"layer 1 {which} 0: "):
            n, operation = len(op.group), op.schedule.operation
            # Of an all-to-all `nbytes` is what each rank has; a ring shift moves a rank's own part, once.
            share = {"ring_shift": 1 / n, "all_to_all": (n - 1) / n, "all_gather": (n - 1) / n}
            share["reduce_scatter"] = (n - 1) / n
            total += share[operation] * op.nbytes
    return total


@pytest.mark.parametrize("model", [MODEL, replace(GROUPED, num_heads=16, head_dim=4, num_kv_heads=8)])
@pytest.mark.parametrize("c", [2, 4, 8])
@pytest.mark.parametrize("balanced", [True, False])
def test_attention_over_cut_sequences_sends_its_closed_forms(model: Transformer, c: int, balanced: bool) -> None:
    """In units of b s k d_h w, keys' or values' of whole sequences.

    Ring: 2 (c-1)/c forward, the same and 2 for their gradients, which come home, backward. Gathered: 2 (c-1)/c, and
    gathered again and scattered. Ulysses: (c-1)/c^2 of queries, keys, values and the output, each way.
    """
    ranks, b, s = c, 2, 64
    key = b * s * model.num_kv_heads * model.head_dim * 2
    query = b * s * model.num_heads * model.head_dim * 2
    ways = {
        "ring": (Parallelism(cp=c, balanced=balanced), 2 * (c - 1) / c * key, (2 * (c - 1) / c + 2) * key),
        "all_gather": (
            Parallelism(cp=c, context="all_gather", balanced=balanced), 2 * (c - 1) / c * key, 4 * (c - 1) / c * key,
        ),
        "ulysses": (Parallelism(cp=c, context="ulysses"), *[(c - 1) / c**2 * (2 * query + 2 * key)] * 2),
    }  # fmt: skip
    for parallelism, forward, backward in ways.values():
        plan = planned(ranks, model, seq_len=s, parallelism=parallelism)
        for rank in (0, ranks - 1):
            assert context_bytes(plan, rank, "forward") == pytest.approx(forward, rel=1e-12)
            assert context_bytes(plan, rank, "backward") == pytest.approx(backward, rel=1e-12)


def test_heads_inside_a_box_and_keys_around_between_them() -> None:
    """Ulysses over u neighbours, then a ring of c / u groups: each moves (c/u - 1)/(c/u) of its u-th of the keys."""
    c, u, b, s = 8, 4, 2, 64
    plan = planned(8, MODEL, seq_len=s, parallelism=Parallelism(cp=c, context={"ulysses": u, "ring": c // u}))
    key = b * s * MODEL.num_kv_heads * MODEL.head_dim * 2
    inside = (u - 1) / u * 4 * key / c
    around = 2 * (c // u - 1) * key / c
    assert context_bytes(plan, 0, "forward") == pytest.approx(inside + around, rel=1e-12)
    groups = {op.schedule.operation: op.group for op in collectives(plan, 1) if "layer 1 forward" in op.name}
    assert groups == {"all_to_all": (0, 1, 2, 3), "ring_shift": (1, 5)}


@pytest.mark.parametrize("c", [2, 4, 8])
def test_a_balanced_ring_computes_as_much_in_each_step_on_each_rank(c: int) -> None:
    """Two blocks of (s / 2c)^2 scores in each of c steps; contiguous, rank r computes (2r + 1)/c of the mean."""
    s, b, a, d = 64 * c, 2, MODEL.num_heads, MODEL.head_dim
    whole = 4 * b * a * d * s * s / 2
    shares = []
    for place in range(c):
        for balanced in (True, False):
            batch = Batch(b, s, cut=ModelPartition(context=Context(ring=c, balanced=balanced, place=place)))
            (attention,) = (op for op in layer_operations(MODEL, batch) if op.name == "attention")
            if balanced:
                assert [kernel.flops for kernel in attention.forward] == [whole / c / c] * c
            else:
                shares.append(sum(kernel.flops for kernel in attention.forward) / (whole / c))
    assert shares == [(2 * place + 1) / c for place in range(c)]


def test_each_further_step_of_a_ring_merges_its_results_in_float32() -> None:
    """Forward: the output, h s d elements: 4 + 2 bytes read, 4 written, and two log-sum-exps of 4 bytes for each row
    and head, of which one remains. Backward: also the gradients of keys and values. The first results are cast to
    float32, the last sums back.
    """
    own = Attention("attention", 1, 8, 2, 64, 16, causal=True, backward=False)
    first, second, third = attention_kernels(own, Context(ring=3))
    assert own.merging() == ()
    outputs, rows, keys = 8 * 64 * 16, 4 * 8 * 64, 32 * 2 * 16
    assert moved(first) == {"widening": [(2 * outputs, 4 * outputs)]}
    merging = {
        "step widening": [(2 * outputs, 4 * outputs)],
        "sum": [(8 * outputs, 4 * outputs)],
        "log-sum-exps": [(2 * rows, rows)],
    }
    assert moved(second) == merging
    assert moved(third) == merging | {"narrowing": [(4 * outputs, 2 * outputs)]}
    first, second, third = (replace(kernel, backward=True) for kernel in (first, second, third))
    # The first step has the gradients of all 64 keys, further steps of half of them; 64 return home.
    each = (outputs, 2 * keys, 2 * keys)
    assert moved(first) == {"widening": [(2 * one, 4 * one) for one in each]}
    assert moved(second) == {"sum": [(6 * (outputs + 2 * keys), 4 * (outputs + 2 * keys))]}
    assert moved(third)["narrowing"] == [(4 * one, 2 * one) for one in each]


def test_transformer_engine_merges_a_ring_in_two_bytes() -> None:
    """The first output is multiplied in place of a cast, 2 + 2 bytes; later outputs are added, 4 read and 2 written."""
    own = Attention("attention", 1, 8, 2, 64, 16, causal=True, backward=False)
    first, _, last = attention_kernels(own, Context(ring=3))
    outputs, rows, keys = 8 * 64 * 16, 4 * 8 * 64, 32 * 2 * 16
    assert moved(first, half=True) == {"first results": [(2 * outputs, 2 * outputs)]}
    assert moved(last, half=True) == {"sum": [(4 * outputs, 2 * outputs)], "log-sum-exps": [(2 * rows, rows)]}
    back = moved(replace(last, backward=True), half=True)
    assert back == {"sum": [(4 * (outputs + 2 * keys), 2 * (outputs + 2 * keys))]}
    assert load_framework("megatron_core").kernels.half_rings
    assert not load_framework("torchtitan").kernels.half_rings


def moved(kernel: Attention, *, half: bool = False) -> dict[str, list[tuple[float, float]]]:
    """Bytes read and written by the kernels that merge a step, by name [B]."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in kernel.merging(half=half):
        found.setdefault(one.name.removeprefix("attention "), []).append((one.read, one.written))
    return found


def test_a_contiguous_ring_and_one_without_a_mask_merge_every_query_and_gathered_keys_nothing() -> None:
    own = Attention("attention", 1, 8, 2, 64, 16, causal=True, backward=False)
    outputs = 8 * 64 * 16
    for context, kernel in (
        (Context(ring=2, balanced=False, place=1), own),
        (Context(ring=2), replace(own, causal=False)),
    ):
        _, last = attention_kernels(kernel, context)
        assert moved(last)["sum"] == [(8 * outputs, 4 * outputs)]
    # The first rank of a contiguous ring casts its results twice, and merges nothing.
    (alone,) = attention_kernels(own, Context(ring=2, balanced=False, place=0))
    assert set(moved(alone)) == {"widening", "narrowing"}
    assert all(kernel.merging() == () for kernel in attention_kernels(own, Context(ring=2, gathers=True)))


@pytest.mark.parametrize(
    ("gpu", "alone", "contiguous", "balanced"),
    [("h100_sxm", 591.5, 38.5, 63.0), ("a100_sxm_80gb", 373.4, 24.0, 38.2)],
)
def test_attention_on_a_ring_takes_what_was_measured(
    gpu: str, alone: float, contiguous: float, balanced: float
) -> None:
    """zhuzilin/ring-flash-attention 899628238f, README.md, lines 80 to 98: forward passes per second on 8 H800 and on 8
    A100, 8,192 tokens a GPU, 32 heads, 8 key heads, batch API. The last rank of a contiguous ring decides. Sums are in
    float32, by kernels that TorchScript has merged.
    """
    own = Attention("attention", 1, 32, 8, 8192, 128, causal=True, backward=False)
    # The kernels ran by themselves, not beside matmuls.
    framework = load_framework("nemo").with_constants(half_rings=False, sustained={})
    step = bare_step(load_model("llama3_8b", 8192), 8192, 1, framework=framework)
    timer = KernelTimer(load_gpu(gpu), step)
    assert timer.cost([own]).alone == pytest.approx(1 / alone, rel=0.03)
    for balances, measured in ((False, contiguous), (True, balanced)):
        kernels = attention_kernels(own, Context(ring=8, balanced=balances, place=7))
        assert timer.cost(kernels).alone == pytest.approx(1 / measured, rel=0.08)


def test_a_rank_keeps_its_part_of_the_sequence_and_gradients_are_summed_over_all_parts() -> None:
    whole, cut = (
        saved_bytes(layer_operations(MODEL, Batch(2, 64, cut=ModelPartition(context=c))))
        for c in (Context(), Context(ring=4))
    )
    assert cut == whole / 4
    plan = planned(8, parallelism=Parallelism(cp=4), strategy="zero1")
    scattered = {op.group for op in collectives(plan, 0) if op.name.startswith("scatter bucket")}
    assert scattered == {tuple(range(8))}
    assert plan.tokens == 2 * 2 * 32


EXPERTS = replace(
    GROUPED, num_kv_heads=8, num_experts=16, active_experts=2, shared_experts=1, dense_layers=1, dense_ffn_size=512
)


def expert_bytes(plan: StepPlan, layer: int) -> dict[str, float]:
    """Bytes that a rank sends over its expert-parallel group for a layer, by operation, both passes together."""
    found: Counter[str] = Counter()
    for op in collectives(plan, 0):
        if op.stream == "communication experts" and op.name.startswith(f"layer {layer} "):
            n = len(op.group)
            found[op.schedule.operation] += (n - 1) / n * op.nbytes
    return dict(found)


@pytest.mark.parametrize("e", [2, 4, 8])
def test_tokens_go_to_their_experts_and_back_in_both_passes(e: int) -> None:
    """4 (e-1)/e T k h w a layer; all tokens to all 4 (e-1) T h w; one copy a rank, for as many as a token needs."""
    t, h, w = 2 * 32, EXPERTS.hidden_size, 2
    for keys, expected in (
        ({}, {"all_to_all": 4 * (e - 1) / e * t * 2 * h * w}),
        ({"capacity": 1.25}, {"all_to_all": 4 * (e - 1) / e * 16 * 10 * h * w}),
        ({"dtype": "float8_e4m3fn"}, {"all_to_all": 3 * (e - 1) / e * t * 2 * h * w}),
        ({"dispatch": "all_gather"}, dict.fromkeys(("all_gather", "reduce_scatter"), 2 * (e - 1) * t * h * w)),
    ):
        plan = planned(8, EXPERTS, parallelism=Parallelism(ep=e, experts=ExpertsSpec.model_validate(keys)))
        assert expert_bytes(plan, 1) == pytest.approx(expected, rel=1e-12)
        assert expert_bytes(plan, 0) == {}
    # Of 16 experts, 2 chosen: the second is on another rank than the first with (16 - 16/e) / 15.
    copies = round(t * (1 + (16 - 16 / e) / 15))
    plan = planned(8, EXPERTS, parallelism=Parallelism(ep=e, experts=ExpertsSpec(dispatch="deduplicated")))
    assert expert_bytes(plan, 1) == pytest.approx({"all_to_all": 4 * (e - 1) / e * copies * h * w}, rel=1e-12)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("e", [2, 4])
def test_experts_are_reduced_over_ranks_that_have_the_same_and_all_else_over_all(strategy: str, e: int) -> None:
    """8 data-parallel ranks: experts over 8 / e, the rest over 8; elements are those of the model, each once."""
    plan = planned(8, EXPERTS, strategy=strategy, parallelism=Parallelism(ep=e))
    reduced: Counter[tuple[int, ...]] = Counter()
    for op in collectives(plan, 1):
        if "bucket" in op.name or op.name.startswith("scatter"):
            reduced[op.group] += op.elements
    whole = sum(module.elements for module in modules(EXPERTS))
    cut = ModelPartition(experts=ExpertPartition(e))
    own = sum(module.elements for module in modules(EXPERTS, cut))
    experts = (whole - own) // (e - 1)
    assert reduced == {tuple(range(8)): own - experts, tuple(range(1, 8, e)): experts}


def test_what_ranks_hold_of_experts_sums_to_the_model() -> None:
    plan = planned(8, EXPERTS, parallelism=Parallelism(ep=8))
    held = [next(op.nbytes for op in ops if op.name == "parameters") for ops in plan.program.ranks]  # type: ignore[union-attr]
    whole, own = (sum(m.elements for m in modules(EXPERTS, ModelPartition(experts=ExpertPartition(n)))) for n in (1, 8))
    dense = (8 * own - whole) // 7
    assert sum(held) == 2 * (8 * dense + (whole - dense))


@pytest.mark.parametrize(("t", "e", "etp"), [(2, 1, 2), (2, 4, 2), (4, 2, 2), (2, 4, 1), (2, 1, 1), (4, 2, 1)])
def test_experts_of_ranks_that_cut_matrices(t: int, e: int, etp: int) -> None:
    """Each rank hands on the tokens of its part of the sequence, and the ranks that cut an expert gather theirs.

    Bytes of a rank: 4 (e-1)/e T k h w for T = b s / t, and 4 (etp-1)/etp of the T k h etp w that its expert ranks have.
    Gradients of experts are summed over 8 / (e etp) ranks, of norms and routers over the ranks that cut sequences.
    """
    model = replace(EXPERTS, mlp_bias=False, output_bias=False)
    plan = planned(8, model, parallelism=Parallelism(tp=t, ep=e, etp=etp))
    tokens, h, w = 2 * 32 // t, EXPERTS.hidden_size, 2
    there = {"all_to_all": 4 * (e - 1) / e * tokens * 2 * h * w} if e > 1 else {}
    assert expert_bytes(plan, 1) == pytest.approx(there, rel=1e-12)
    gathered: Counter[str] = Counter()
    for op in collectives(plan, 0):
        if op.stream == "communication expert tensor" and op.name.startswith("layer 1 "):
            gathered[op.schedule.operation] += op.nbytes
    each = 2 * tokens * 2 * etp * h * w
    assert gathered == ({"all_gather": each, "reduce_scatter": each} if etp > 1 else {})
    model_cut = ModelPartition(t, True, experts=ExpertPartition(e, tensor=etp))
    layer = layer_parameters(model, model_cut)
    apart = sum(one.elements for one in layer if one.name.startswith("expert "))
    whole = sum(one.elements for one in layer_parameters(model) if one.name.startswith("expert "))
    assert apart * e * etp == whole
    summed = {op.group for op in collectives(plan, 0) if "bucket" in op.name}
    sharing = tuple(range(0, 8, e * etp))
    assert summed == ({tuple(range(0, 8, t))} | ({sharing} if len(sharing) > 1 else set()))
    (partial,) = (op for op in collectives(plan, 0) if op.name.startswith("sum partial"))
    norms = 2 * model.num_layers + 1
    routers = (model.num_layers - 1) * model.num_experts
    assert partial.elements == (norms + routers) * h
    assert partial.group == tuple(range(t))


def test_latent_attention_gathers_short_vectors() -> None:
    """Megatron-LM's: down-projections of own tokens; of T tokens in all the ranks gather q + kv + rope numbers."""
    latent = LatentAttention(64, 32, 16, 8, 16)
    model = replace(GROUPED, num_kv_heads=8, latent=latent)
    plan = planned(8, model, parallelism=Parallelism(tp=4))
    names = ("query up input", "kv up input", "keys' positions")
    forward = {
        name: op.elements
        for op in collectives(plan, 0)
        for name in names
        if op.name.startswith("layer 0 forward") and name in op.name
    }
    tokens = 2 * 32
    assert forward == {names[0]: tokens * 64, names[1]: tokens * 32, names[2]: tokens * 8}
    whole, own = (
        {one.name: one.elements for one in layer_parameters(model, cut)}
        for cut in (ModelPartition(), ModelPartition(4, sequence=True))
    )
    ratio = {name: whole[name] // own[name] for name in whole}
    assert {name for name, times in ratio.items() if times == 1} == {
        "norm1.weight", "norm2.weight", "query down.weight", "query norm.weight", "kv down.weight", "kv norm.weight",
        "mlp.down.bias",
    }  # fmt: skip
    assert set(ratio.values()) == {1, 4}


def test_keys_of_latent_attention_go_round_as_heads_have_them() -> None:
    """Behind the matrices that widen them: heads times (nope + rope + value) numbers a token."""
    latent = LatentAttention(64, 32, 16, 8, 16)
    plan = planned(8, replace(GROUPED, num_kv_heads=8, latent=latent), parallelism=Parallelism(cp=4), attention="flash")
    shifts = [op for op in collectives(plan, 0) if op.name.startswith("layer 1 forward") and "keys" in op.name]
    assert [op.elements for op in shifts] == [2 * 32 * 8 * (16 + 8 + 16)] * 3
    handed = planned(8, plan.step.model, parallelism=Parallelism(cp=4, context="ulysses"), attention="flash")
    names = ("heads for tokens", "tokens for heads")
    there, back = (next(op for op in collectives(handed, 0) if name in op.name) for name in names)
    tokens = 2 * 32 // 4
    assert (there.elements, back.elements) == (tokens * 8 * (24 + 24 + 16), tokens * 8 * 16)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_popular_experts_make_one_rank_the_fullest(ranks: int) -> None:
    """By turns: the fullest rank has experts 1, 1 + e, 1 + 2 e, ...; each drawn in proportion to n^-s."""
    shares = np.arange(1, 17) ** -0.3
    expected = ranks * shares[::ranks].sum() / shares.sum()
    experts = ExpertPartition(ranks, exchange=ExpertsSpec(imbalance={"zipf": 0.3}))
    assert experts.fullest(EXPERTS) == pytest.approx(expected, rel=1e-12)


def test_all_wait_for_the_fullest_rank() -> None:
    even, full = (
        planned(8, EXPERTS, parallelism=Parallelism(ep=4, experts=ExpertsSpec(imbalance=factor)))
        for factor in (1.0, 1.5)
    )
    flops = [
        sum(
            op.flops
            for op in plan.program.ranks[0]
            if isinstance(op, Compute) and op.name.startswith("layer 1 forward")
        )
        for plan in (even, full)
    ]
    t, h, f = 2 * 32, EXPERTS.hidden_size, EXPERTS.ffn_size
    # Two of sixteen experts for a token, three matrices of h x f each (gated), two FLOP a number.
    assert flops[1] - flops[0] == 0.5 * 2 * t * 2 * 3 * h * f


def test_a_stage_hands_its_gradient_on_before_it_copies_those_of_its_parameters() -> None:
    """What the stage before waits for is the input's gradient: the backward kernels of the stage's first unit."""
    for strategy in ("ddp", "zero1", "zero3"):
        framework = BARE.with_constants(parameter_bytes=36.0)
        made = step(strategy, gradient_accumulation_steps=4, parallelism=Parallelism(pp=2), framework=framework)
        plan = plan_step(build("star_100g", 4), made)
        first, second = plan.program.lists.lists
        sends = [op for op in second if op.name.startswith("gradients to stage 0")]
        assert len(sends) == 4
        assert [op.after for op in sends] == [(f"layer 2 backward {micro}",) for micro in range(4)]
        assert any("accumulate" in op.name or "copies" in op.name for op in second)
        assert {op.name for op in first} >= {op.name for op in sends}


def test_a_report_tells_what_each_dimension_of_parallelism_costs() -> None:
    """All that is sent for a dimension, hidden or not, and what of it nothing hides; parts add up to the whole."""
    sizes = Parallelism(tp=2, pp=2, cp=2, ep=2)
    experts = replace(MODEL, num_experts=4, active_experts=2)
    for model, cut, dimensions in (
        (MODEL, sizes.replaced(ep=1), {"tp", "pp", "cp", "dp"}),
        (experts, sizes.replaced(tp=1, cp=1), {"pp", "ep", "dp"}),
    ):
        made = play(step("zero1", model, gradient_accumulation_steps=4, attention="flash", parallelism=cut), 16)
        report = made.report
        assert set(report.comm_time_by_dimension) == dimensions == set(report.exposed_comm_time_by_dimension)
        for dimension, exposed in report.exposed_comm_time_by_dimension.items():
            assert 0 <= exposed <= report.comm_time_by_dimension[dimension] * (1 + 1e-12)
        told = sum(report.exposed_comm_time_by_dimension.values())
        assert told == pytest.approx(report.exposed_comm_time_s, rel=1e-9)


def test_pieces_of_a_ring_exchange_are_awaited_one_by_one() -> None:
    """Four ranks, a matmul in four pieces behind three other kernels.

    Gathered pieces: the rank's own one is there, and each of the next three waits for the shift before it. Made pieces:
    each goes on with the next kernel, and whoever comes behind the matmul waits for all of them.
    """
    gather, scatter = (
        Communication(name, operation, 1000, False, 3, 3)
        for name, operation in (("x", "all_gather"), ("y", "reduce_scatter"))
    )
    assert [(one.before, one.awaited) for one in _shifts(gather, 3, 4)] == [(3, 4), (4, 5), (5, 6)]
    assert [(one.before, one.awaited) for one in _shifts(scatter, 3, 4)] == [(4, 7), (5, 7), (6, 7)]


def test_keys_that_go_round_are_awaited_one_step_later() -> None:
    """Three ranks: while step s is computed the keys of step s + 1 are on their way, forward and again backward."""
    shifts = list(_round(500, Context(ring=3), 3))
    forward = [(one.name, one.before, one.awaited) for one in shifts if not one.backward]
    assert forward == [("keys 1", 0, 1), ("keys 2", 1, 2)]
    backward = {one.name: (one.before, one.awaited) for one in shifts if one.backward}
    assert backward == {
        "keys again 1": (0, 1), "keys again 2": (1, 2),
        "keys' gradients 1": (1, 2), "keys' gradients 2": (2, 3), "keys' gradients 3": (3, 3),
    }  # fmt: skip
