"""What each stage of a pipeline holds is told without playing: it is the peak of the played timeline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import load_scenario, simulate
from simulator.cluster.build import build
from simulator.engine.play import play
from simulator.model.load import load_model
from simulator.run.memory_need import estimate_memory
from simulator.scenario.build_training import to_step
from simulator.step.parallelism import Parallelism
from simulator.step.pipelines.schedule import SCHEDULES, PipelineShape, Placement
from simulator.step.plan import ranks_alone
from simulator.step.precision import Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import TrainingStep, bare_step
from simulator.step.stage_memory import stage_memory
from simulator.step.training_spec import frameworks
from simulator.step.units import units

ONE = build("dgx_h100", 1)
# In one dtype nothing is cast for the wire, so that no buffer waits for a collective.
ONE_DTYPE = {"params": "bfloat16", "grads": "float32", "reduce": "float32"}
# Kernels take far longer than exchanges, as in what people train.
USUAL: dict[str, Any] = {"model": "gpt2", "seq_len": 1024, "micro_batch_size": 8, "precision": ONE_DTYPE}

JOBS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "zero3": (4, {"sharding": "zero3"}),
    "zero2, micro-batches": (4, {"sharding": "zero2", "gradient_accumulation_steps": 5}),
    "tp": (4, {"sharding": "zero1", "parallelism": {"tp": 4}}),
    "tp, whole sequences": (4, {"sharding": "zero1", "parallelism": {"tp": 4, "sequence_parallel": False}}),
    "cp": (4, {"sharding": "ddp", "parallelism": {"cp": 2}}),
    "1f1b": (8, {"sharding": "zero1", "gradient_accumulation_steps": 9, "parallelism": {"pp": 4}}),
    "1f1b, head's gradients deferred": (
        8,
        {
            "sharding": "zero1",
            "gradient_accumulation_steps": 13,
            "parallelism": {"pp": 4, "deferred_head_gradients": 5},
        },
    ),
    "interleaved, head's gradients deferred": (
        8,
        {
            "sharding": "ddp",
            "gradient_accumulation_steps": 12,
            "parallelism": {"pp": 4, "schedule": "interleaved", "virtual_stages": 3, "deferred_head_gradients": "all"},
        },
    ),
    "1f1b, few": (4, {"sharding": "ddp", "gradient_accumulation_steps": 2, "parallelism": {"pp": 4}}),
    "1f1b, unlike stages": (
        4,
        {"sharding": "ddp", "gradient_accumulation_steps": 8, "parallelism": {"pp": 4, "stages": [1, 5, 4, 2]}},
    ),
    "gpipe, full": (
        8,
        {
            "sharding": "zero1",
            "gradient_accumulation_steps": 12,
            "activation_checkpointing": "full",
            "parallelism": {"pp": 4, "schedule": "gpipe"},
        },
    ),
    "interleaved": (
        8,
        {
            "sharding": "zero1",
            "gradient_accumulation_steps": 12,
            "parallelism": {"pp": 4, "schedule": "interleaved", "virtual_stages": 3},
        },
    ),
    "zb_v": (4, {"sharding": "zero1", "gradient_accumulation_steps": 12, "parallelism": {"pp": 4, "schedule": "zb_v"}}),
    "zero3, 1f1b": (
        8,
        {"sharding": "zero3", "gradient_accumulation_steps": 9, "parallelism": {"pp": 4}},
    ),
    "zero3, gpipe, full": (
        8,
        {
            "sharding": "zero3",
            "gradient_accumulation_steps": 12,
            "activation_checkpointing": "full",
            "parallelism": {"pp": 4, "schedule": "gpipe"},
        },
    ),
    "zero3, interleaved, ends without layers": (
        8,
        {
            "sharding": {"strategy": "zero3", "prefetch": 2},
            "gradient_accumulation_steps": 12,
            "parallelism": {
                "pp": 2,
                "schedule": "interleaved",
                "virtual_stages": 7,
                "stages": {"first_less": 1, "last_less": 1},
            },
        },
    ),
    "zero3 that keeps parameters": (
        8,
        {
            "sharding": {"strategy": "zero3", "reshard_after_forward": False, "gradient_sync": "last"},
            "gradient_accumulation_steps": 8,
            "parallelism": {"pp": 4},
        },
    ),
    "tp, pp, cp": (
        16,
        {"sharding": "zero1", "gradient_accumulation_steps": 6, "parallelism": {"tp": 2, "pp": 4, "cp": 2}},
    ),
    "experts": (
        8,
        {
            "model": "mixtral_8x7b",
            "micro_batch_size": 1,
            "sharding": "zero1",
            "gradient_accumulation_steps": 6,
            "parallelism": {"pp": 2, "ep": 4},
        },
    ),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.one_of(3)
def test_it_is_the_peak_of_the_played_timeline(name: str) -> None:
    world_size, training = JOBS[name]
    scenario = load_scenario(
        {
            "name": "peak",
            "cluster": {"topology": "dgx_h100", "world_size": world_size},
            "training": USUAL | training,
        }
    )
    assert scenario.training is not None
    told = stage_memory(ONE, to_step(scenario.training, world_size), world_size)
    played = simulate(scenario, limit_memory=False, keep=range(world_size))
    # Stages vary slowest with the rank's number.
    for stage in told:
        rank = stage.stage * world_size // len(told)
        samples = [sample for sample in played.timeline.memory if sample.rank == rank]
        most = max(samples, key=lambda sample: sample.nbytes)
        assert stage.nbytes == most.nbytes
        assert dict(stage.by_category) == dict(most.by_category)
    assert max(stage.nbytes for stage in told) == played.report.peak_memory_bytes


@st.composite
def steps(draw: st.DrawFn) -> tuple[TrainingStep, int]:
    """A small model cut into stages in any order of passes, where nothing waits for the network."""
    schedule = SCHEDULES.find(draw(st.sampled_from(SCHEDULES.names())))
    both_ways = schedule.placement is Placement.BOTH_WAYS
    pp, tp, dp = draw(st.integers(2, 4)), draw(st.sampled_from([1, 2])), draw(st.integers(1, 3))
    pp += pp % 2 if both_ways else 0
    chunks = schedule.chunks or draw(st.integers(1, 3))
    micros = draw(st.integers(1, 20))
    if schedule.refusal(PipelineShape(pp, micros, chunks, pp)):
        micros = 4 * pp
    step = bare_step(
        load_model("gpt2", 1024),
        1024,
        draw(st.sampled_from([1, 2])),
        gradient_accumulation_steps=micros,
        sharding=Sharding(strategy=draw(st.sampled_from(["ddp", "zero1"]))),
        precision=Precision(params="float32").resolved(),
        activation_checkpointing=draw(st.sampled_from(["none", "full", "selective_op", 2])),
    )
    cut = Parallelism(tp=tp, pp=pp, schedule=schedule.name, virtual_stages=chunks)
    return step.with_keys(parallelism=cut), tp * pp * dp


@settings(max_examples=30)
@given(steps())
def test_a_few_micro_batches_tell_of_all(drawn: tuple[TrainingStep, int]) -> None:
    """Any order, any number of micro-batches: what one rank of each stage holds that does all of them.

    Two passes whose kernels take turns hold less than if one followed the other, which is what is told: at most by the
    activations of the one micro-batch that goes back while the other goes forward.
    """
    step, world_size = drawn
    cluster = build("dgx_h100", world_size)
    told = stage_memory(ONE, step, world_size)
    for stage, program in zip(told, ranks_alone(cluster, step, at_once=True), strict=True):
        peak = play("auto", program, cluster, limit_memory=False).peak
        assert peak is not None
        by_turns = step.parallelism.schedule.startswith("dualpipe") and step.parallelism.tp > 1
        one = dict(stage.by_category)["activations"] / stage.held if by_turns else 0
        assert peak.nbytes <= stage.nbytes <= peak.nbytes + one


@pytest.mark.parametrize("framework", frameworks())
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.one_of(3)
def test_a_rank_alone_can_be_planned_for_every_framework(framework: str, schedule: str, at_once: bool) -> None:
    """Hosts that wait for their receives know which rank receives, although a rank alone sends to nobody."""
    spec = load_scenario(
        {
            "name": "alone", "cluster": {"topology": "dgx_h100", "world_size": 8},
            "training": USUAL | {
                "framework": framework, "gradient_accumulation_steps": 8, "sharding": "zero1",
                "parallelism": {"pp": 4, "schedule": schedule},
            },
        }
    ).training  # fmt: skip
    assert spec is not None
    cluster = build("dgx_h100", 8)
    programs = ranks_alone(cluster, to_step(spec, 8), at_once=at_once)
    assert len(programs) == 4
    for program in programs:
        assert play("auto", program, cluster, limit_memory=False).peak is not None


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb_h1", "zb_v", "v_half"])
@pytest.mark.one_of(3)
def test_where_collectives_keep_buffers_it_is_nearly_what_a_step_needs(strategy: str, schedule: str) -> None:
    """The gather of the next pass may begin while weights' gradients are made, and a buffer be sent a kernel later."""
    chunks = 2 if schedule == "interleaved" else 1
    training = USUAL | {
        "precision": "bf16",
        "sharding": strategy,
        "gradient_accumulation_steps": 8,
        "parallelism": {"pp": 4, "schedule": schedule, "virtual_stages": chunks},
    }
    scenario = load_scenario(
        {"name": "near", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": training}
    )
    assert scenario.training is not None
    step = to_step(scenario.training, 8)
    told = max(stage.nbytes for stage in stage_memory(ONE, step, 8))
    assert told == pytest.approx(estimate_memory(build("dgx_h100", 8), step).nbytes, rel=0.02)


def test_held_micro_batches_are_those_of_the_schedule() -> None:
    """1F1B: stage r holds p - r of them, and as many times what its layers keep of one."""
    cut, sharding = Parallelism(pp=4), Sharding(strategy="ddp")
    step = bare_step(load_model("gpt2", 1024), 1024, gradient_accumulation_steps=16, sharding=sharding, parallelism=cut)
    told = stage_memory(ONE, step, 4)
    assert [stage.held for stage in told] == [4, 3, 2, 1]
    kept = units(step, ONE.gpus[0])[1].kept
    assert [stage.by_category["activations"] for stage in told[1:3]] == [3 * 3 * kept, 2 * 3 * kept]


@settings(max_examples=12)
@given(st.data())
def test_it_is_never_above_the_simulated_peak(data: st.DataObject) -> None:
    """A plan refuses what needs more than a GPU has by this figure, so it must not rise above what a step holds."""

    def one_of(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    sharding = {
        "strategy": "zero3", "prefetch": one_of(0, 1, 2, 3), "reshard_after_forward": one_of(True, False, 2),
        "layers_per_unit": one_of(1, 2, 5), "gradient_sync": one_of("every", "last"),
    }  # fmt: skip
    training = USUAL | {
        "precision": one_of("bf16", "fp32", ONE_DTYPE),
        "sharding": one_of(sharding, "zero2"),
        "gradient_accumulation_steps": one_of(4, 7, 8),
        "activation_checkpointing": one_of("none", "full", "selective_op"),
        "parallelism": one_of({}, {"pp": 2}, {"pp": 2, "schedule": "gpipe"}, {"pp": 2, "schedule": "zb_h1"}),
    }
    cluster = {"topology": "dgx_h100", "world_size": 8}
    scenario = load_scenario({"name": "below", "cluster": cluster, "training": training})
    assert scenario.training is not None
    told = stage_memory(ONE, to_step(scenario.training, 8), 8)
    report = simulate(scenario, limit_memory=False).report
    assert max(stage.nbytes for stage in told) <= report.peak_memory_bytes
