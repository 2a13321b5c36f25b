"""Exchanges beside other micro-batches, hosts that wait for counts, and what Transformer Engine launches and saves.

Expected values are counted by hand, or come from the same step without the mechanism.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from simulator.basics import dtypes
from simulator.calibration.training_runs.playing import frameworks, play_rows
from simulator.calibration.training_runs.recipe_rows import measured_recipes
from simulator.cluster.gpu_file import load_gpu
from simulator.engine.play import play
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.layer import layer_operations
from simulator.model.operation import Batch
from simulator.model.partition import WHOLE, ModelPartition, around_columns
from simulator.records.timeline import Timeline
from simulator.scenario.build_cluster import to_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step import checkpointing
from simulator.step.framework import HostTime
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.framework_operations import with_narrow_inputs, with_weighted_activations
from simulator.step.pass_pieces import backward_pieces, forward_pieces
from simulator.step.pipelines.schedule import SCHEDULES, PipelineShape, Work
from simulator.step.plan import plan_step
from simulator.step.spec import bare_step
from simulator.step.units import units
from simulator.testing import schedule_laws
from tests.engines import simulated_alike
from tests.theory.test_model_parallel import EXPERTS

MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 512, "vocab_size": 512, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def scenario(experts: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    parallelism = {"ep": 4, "experts": experts or {}} | keys.pop("parallelism", {})
    training = {
        "model": MIXTRAL, "seq_len": 1024, "gradient_accumulation_steps": 4, "sharding": "zero1", "framework": "bare",
        "collectives": "played", "parallelism": parallelism,
    }  # fmt: skip
    ranks = 4 * parallelism.get("pp", 1)
    return {
        "name": "experts",
        "cluster": {"topology": "dgx_h100", "world_size": ranks},
        "training": training | keys,
    }


def planned(data: dict[str, Any]) -> tuple[Any, Any]:
    loaded = load_scenario(data)
    assert loaded.training is not None
    cluster = to_cluster(loaded.cluster, loaded.base)
    return plan_step(cluster, to_step(loaded.training, loaded.cluster.world_size)), cluster


def timeline(data: dict[str, Any]) -> Timeline:
    plan, cluster = planned(data)
    return play("auto", plan.program, cluster, limit_memory=False, keep=(0,))


@pytest.mark.parametrize("shape", [(2, 4, 2, 2), (2, 6, 3, 2), (4, 8, 2, 4), (4, 12, 3, 4), (1, 5, 1, 1)])
def test_paired_passes_run_once_and_never_wait_in_a_circle(shape: tuple[int, int, int, int]) -> None:
    schedule = SCHEDULES.find("interleaved")
    paired = PipelineShape(*shape, paired=True)
    schedule_laws.has_every_pass_once(schedule, paired)
    schedule_laws.can_be_played(schedule, paired)
    for sequence in schedule.order(paired):
        done: set[tuple[Work, int, int]] = set()
        pairs = 0
        for slot in sequence:
            for entry in slot:
                # A pair's backward pass needs a forward pass of an earlier slot.
                assert entry.work is not Work.BACKWARD or (Work.FORWARD, entry.stage, entry.micro) in done
            done |= {(entry.work, entry.stage, entry.micro) for entry in slot}
            pairs += len(slot) == 2
        # Every forward pass after the warm-up has a partner.
        alone = sum(len(slot) == 1 and slot[0].work is Work.FORWARD for slot in sequence)
        assert pairs + alone == shape[1] * shape[2]


@pytest.mark.parametrize("parallelism", [{}, {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}])
def test_overlap_hides_exchanges_and_changes_no_work(parallelism: dict[str, Any]) -> None:
    plain, beside = (timeline(scenario({"overlap": yes}, parallelism=parallelism)) for yes in (False, True))

    def work(of: Timeline) -> Counter[str]:
        return Counter(span.name for span in of.spans if span.rank == 0)

    assert work(plain) == work(beside)
    assert beside.end < plain.end
    sent = [Counter((log.collective, float(log.nbytes.sum())) for log in of.logs) for of in (plain, beside)]
    assert sent[0] == sent[1]


def test_both_engines_agree_on_overlap() -> None:
    for dispatch in ("all_to_all", "deduplicated"):
        parallelism = {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}
        data = scenario({"overlap": True, "dispatch": dispatch}, framework="nemo", parallelism=parallelism)
        plan, cluster = planned(data)
        simulated_alike(plan.program, cluster)


def test_a_host_launches_the_exchange_after_the_counts_are_known() -> None:
    spans = {span.name: span for span in timeline(scenario(framework="nemo")).spans if span.rank == 0}
    checked = 0
    for name, span in spans.items():
        if name.startswith("issue layer") and name.endswith("tokens to experts") and "forward" in name:
            layer = name.removeprefix("issue ").partition(":")[0]
            # The kernels before the exchange are the pass's first part.
            assert span.start >= spans[f"{layer}, part 1"].end
            checked += 1
    assert checked == 16


def test_each_expert_and_each_narrow_matmul_takes_the_host_more_time() -> None:
    model, batch = EXPERTS, Batch(1, 128)
    host = {"up": HostTime(2, 3), "expert": HostTime(1, 2), "narrow matmul": HostTime(0.5, 0.25)}
    operations = [op for op in layer_operations(model, batch) if op.name == "up"]
    for precision, more in (("bfloat16", (0.0, 0.0)), ("float8_e4m3fn", (0.5, 0.25))):
        step = bare_step(model, 128, 1)
        step = step.with_keys(precision=step.precision.replaced(matmul=precision))
        timer = KernelTimer(
            load_gpu("h100_sxm"), replace(step, framework=step.framework.with_constants(issue=1.0, parts=host))
        )
        found = forward_pieces(timer, operations).cost.host, backward_pieces(timer, operations).cost.host
        assert found == pytest.approx((2 + model.num_experts + more[0], 3 + 2 * model.num_experts + more[1]))


def test_biases_of_experts_are_weighted_expert_by_expert() -> None:
    model = replace(EXPERTS, mlp_bias=True)
    batch = Batch(1, 128)
    operations = {op.name: op for op in with_weighted_activations(layer_operations(model, batch), batch)}
    down, biases = operations["down"].forward[0], operations["expert bias"]
    assert isinstance(down, Matmul)
    outputs = down.batch * down.m * down.n
    # Forward: weights times bias 4, sum 2 + 4 read and 4 written, join 4 + 4, cast 4 + 2 bytes for each output.
    assert sum(kernel.nbytes(2) for kernel in biases.forward) == (4 + 10 + 8 + 6) * outputs
    # Backward: widening 2 + 4, cast 4 + 2, two products 4 + 4 each, two sums of 4 read.
    assert sum(kernel.nbytes(2) for kernel in biases.backward) == (6 + 6 + 8 + 4 + 8 + 4) * outputs
    assert len(biases.forward) == 2 * model.num_experts + 2
    assert not any(isinstance(kernel, Elementwise) for kernel in operations["down"].backward)
    plain = {
        op.name for op in with_weighted_activations(layer_operations(replace(model, mlp_bias=False), batch), batch)
    }
    assert "expert bias" not in plain


@pytest.mark.parametrize(("dtype", "share"), [("float8_e4m3fn", 1 / 2), ("float4_e2m1fn", 9 / 32)])
@pytest.mark.parametrize("cut", [WHOLE, ModelPartition(tensor=4, sequence=True)])
def test_inputs_of_narrow_matmuls_are_saved_narrow(cut: ModelPartition, dtype: str, share: float) -> None:
    batch = Batch(1, 128, cut=cut)
    operations = layer_operations(replace(EXPERTS, num_experts=0, active_experts=0, dense_layers=0), batch)
    for before, after in zip(operations, with_narrow_inputs(operations, batch, dtype), strict=True):
        wide, narrow = (sum(tensor.nbytes for tensor in op.saved) for op in (before, after))
        matmul = before.forward[0]
        assert narrow == (wide * share if isinstance(matmul, Matmul) else wide)


def test_four_bits_are_gathered_as_four_bits_with_their_scales() -> None:
    wide, narrow = (
        around_columns("up", 4096, ModelPartition(tensor=2, sequence=True, gather_dtype=dtype), 1, 2)[0]
        for dtype in ("bfloat16", "float4_e2m1fn")
    )
    assert narrow.dtype is not None
    sizes = wide.elements * dtypes.find("bfloat16").itemsize, narrow.elements * dtypes.find(narrow.dtype).itemsize
    # 4.5 bits of 16.
    assert sizes[1] / sizes[0] == 9 / 32


def test_recipes_of_megatron_bridge_are_near_their_measured_steps() -> None:
    rows = [row for row in measured_recipes() if row.gpus <= 64 and "nemotron" not in row.model][::6]
    errors = [abs(one.time_error) for one in play_rows(rows, frameworks(), jobs=1)]
    assert len(rows) >= 7
    assert median(errors) < 0.16


def test_a_capacity_needs_no_counts() -> None:
    """Every expert computes as many rows as it reserves: the host launches without a wait."""
    stops = []
    for capacity in ("none", 1.0):
        loaded = load_scenario(scenario({"capacity": capacity}, framework="nemo"))
        assert loaded.training is not None
        cluster = to_cluster(loaded.cluster, loaded.base)
        parts = units(to_step(loaded.training, 4), cluster.gpus[0])
        stops.append(sum(piece.synchronizes for unit in parts for piece in unit.forward.pieces))
    assert stops == [4, 0]


def test_each_expert_is_cast_by_a_kernel_of_its_own() -> None:
    """8 experts: seven more launches than one cast of all tokens; bytes are the same."""
    step = bare_step(EXPERTS, 128, 1)
    step = step.with_keys(precision=step.precision.replaced(matmul="float8_e4m3fn"))
    apart, together = (
        KernelTimer(load_gpu("b200"), replace(step, framework=step.framework.with_constants(casts_once=True)))
        .cost([Matmul("up", 4096, 4096, 4096, batch, kind=kind)])
        .alone
        for batch, kind in ((8, "grouped"), (1, "grouped"))
    )
    wide = [
        KernelTimer(load_gpu("b200"), step.with_keys(precision=step.precision.replaced(params="float8_e4m3fn")))
        .cost([Matmul("up", 4096, 4096, 4096, batch, kind="grouped")])
        .alone
        for batch in (8, 1)
    ]
    assert apart - wide[0] == pytest.approx(8 * (together - wide[1]))


@pytest.mark.parametrize(("modules", "kept"), [("core_attn", True), ("layernorm", False)])
def test_a_recomputed_module_keeps_the_narrow_copy_that_the_next_matmul_reads(modules: str, kept: bool) -> None:
    """Attention's output stays for the matmul behind it, in eight bits too; a norm's output is made again."""
    batch = Batch(1, 128)
    operations = layer_operations(replace(EXPERTS, num_experts=0, active_experts=0, dense_layers=0), batch)
    narrow = with_narrow_inputs(operations, batch, "float8_e4m3fn")
    found = checkpointing.kept(modules, 0, EXPERTS, narrow, 0)
    copy = next(
        tensor.nbytes
        for op in narrow
        for tensor in op.saved
        if tensor.name == ("attention output in 8 bits" if kept else "norm1 output in 8 bits")
    )
    freed = {
        tensor.name: tensor for op in narrow for tensor in op.saved if tensor.source in checkpointing.MODULES[modules]
    }
    every = sum(tensor.nbytes for tensor in freed.values())
    assert copy > 0
    wide = next((tensor.nbytes for name, tensor in freed.items() if name == "attention output"), 0)
    assert found.recomputed == every - (copy + wide if kept else 0)
