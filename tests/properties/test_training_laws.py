"""Laws of a training step: sharding, checkpointing and prefetch change time and memory, never the work."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.parameters import total
from simulator.model.shape import Transformer
from simulator.step.learning_spec import LossScaling
from simulator.step.training_spec import Offload
from tests.training import EVERY_STRATEGY, WITHOUT_SERVERS, PlayedStep, play, step

models = st.builds(
    lambda layers, heads, gated, rotary: Transformer(
        "drawn", layers, 16 * heads, heads, heads, 16, 48 * heads, 97, 64,
        gated=gated, positions="rotary" if rotary else "learned", tied=not rotary,
    ),
    st.integers(1, 5), st.integers(1, 4), st.booleans(), st.booleans(),
)  # fmt: skip
checkpoints = st.sampled_from(
    ["none", "full", "sqrt", "attention", "selective_op", "feed_forward", "activation", 2, (0,), (("attention", (0,)),)]
)
settings_of_zero3 = st.fixed_dictionaries(
    {
        "prefetch": st.integers(0, 3),
        "layers_per_unit": st.integers(1, 3),
        "keep_below": st.sampled_from([0, 100, 10_000]),
        "reshard_after_forward": st.sampled_from([True, False, 2]),
        "shard_size": st.sampled_from([None, 2, 4]),
        "gradient_sync": st.sampled_from(["every", "shard", "last"]),
        "offload": st.sampled_from([Offload(what=what) for what in ("none", "optimizer")]),
        "loss_scaling": st.sampled_from([LossScaling(rule=rule) for rule in ("none", "dynamic")]),
    }
)


def kernels(played: PlayedStep, *kinds: str) -> list[tuple[str, float, float]]:
    """Name, FLOPs and bytes of rank 0's kernels of some kinds, in any order."""
    spans = [s for s in played.timeline.spans if s.rank == 0 and s.kind in kinds]
    return sorted((s.name, s.flops, s.nbytes) for s in spans)


@settings(derandomize=True, max_examples=15)
@given(models, checkpoints, st.sampled_from(["flash", "standard"]), st.integers(1, 2))
def test_every_strategy_runs_the_same_kernels(
    model: Transformer, checkpointing: object, attention: str, accumulation: int
) -> None:
    facts = {
        "activation_checkpointing": checkpointing,
        "attention": attention,
        "gradient_accumulation_steps": accumulation,
    }
    ran = [kernels(play(step(s, model, **facts), 2), "forward", "backward", "recompute") for s in EVERY_STRATEGY]
    assert all(other == ran[0] for other in ran)


@settings(derandomize=True, max_examples=15)
@given(models, checkpoints, st.sampled_from(EVERY_STRATEGY), st.integers(0, 3), st.integers(1, 3))
def test_memory_returns_to_the_states_and_its_peak_is_the_largest_sample(
    model: Transformer, checkpointing: object, strategy: str, prefetch: int, accumulation: int
) -> None:
    played = play(
        step(
            strategy,
            model,
            activation_checkpointing=checkpointing,
            prefetch=prefetch,
            gradient_accumulation_steps=accumulation,
        ),
        4,
    )
    returns_to_its_states(played)


@settings(derandomize=True, max_examples=40)
@given(models, checkpoints, settings_of_zero3, st.integers(1, 2))
def test_finer_sharding_changes_neither_kernels_nor_what_is_left(
    model: Transformer, checkpointing: object, facts: dict[str, object], accumulation: int
) -> None:
    """Units of several layers, kept tensors, meshes, copies of the states, a host: in any combination."""
    given = {"activation_checkpointing": checkpointing, "gradient_accumulation_steps": accumulation}
    plain, fine = play(step("zero3", model, **given), 4), play(step("zero3", model, **given, **facts), 4)
    kinds = ("forward", "backward", "recompute")
    assert kernels(plain, *kinds) == kernels(fine, *kinds)
    returns_to_its_states(fine)
    report = fine.report
    for parts in (report.exposed_comm_time_by_kind, report.exposed_comm_time_by_dimension):
        assert sum(parts.values()) == pytest.approx(report.exposed_comm_time_s, rel=1e-9)
    assert set(report.exposed_comm_time_by_dimension) == set(report.comm_time_by_dimension) <= {"dp", "host"}


def returns_to_its_states(played: PlayedStep) -> None:
    by_rank = defaultdict(list)
    for sample in played.timeline.memory:
        by_rank[sample.rank].append(sample)
    for samples in by_rank.values():
        held = {category for category, nbytes in samples[-1].by_category if nbytes}
        assert held <= {"parameters", "optimizer"}
        states = dict(samples[-1].by_category)
        assert samples[-1].nbytes == sum(states.values())
    assert played.report.peak_memory_bytes == max(s.nbytes for s in played.timeline.memory)
    assert played.report.peak_memory_bytes == sum(played.report.peak_memory_by_category.values())


@settings(derandomize=True, max_examples=15)
@given(models, checkpoints, st.sampled_from(WITHOUT_SERVERS))
def test_without_communication_a_step_is_the_sum_of_its_kernels(
    model: Transformer, checkpointing: object, strategy: str
) -> None:
    played = play(step(strategy, model, activation_checkpointing=checkpointing), 1)
    assert played.timeline.logs == ()
    total_time = sum(s.end - s.start for s in played.timeline.spans)
    assert played.report.step_time_s == pytest.approx(total_time, rel=1e-9)
    assert played.report.exposed_comm_time_s == pytest.approx(0.0, abs=1e-12)


@settings(derandomize=True, max_examples=10)
@given(models, st.sampled_from(EVERY_STRATEGY), st.integers(2, 4))
def test_times_are_within_their_bounds(model: Transformer, strategy: str, ranks: int) -> None:
    report = play(step(strategy, model), ranks).report
    assert report.compute_time_s <= report.step_time_s
    parts = report.compute_time_s + report.exposed_comm_time_s + report.bubble_time_s
    assert parts == pytest.approx(report.step_time_s, rel=1e-9)
    assert 0 < report.mfu <= report.hfu <= 1


def test_states_fall_with_the_stage() -> None:
    """Bytes of parameters, optimizer and gradients at the end of the backward pass, per the paper's table."""
    ranks = 4
    states = {s: dict(play(step(s), ranks).timeline.memory[-1].by_category) for s in WITHOUT_SERVERS}
    held = [sum(states[s].values()) for s in WITHOUT_SERVERS]
    assert held[0] > held[1] == held[2] > held[3]
    # bf16 parameters, float32 master copy, momentum and variance: (2 + 12) P between steps.
    assert held[0] == (2 + 12) * total(step().model)
