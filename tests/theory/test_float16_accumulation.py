"""Several micro-batches in float16, as PyTorch adds them up, and what becomes of small gradients on their way."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.state import StepResult
from simulator.learning.training import Training
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.loss_scaling import grad_scaler, static_scaler
from simulator.numerics.optimizer import Sgd
from simulator.step.precision import Precision
from tests.golden.gpt import golden, update_difference
from tests.golden.half import half
from tests.training import play, step

STEPS, START = 14, 2.0**18
ACCUMULATED: dict[str, Any] = {"ranks": 2, "gradient_accumulation_steps": 4, "spoiled": 1}
# Strategies under which a rank adds up whole gradients of its own before it sends any, as DDP does.
WHOLE = [("ddp", {}), ("zero1", {}), ("zero3", {"gradient_sync": "last"})]


@pytest.mark.parametrize(("strategy", "facts"), WHOLE, ids=str)
@pytest.mark.one_of(3)
def test_micro_batches_in_float16_scale_skip_and_learn_as_pytorchs_do(strategy: str, facts: dict[str, Any]) -> None:
    """`scaler.scale(loss / 4).backward()` four times, added up in float16, divided by the two ranks once.

    Overflows come out of these very sums (steps 2, 8 and 11); only that of step 7 was put in.
    """
    reference = golden("fp16_accum")
    training, told = half(strategy, grad_scaler(START, 2), steps=STEPS, **ACCUMULATED, **facts)
    assert [one.scale for one in told] == reference["scale"].tolist()
    assert [n for n, one in enumerate(told) if one.skipped] == np.flatnonzero(reference["skipped"]).tolist() == [
        2, 7, 8, 11
    ]  # fmt: skip
    assert training.ranks[0].scale.value == float(reference["final_scale"])
    steps = {state.steps for rank in training.ranks for state in rank.states.values()}
    assert steps == {int(reference["adam_step"][-1])}
    # Other sound programs are 3e-5, 5e-4 and half a percent away (tests/golden/README.md).
    assert np.abs(np.array([one.loss for one in told]) - reference["loss"]).max() <= 1e-4
    kept = [n for n, one in enumerate(told) if not one.skipped]
    np.testing.assert_allclose([told[n].norm for n in kept], reference["gnorm"][kept], rtol=1e-3)
    assert update_difference(training.parameters(), reference) <= 0.01


@cache
def low(strategy: str) -> tuple[Training, list[StepResult]]:
    """At a scale at which nothing overflows."""
    name, _, sync = strategy.partition(" ")
    facts = {"gradient_sync": sync, "shard_size": 1} if sync else {}
    return half(name, static_scaler(2.0**15), steps=4, **ACCUMULATED, **facts)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "zero3 every", "zero3 shard"])
def test_who_sums_over_ranks_first_learns_the_same_where_nothing_overflows(strategy: str) -> None:
    """ZeRO-2 and 3 divide each micro-batch's gradient, so their sums overflow later; at a lower scale none does."""
    (whole, expected), (parts, told) = low("ddp"), low(strategy)
    assert not any(one.skipped for one in (*expected, *told))
    np.testing.assert_allclose([one.loss for one in told], [one.loss for one in expected], rtol=0, atol=1e-4)
    np.testing.assert_allclose([one.norm for one in told], [one.norm for one in expected], rtol=1e-3)
    held = {f"master/{name}": value for name, value in whole.parameters().items()}
    assert update_difference(parts.parameters(), held) <= 0.01


TINY = Transformer("tiny", 2, 16, 2, 2, 8, 64, 32, 8, tied=True)
LEAST = 2.0**-24  # of float16
SYNCS, SIZES = ("every", "shard", "last"), (1, 2, 4)
WAYS: list[tuple[str, dict[str, Any]]] = [
    *((strategy, {}) for strategy in ("ddp", "zero1", "zero2", "parameter_server")),
    *(("zero3", {"gradient_sync": sync, "shard_size": size}) for sync in SYNCS for size in SIZES),
]


def moved(strategy: str, ranks: int, reduce: str, rate: float, scale: float, **facts: Any) -> Array:
    """By how much parameters go down that are small enough for float32 to show it; all rows are alike."""
    precision = Precision(params="float16", grads="float16", reduce=reduce, master="float32", matmul="float16")
    facts |= {"precision": precision, "seq_len": 8, "micro_batch_size": 1, "algorithm": "direct"}
    made = step(strategy, TINY, **facts)
    setting = TrainingContext(gpt_of(made), (played := play(made, ranks)).plan, played.timeline, Sgd(rate))
    training = start(setting, task.initial(setting.gpt, 0), static_scaler(scale))
    before = training.parameters()
    training.step(np.repeat(task.sequences(0, 0, 1, 9, 32), ranks * made.accumulation, axis=0))
    after = training.parameters()
    small = [name for name in sorted(before) if np.abs(before[name]).max() < 0.125]  # all but scales of norms
    return np.concatenate([(before[name] - after[name]).ravel() for name in small])


@pytest.mark.parametrize("reduce", ["float32", "bfloat16"])
@pytest.mark.parametrize(("strategy", "facts"), WAYS, ids=str)
@pytest.mark.one_of(3)
def test_a_small_gradient_survives_where_the_wire_can_hold_its_parts(
    strategy: str, facts: dict[str, Any], reduce: str
) -> None:
    """The mean of four equal gradients is each of them, down to float16's least number.

    A quarter of that is nothing in float16, and a number in what travels. Two micro-batches, and a loss times two.
    """
    alone = moved("ddp", 1, reduce, 1.0, 1.0)
    assert np.abs(alone[alone != 0]).min() == pytest.approx(LEAST, rel=0.1)
    mean = moved(strategy, 4, reduce, 0.5, 2.0, gradient_accumulation_steps=2, **facts)
    assert (np.abs(mean[alone != 0]) > 0.4 * LEAST).all()
    near = {"rtol": 0.0, "atol": LEAST / 8} if reduce == "float32" else {"rtol": 2.0**-6, "atol": LEAST}
    np.testing.assert_allclose(mean, alone, **near)
