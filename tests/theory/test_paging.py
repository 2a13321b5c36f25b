"""Paged optimizers: states leave a full GPU by as many bytes as it lacks, and cross PCIe twice in each update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.records.operation import Allocate, Collective, Compute
from simulator.report.numbers.training_summary import TrainingReport
from simulator.run.memory_need import least_need, paged
from simulator.run.point_result import PointResult
from simulator.run.simulate import simulate
from simulator.run.training import play_step
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.offload import copies
from simulator.step.plan import plan_step
from simulator.step.spec import TrainingStep
from tests.engines import simulated_alike

GPT2: Final = 124_439_808
# Float32 moments, and bytes with a float32 scale for 256, for each parameter.
STATES: Final = {"paged_adam": 8 * GPT2, "paged_adam_8bit": -(-GPT2 * 2 * (256 + 4) // 256)}


def data(optimizer: Any, ranks: int = 1, **keys: Any) -> dict[str, Any]:
    training = {"model": "gpt2", "seq_len": 1024, "sharding": "ddp", "optimizer": optimizer} | keys
    return {"name": "paging", "cluster": {"topology": "dgx_h100", "world_size": ranks}, "training": training}


def step_of(document: dict[str, Any]) -> tuple[Cluster, TrainingStep]:
    scenario = load_scenario(document)
    assert scenario.training is not None
    ranks = scenario.cluster.world_size
    return build("dgx_h100", ranks), to_step(scenario.training, ranks)


def with_memory(cluster: Cluster, nbytes: int) -> Cluster:
    """The cluster with GPUs of less memory."""
    return replace(cluster, gpus=tuple(replace(gpu, hbm_bytes=nbytes) for gpu in cluster.gpus))


def played(cluster: Cluster, step: TrainingStep) -> tuple[PointResult, TrainingReport]:
    result = play_step(cluster, step, Jitter(), limit_memory=False)
    assert isinstance(result.report, TrainingReport)
    return result, result.report


def test_a_step_that_fits_is_that_of_the_optimizer_that_is_not_paged() -> None:
    """Adam's fused kernel with float32 states; nothing is on the host."""
    plain, pages = (
        simulate(load_scenario(data(one))).report.to_dict()
        for one in ({"name": "adam", "implementation": "fused"}, "paged_adamw")
    )
    assert pages == plain
    assert pages["host_memory_bytes"] == 0


@pytest.mark.parametrize("name", ["paged_adam", "paged_adam_8bit"])
def test_the_missing_bytes_leave_and_cross_pcie_twice_at_half_its_bandwidth(name: str) -> None:
    cluster, step = step_of(data(name))
    _, report = played(cluster, step)
    lacking = STATES[name] // 3
    small = with_memory(cluster, report.process_bytes - lacking)
    asked = paged(small, step)
    (away,) = asked.paged_out
    result, found = played(small, step)
    assert found.fits
    # No more than needed: the allocator's blocks have at most 2 MiB of room. Smaller states may also leave fewer
    # fragments, then fewer bytes than lacking are enough.
    assert small.gpus[0].hbm_bytes - 2 * 2**21 <= found.process_bytes <= small.gpus[0].hbm_bytes
    assert abs(away - lacking) <= 10 * 2**21
    assert found.host_memory_bytes == away
    held = {op.name: op.nbytes for op in result.plan.program.ranks[0] if isinstance(op, Allocate)}  # type: ignore[union-attr]
    assert held["optimizer states"] == 4 * GPT2 + STATES[name] - away
    # PCIe's raw rate is the copies' rate over 0.82; pages reach half of it.
    rates = [copies(cluster, direction) for direction in ("to device", "to host")]  # type: ignore[arg-type]
    more = sum(one.latency + away / (0.5 / 0.82 * one.rate) for one in rates)
    assert found.step_time_s - report.step_time_s == pytest.approx(more, rel=1e-6)


def test_a_step_whose_other_memory_does_not_fit_is_refused() -> None:
    cluster, step = step_of(data("paged_adam"))
    _, report = played(cluster, step)
    small = with_memory(cluster, report.process_bytes - STATES["paged_adam"] - 2**30)
    _, found = played(small, step)
    assert not found.fits
    assert found.host_memory_bytes == STATES["paged_adam"]
    # The lower bound on memory assumes that all states are gone.
    tensors = report.peak_memory_bytes - STATES["paged_adam"]
    assert least_need(cluster, step) < tensors + report.context_bytes + report.nccl_bytes + 2**20


def test_each_pipeline_stage_pages_what_it_lacks() -> None:
    """Only the last stage, with the logits, is too full."""
    cluster, step = step_of(data("paged_adam", 2, parallelism={"pp": 2}, gradient_accumulation_steps=4))
    _, report = played(cluster, step)
    low, high = sorted(report.peak_memory_by_stage)
    # Reserved bytes count with 3 % for the error of estimated times.
    beside = report.context_bytes + report.nccl_bytes
    asked = paged(with_memory(cluster, int(1.03 * (low + high) / 2) + beside), step)
    assert sum(one > 0 for one in asked.paged_out) == 1
    assert asked.paged_out[report.peak_memory_by_stage.index(high)] > 0


@pytest.mark.parametrize("sharding", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_both_engines_agree_and_pages_share_pcie_with_others(sharding: str, ranks: int) -> None:
    cluster, step = step_of(data("paged_adam_8bit", ranks, sharding=sharding, collectives="played"))
    away = STATES["paged_adam_8bit"] // 8
    plan = plan_step(cluster, replace(step, paged_out=(away,)))
    moved = [op for op in plan.program.ranks[0] if isinstance(op, Compute | Collective) and op.name.startswith("page")]
    assert [op.name.partition(" (")[0] for op in moved] == ["page in optimizer states", "page out optimizer states"]
    assert plan.host_bytes == away
    simulated_alike(plan.program, cluster, allocator=step.keys.allocator)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sharding": "zero2", "offload": "optimizer"}, "beside an update of host's processors"),
        ({"sharding": "parameter_server"}, "beside an update of parameter servers"),
        ({"optimizer": {"name": "paged_adam", "implementation": "foreach"}}, "has a fused kernel alone"),
    ],
)
def test_what_pages_cannot_do_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    document = data("paged_adam", 4)
    document["cluster"]["topology"] = "star_100g"
    with pytest.raises(ScenarioError) as refused:
        load_scenario(document | {"training": document["training"] | keys})
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
