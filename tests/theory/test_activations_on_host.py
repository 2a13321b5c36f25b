"""Saved activations in host memory: which bytes travel, when they return, and which memory is left, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cluster.gpu_file import load_gpu
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from simulator.step.training_spec import Offload
from simulator.step.units import units
from tests.training import SHARDED, TINY, PlayedStep, play, step

BF16 = Precision(reduce="bfloat16").resolved()
# A deeper model than TINY: six layers, of which the last keeps its activations on the GPU.
DEEP = replace(TINY, num_layers=6)
AWAY = Offload(activations=True)


def played(strategy: str = "zero3", ranks: int = 2, *, offload: Offload = AWAY, **facts: object) -> PlayedStep:
    return play(step(strategy, model=DEEP, precision=BF16, offload=offload, **facts), ranks, "dgx_h100")


def saved(**facts: object) -> int:
    """Bytes that one layer saves for the backward pass of a micro-batch."""
    return units(step("zero3", model=DEEP, precision=BF16, **facts), load_gpu("h100_sxm"))[1].kept


def moved(run: PlayedStep, way: str) -> list[float]:
    """Bytes of every copy of rank 0 in a direction."""
    return [span.nbytes for span in run.timeline.spans if span.rank == 0 and span.kind == f"copy {way}"]


@pytest.mark.parametrize("strategy", ["ddp", *SHARDED])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.one_of(3)
def test_every_layer_but_the_last_leaves_and_returns_once_for_each_micro_batch(
    strategy: str, accumulation: int, checkpointing: str
) -> None:
    run = played(strategy, gradient_accumulation_steps=accumulation, activation_checkpointing=checkpointing)
    expected = [saved(activation_checkpointing=checkpointing)] * 5 * accumulation
    assert moved(run, "to host") == moved(run, "to device") == expected


def test_each_of_two_stages_keeps_its_last_layer() -> None:
    run = played("ddp", 2, parallelism=Parallelism(pp=2), gradient_accumulation_steps=2)
    # Three layers a stage: two of them leave, for each of two micro-batches.
    assert moved(run, "to host") == [saved()] * 2 * 2


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_report_counts_what_waits_on_the_host(accumulation: int, checkpointing: str) -> None:
    """Five of six layers; the next micro-batch's leave when those of the one before have returned."""
    report = played(gradient_accumulation_steps=accumulation, activation_checkpointing=checkpointing).report
    assert report.host_memory_bytes == report.host_activation_bytes == 5 * saved(activation_checkpointing=checkpointing)
    assert played(offload=Offload()).report.host_memory_bytes == 0


def test_the_first_stage_of_a_pipeline_has_most_on_its_host() -> None:
    """1F1B on two stages: two micro-batches of the first stage's two layers wait at once, and one of the second's."""
    run = played("ddp", 2, parallelism=Parallelism(pp=2), gradient_accumulation_steps=4)
    assert run.report.host_activation_bytes == 2 * 2 * saved()


def test_states_and_activations_on_the_host_add_up() -> None:
    """Adam's float32 master copy and two moments, and bfloat16 gradients, of half the parameters each; activations."""
    near, report = (
        played(offload=Offload(what="optimizer", activations=activations), activation_checkpointing="full").report
        for activations in (False, True)
    )
    assert near.host_memory_bytes == report.host_memory_bytes - report.host_activation_bytes > 0
    assert report.host_activation_bytes == 5 * saved(activation_checkpointing="full")


def test_a_layer_returns_while_the_layer_above_runs_backward_and_is_there_when_needed() -> None:
    spans = {span.name.removesuffix(" (own 0)"): span for span in played().timeline.spans if span.rank == 0}
    for layer in range(5):
        back = spans[f"return layer {layer} activations 0"]
        assert back.start >= spans[f"hand over layer {layer} activations 0"].end
        assert back.end <= spans[f"layer {layer} backward 0"].start
        if layer < 4:
            # The layer above waits for its own copy, and the copies share a stream.
            assert back.start >= spans[f"return layer {layer + 1} activations 0"].end


def test_a_copy_takes_as_long_as_its_bytes_over_pcie() -> None:
    gpu = load_gpu("h100_sxm")
    span = next(one for one in played().timeline.spans if one.name.startswith("hand over layer 0"))
    # DGX H100: each GPU has a slot of PCIe 5 with 16 lanes, and an NVIDIA driver's copies reach 82 % of it
    # (51 and 52 of 63 GB/s, Azure).
    assert span.end - span.start >= saved() / (0.82 * gpu.host_bandwidth) * (1 - 1e-9)


def test_the_gpu_holds_fewer_activations_at_the_peak() -> None:
    # So many tokens that activations are most of the memory.
    facts = {"micro_batch_size": 64}
    near, far = (played(offload=offload, **facts).report.peak_memory_bytes for offload in (Offload(), AWAY))
    # At least two of the five layers that leave are away at the peak.
    assert near - far >= 2 * saved(**facts)


def test_nothing_is_left_on_the_gpu_after_the_step() -> None:
    assert dict(played().timeline.memory[-1].by_category).get("activations", 0) == 0
