"""Steps with documents of unequal lengths against steps with equal ones, sums by hand, and ranks played alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import simulate
from simulator.cluster.cluster import Cluster
from simulator.engine import events
from simulator.engine.compiled.engine import execute
from simulator.findings.measured_range import outside_of_measured
from simulator.model.kernel import Attention
from simulator.model.model import training_flops_per_token
from simulator.records.operation import Compute
from simulator.scenario.build_cluster import to_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.kernel_timer import KernelTimer
from simulator.step.lengths import MicroBatch
from simulator.step.plan import StepPlan, plan_step
from simulator.step.spec import TrainingStep
from tests.engines import CLOSE, farthest

LENGTHS = {"distribution": "lognormal", "median": 300, "sigma": 1.0}


def keys(**training: Any) -> dict[str, Any]:
    usual = {
        "model": "gpt2", "seq_len": 1024, "precision": "bf16", "sharding": "zero3", "framework": "bare",
        "gradient_accumulation_steps": 2,
    }  # fmt: skip
    return {
        "name": "documents",
        "cluster": {"topology": "dgx_h100", "world_size": 8},
        "training": usual | training,
    }


def planned(**training: Any) -> tuple[StepPlan, Cluster]:
    scenario = load_scenario(keys(**training))
    cluster = to_cluster(scenario.cluster, scenario.base)
    assert scenario.training is not None
    return plan_step(cluster, to_step(scenario.training, 8)), cluster


_PARALLEL: list[dict[str, int]] = [{}, {"tp": 2}, {"pp": 2}, {"cp": 2}]


@pytest.mark.parametrize(
    ("batching", "parallelism"),
    [
        *(("pad_to_longest", {}), ("bucket", {})),
        *((batching, cut) for batching in ("pad", "pack", "pack_balanced") for cut in _PARALLEL),
    ],
)
def test_documents_of_one_length_are_the_step_without_lengths(batching: str, parallelism: dict[str, int]) -> None:
    plain = simulate(keys(parallelism=parallelism)).report.to_dict()
    same = simulate(keys(parallelism=parallelism, lengths={"histogram": {1024: 1}}, batching=batching)).report.to_dict()
    assert same == plain


def test_attention_within_documents_is_the_sum_of_attention_over_them() -> None:
    packed = Attention("packed", 2, 12, 12, 1024, 64, causal=True, backward=False, documents=(600, 500, 424, 300, 200))
    apart = [replace(packed, batch=1, seq_len=tokens, documents=()) for tokens in packed.documents]
    assert packed.flops == sum(kernel.flops for kernel in apart)
    windowed = replace(packed, window=256)
    assert windowed.flops == sum(replace(kernel, window=256).flops for kernel in apart)


def test_the_flops_of_all_documents_are_conserved() -> None:
    plan, _ = planned(lengths=LENGTHS)
    by_hand = 0.0
    for micro in (micro for rank in plan.step.batches for micro in rank):
        documents = micro.documents or (1024,)
        by_hand += sum(tokens * training_flops_per_token(plan.step.model, tokens) for tokens in documents)
        # Padding is computed, and attends to nothing but itself.
        by_hand += (micro.tokens - sum(documents)) * training_flops_per_token(plan.step.model, 1)
    assert plan.model_flops == pytest.approx(by_hand, rel=1e-12)


def kernels(plan: StepPlan, rank: int) -> dict[str, float]:
    """Return the seconds of each kernel of a rank, with its own work."""
    work = plan.program.work
    return {
        op.name: op.duration * (work[op.work, rank] if op.work >= 0 else 1.0)
        for op in plan.program.ranks[rank]
        if isinstance(op, Compute)
    }


def test_each_ranks_kernels_take_the_time_of_its_own_padded_batch() -> None:
    # Oracle: a step with this length on every rank, planned without any lengths.
    plan, _ = planned(lengths=LENGTHS, batching="pad_to_longest", micro_batch_size=2)
    for rank in (0, 3, 7):
        for number, micro in enumerate(plan.step.batches[rank]):
            alone, _ = planned(seq_len=micro.seq_len, micro_batch_size=2)
            expected = {name: seconds for name, seconds in kernels(alone, rank).items() if name.endswith(f" {number}")}
            own = {name: seconds for name, seconds in kernels(plan, rank).items() if name.endswith(f" {number}")}
            assert own == pytest.approx(expected, rel=1e-9), f"rank {rank}, micro-batch {number} of {micro.seq_len}"


def test_each_ranks_kernels_take_the_time_of_its_own_documents() -> None:
    # Oracle: a step written for this rank's documents alone.
    plan, cluster = planned(lengths=LENGTHS)
    for rank in (0, 5):
        for number, micro in enumerate(plan.step.batches[rank]):
            alone = plan_step(cluster, replace_batches(plan.step, micro))
            assert not alone.program.work.size
            expected = {name: seconds for name, seconds in kernels(alone, rank).items() if name.endswith(f" {number}")}
            own = {name: seconds for name, seconds in kernels(plan, rank).items() if name.endswith(f" {number}")}
            assert own == pytest.approx(expected, rel=1e-9), f"rank {rank}, documents {micro.documents}"


def replace_batches(step: TrainingStep, micro: MicroBatch) -> TrainingStep:
    """Return a step in which every micro-batch of every rank has the documents of one."""
    return replace(step.with_keys(lengths=None), batches=((micro,) * step.accumulation,) * 8)


def test_two_ranks_with_given_documents_by_hand() -> None:
    # Attention alone differs: a rank with one document of 1024 tokens computes twice the scores of two of 512.
    plan, cluster = planned(
        lengths={"histogram": {512: 1, 1024: 1}, "seed": 5}, sharding="ddp", gradient_accumulation_steps=1, model="gpt2"
    )
    micros = [rank[0] for rank in plan.step.batches]
    assert {micro.documents for micro in micros} >= {(), (512, 512)}
    long, short = (next(r for r, m in enumerate(micros) if m.documents == d) for d in ((), (512, 512)))
    timer = KernelTimer(cluster.gpus[0], plan.step)
    attention = Attention("attention", 1, 12, 12, 1024, 64, causal=True, backward=False)
    saved = timer.seconds(attention) - timer.seconds(replace(attention, documents=(512, 512)))
    difference = kernels(plan, long)["layer 3 forward 0"] - kernels(plan, short)["layer 3 forward 0"]
    assert difference == pytest.approx(saved, rel=1e-9)


def test_the_longest_document_decides_when_the_step_ends() -> None:
    report = simulate(keys(lengths=LENGTHS | {"sigma": 1.5}, seq_len=8192, model="llama3_8b")).report
    assert report.even_work_time_s is not None
    assert report.even_work_time_s < report.step_time_s
    even = simulate(keys(seq_len=8192, model="llama3_8b")).report
    # No rank has more to do than one with a document that fills the sequence.
    assert report.step_time_s <= even.step_time_s * (1 + CLOSE)


def test_work_rows_name_only_kernels_that_differ() -> None:
    plan, _ = planned(lengths=LENGTHS)
    rows = plan.program.work
    assert (rows <= 1.0 + 1e-12).all()
    assert (rows != 1.0).any(axis=1).all()
    named = {op.work for op in plan.program.ranks[0] if isinstance(op, Compute)}
    assert named >= set(range(len(rows)))


@pytest.mark.parametrize("seed", range(4))
def test_both_engines_agree_on_unequal_ranks(seed: int) -> None:
    generator = np.random.default_rng(seed)
    batching = str(generator.choice(["pack", "pack_balanced", "pad_to_longest", "bucket"]))
    parallelism = {} if batching in ("pad_to_longest", "bucket") else {str(generator.choice(["tp", "pp", "cp"])): 2}
    plan, cluster = planned(
        lengths=LENGTHS | {"seed": seed}, batching=batching, parallelism=parallelism,
        sharding=str(generator.choice(["ddp", "zero1", "zero2", "zero3"])),
        activation_checkpointing=str(generator.choice(["none", "full", "selective_op"])),
    )  # fmt: skip
    assert plan.program.work.size
    assert farthest(execute(plan.program, cluster), events.execute(plan.program, cluster)) < CLOSE


def test_several_steps_have_other_documents_and_the_report_is_the_median_steps() -> None:
    long = {"seq_len": 8192, "model": "llama3_8b"}
    one_by_one = [
        simulate(keys(lengths=LENGTHS | {"sigma": 1.5, "seed": seed}, **long)).report.step_time_s for seed in (4, 5, 6)
    ]
    report = simulate(keys(lengths=LENGTHS | {"sigma": 1.5, "seed": 4, "steps": 3}, **long)).report
    assert report.step_times_s == tuple(one_by_one)
    assert report.step_time_s == sorted(one_by_one)[1]
    assert len(set(one_by_one)) == 3


def test_no_measured_run_is_said_to_have_such_documents() -> None:
    said = outside_of_measured(load_scenario(keys(lengths=LENGTHS, framework="torchtitan")))
    assert "no measured run has documents of unequal lengths" in said
