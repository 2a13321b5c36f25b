"""An optimizer with the host: bytes over PCIe, time of its parts, memory; worked out by hand from ZeRO-Offload's plan.

Gradients' shards go down, updated parameters come up (Ren et al., USENIX ATC 2021, section 4.1); the host holds master
copy, momentum, variance and gradients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.cluster.build import build
from simulator.engine.events import execute
from simulator.model.parameters import modules, total
from simulator.records.operation import Allocate
from simulator.report.plots.training.breakdown import parts
from simulator.step.framework import Framework
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.plan import plan_step
from simulator.step.precision import Precision
from simulator.step.spec import TrainingStep
from simulator.step.training_spec import Offload
from tests.training import SHARDED, TINY, PlayedStep, play, step

P = total(TINY)
UNITS = [module.elements for module in modules(TINY)]
BF16 = Precision(reduce="bfloat16").resolved()
RATE = 10e9


def away(rate: float) -> Offload:
    """States on a host that reads and writes `rate` bytes a second."""
    return Offload(what="optimizer").replaced(host_rate=rate)


def shard(elements: int, ranks: int) -> int:
    return -(-elements // ranks)


def offloaded(strategy: str, ranks: int, topology: str = "dgx_h100", **facts: Any) -> PlayedStep:
    return play(step(strategy, precision=BF16, offload=away(RATE), **facts), ranks, topology)


def moved(played: PlayedStep, way: str) -> float:
    """Bytes that rank 0 copies one way [B]."""
    return sum(span.nbytes for span in played.timeline.spans if span.rank == 0 and span.kind == f"copy {way}")


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_shards_go_down_every_micro_batch_and_come_up_once(strategy: str, ranks: int, accumulation: int) -> None:
    played = offloaded(strategy, ranks, gradient_accumulation_steps=accumulation)
    own = 2 * sum(shard(elements, ranks) for elements in UNITS)
    assert moved(played, "to host") == accumulation * own
    assert moved(played, "to device") == own


def test_stage_one_copies_after_its_last_micro_batch_alone() -> None:
    played = offloaded("zero1", 4, gradient_accumulation_steps=3, bucket_size=2**40)
    assert moved(played, "to host") == 2 * shard(P, 4)


@pytest.mark.parametrize("strategy", SHARDED)
def test_the_gpu_keeps_working_parameters_alone(strategy: str) -> None:
    ranks = 4
    played = offloaded(strategy, ranks)
    last = dict(played.timeline.memory[-1].by_category)
    own = shard(P, ranks)
    assert {k: v for k, v in last.items() if v} == {"parameters": 2 * (own if strategy == "zero3" else P)}
    # float32 master copy, momentum, variance; bfloat16 gradients.
    assert played.report.host_memory_bytes == own * (12 + 2)


def test_the_host_reads_and_writes_thirty_bytes_a_parameter_at_its_rate() -> None:
    """Norm 2; update: gradient 2, states 12 read; states 12 and bfloat16 parameter 2 written. Eight ranks share it."""
    ranks = 8
    played = offloaded("zero3", ranks)
    spans = [s for s in played.timeline.spans if s.rank == 0 and s.stream == "host"]
    own = [shard(elements, ranks) for elements in UNITS]
    # The norm's bytes are counted over the whole shard, the update's unit by unit.
    expected = (2 * shard(P, ranks) + (2 + 12 + 12 + 2) * sum(own)) * ranks / RATE
    assert sum(s.end - s.start for s in spans) == pytest.approx(expected, rel=1e-9)


def test_a_copy_takes_its_bytes_at_what_pcie_reaches() -> None:
    """63 GB/s of PCIe 5 at 82 % (51 and 52 measured on an H100), and three hops of 0.15 us to the socket."""
    played = offloaded("zero3", 1)
    (span,) = [s for s in played.timeline.spans if s.name == "return layer 1"]
    latency = played.cluster.route(played.cluster.ranks[0], played.cluster.hosts[0]).latency
    assert span.end - span.start == pytest.approx(latency + 2 * UNITS[2] / (0.82 * 63e9), rel=1e-9)


@pytest.mark.parametrize("topology", ["dgx_h100", "dgx_a100"])
@pytest.mark.parametrize("strategy", SHARDED)
def test_closed_forms_equal_what_is_played(strategy: str, topology: str) -> None:
    """On dgx_a100 two GPUs share the way up to a socket, so each copies at half of it."""
    played, formed = (offloaded(strategy, 8, topology, collectives=mode) for mode in ("played", "closed_form"))
    # The norm's sum inside NVSwitches has no closed form.
    assert played.report.played_collectives > 1 >= formed.report.played_collectives
    assert formed.report.step_time_s == pytest.approx(played.report.step_time_s, rel=1e-9)


def test_copies_that_share_a_slot_with_the_network_are_played() -> None:
    """Cards hang on the same PCIe switches, so between nodes nothing is taken by its closed form."""
    assert offloaded("zero3", 16, collectives="auto").report.closed_form_collectives == 0
    assert offloaded("zero3", 8, collectives="auto").report.closed_form_collectives > 0


@pytest.mark.parametrize(
    ("made", "kinds"),
    [
        (step("zero3", offload=away(RATE)), {"host", "copy to host", "copy to device"}),
        (step("parameter_server", servers=2), {"communication server"}),
    ],
)
def test_a_slow_gpu_slows_neither_its_host_nor_copies_nor_servers(made: TrainingStep, kinds: set[str]) -> None:
    took = []
    for stragglers in ({}, {0: 0.5}):
        cluster = build("star_100g", 4, servers=2, stragglers=stragglers)
        spans = execute(plan_step(cluster, made).program, cluster).spans
        took.append({s.name: s.end - s.start for s in spans if s.rank == 0 and s.stream in kinds})
    assert took[0]
    assert took[1] == pytest.approx(took[0], rel=1e-9)


def test_gradients_leave_while_the_backward_pass_goes_on() -> None:
    played = offloaded("zero3", 4)
    spans = {s.name.removesuffix(" (own 0)"): s for s in played.timeline.spans if s.rank == 0}
    assert spans["hand over layer 3 0"].start < spans["layer 0 backward 0"].end
    # Parameters come back while others are still updated.
    assert spans["return layer 0"].start < spans["update layer 3"].end


def test_what_the_host_adds_beside_the_passes_takes_nothing_from_them_in_the_breakdown() -> None:
    """A host that is slower than the passes adds up gradients through all of the second micro-batch."""
    slow = step(
        "zero3",
        precision=BF16,
        offload=away(1e7),
        gradient_accumulation_steps=2,
        activation_checkpointing="full",
    )
    played = play(slow, 4, "dgx_h100")
    passes = sum(
        span.end - span.start
        for span in played.timeline.spans
        if span.rank == 0 and span.stream == "compute" and span.kind != "recompute"
    )
    bars = parts(played.report.to_dict())
    assert bars["forward and backward"] == pytest.approx(passes, rel=1e-9)
    assert sum(bars.values()) == pytest.approx(played.report.step_time_s, rel=1e-9)


@pytest.mark.parametrize(("sync", "copies"), [("every", 2), ("shard", 1), ("last", 1)])
def test_what_the_host_updates_with_is_summed_over_all_copies_of_the_states(sync: str, copies: int) -> None:
    """The host adds up micro-batches, but only GPUs can sum over copies: nothing leaves before that is done."""
    played = offloaded("zero3", 8, shard_size=4, gradient_sync=sync, gradient_accumulation_steps=2)
    spans = {s.name.rpartition(" (")[0]: s for s in played.timeline.spans if s.rank == 0}
    handed = [name for name in spans if name.startswith("hand over")]
    assert len(handed) == copies * len(UNITS)
    for name in handed:
        unit, micro = name.removeprefix("hand over ").rsplit(" ", 1)
        unit = unit if unit.startswith("layer") else "root"  # embedding and head are summed together
        assert spans[name].start >= spans[f"sum {unit} over copies {micro}"].end
    own = 2 * sum(shard(elements, 4) for elements in UNITS)
    assert moved(played, "to host") == copies * own
    held = dict(played.timeline.memory[-1].by_category)
    assert not held.get("gradients")


def split(fraction: float, *, keeps_master: bool, strategy: str = "zero1") -> PlayedStep:
    """Four ranks whose host updates a fraction of the parameters, in mixed precision."""
    framework = Framework().with_constants(keeps_master=keeps_master)
    keys = away(RATE).replaced(fraction=fraction)
    return play(step(strategy, precision=BF16, framework=framework, offload=keys), 4, "dgx_h100")


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
@pytest.mark.parametrize(("fraction", "keeps_master"), [(0.25, False), (0.25, True), (1.0, True)])
def test_the_gpu_keeps_the_states_that_the_host_does_not_update(
    fraction: float, keeps_master: bool, strategy: str
) -> None:
    """Adam: 8 bytes of moments, 4 of master copy for each parameter; ZeRO-3 has no working copy beside the master."""
    played = split(fraction, keeps_master=keeps_master, strategy=strategy)
    held = dict(played.timeline.memory[-1].by_category)
    # Without padding, which the shards of single units have.
    own = held["parameters"] if strategy == "zero3" else P / 4
    master = 4 if keeps_master else 4 * (1 - fraction)
    working = 0 if keeps_master else 2 * fraction
    if strategy == "zero3":
        own = own / (master + working)
    each = 8 * (1 - fraction) + (0 if strategy == "zero3" else master)
    assert held.get("optimizer", 0) == pytest.approx(each * own, abs=2 * len(UNITS) * 8)
    # Master copy, moments and gradients of the host's part
    assert played.report.host_memory_bytes == pytest.approx(fraction * (12 + 2) * own, abs=2 * len(UNITS) * 14)


@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_a_part_of_the_update_waits_for_the_norm_and_comes_back_in_float32(fraction: float) -> None:
    """The host reads gradient (2), master and moments (12) and writes the latter; the GPU makes the working copy."""
    played = split(fraction, keeps_master=True)
    spans = {s.name.partition(" (")[0]: s for s in played.timeline.spans if s.rank == 0}
    norm = spans["sum gradient norm"]
    assert all(s.start >= norm.end for name, s in spans.items() if name.startswith("hand over"))
    parts_of_units = [round(fraction * shard(elements, 4)) for elements in UNITS]
    assert moved(played, "to host") == 2 * sum(parts_of_units)
    assert moved(played, "to device") == 4 * sum(parts_of_units)
    host = sum(s.end - s.start for s in spans.values() if s.stream == "host")
    assert host == pytest.approx((2 + 12 + 12) * sum(parts_of_units) * 4 / RATE, rel=1e-9)
    assert ("optimizer step" in spans) == (fraction < 1)


@pytest.mark.parametrize("precision", [BF16, Precision(params="float32").resolved()], ids=["bf16", "fp32"])
@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_half_an_update_on_the_gpu_takes_half_of_its_time_and_temporaries(
    precision: Precision, implementation: Any
) -> None:
    """Without working copies, what the host returns needs no cast."""
    optimizer = replace(OPTIMIZERS.find("adam"), implementation=implementation)
    facts: dict[str, Any] = {"precision": precision, "optimizer": optimizer}
    whole = play(step("zero1", **facts), 4, "dgx_h100")
    half = play(step("zero1", offload=away(RATE).replaced(fraction=0.5), **facts), 4, "dgx_h100")
    spans = [
        {s.name: s.end - s.start for s in played.timeline.spans if s.rank == 0 and s.stream == "compute"}
        for played in (whole, half)
    ]
    assert spans[1]["optimizer step"] == pytest.approx(spans[0]["optimizer step"] / 2, rel=1e-9)
    assert ("cast parameters" in spans[1]) == (precision is BF16)
    temporaries = [
        sum(op.nbytes for op in played.plan.program.ranks[0] if isinstance(op, Allocate) and "temporar" in op.name)
        for played in (whole, half)
    ]
    assert temporaries[1] == pytest.approx(temporaries[0] / 2, abs=1)
    assert (temporaries[0] > 0) == (implementation == "foreach")
