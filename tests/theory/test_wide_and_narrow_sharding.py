"""What no sharding may change where sums have one order: float64's norms, float16's first parameters; what travels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.training import Training
from simulator.model.shape import Transformer
from simulator.numerics import compensated, task
from simulator.numerics.arithmetic import Array
from simulator.numerics.loss_scaling import grad_scaler
from simulator.numerics.optimizer import Sgd
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario
from simulator.step.learning_spec import LossScaling
from simulator.step.precision import Precision
from tests.training import play, step

SHAPE = Transformer("tiny", 2, 16, 2, 2, 8, 64, 32, 8, tied=True)
DOUBLE = Precision(params="float64").resolved()
HALF = Precision(params="float16", grads="float16", reduce="float32", master="float32", matmul="float16")
SHARDED = ("zero1", "zero2", "zero3")


def begun(strategy: str, precision: Precision, initial: Any = None, **facts: Any) -> Training:
    facts = {"seq_len": 8, "micro_batch_size": 2, "algorithm": "direct"} | facts
    made = step(strategy, SHAPE, precision=precision, **facts)
    played, gpt = play(made, 4), gpt_of(made)
    setting = TrainingContext(gpt, played.plan, played.timeline, Sgd(0.3))
    return start(setting, initial or task.initial(gpt, 0), grad_scaler() if precision is HALF else None)


def rows(number: int) -> Array:
    return task.sequences(0, number, 8, 9, 32)


@cache
def clipped(strategy: str, bucket_size: int) -> tuple[list[float], list[float], bytes]:
    made = begun(strategy, DOUBLE, clip_norm=0.3, bucket_size=bucket_size)
    told = [made.step(rows(n)) for n in range(6)]
    final = made.parameters()
    bits = b"".join(final[name].tobytes() for name in sorted(final))
    return [one.loss for one in told], [one.norm for one in told], bits


@pytest.mark.parametrize("bucket_size", [2**12, 2**14, 2**30])
@pytest.mark.parametrize("strategy", SHARDED)
def test_clipping_in_float64_changes_no_bit_between_shardings(strategy: str, bucket_size: int) -> None:
    plain = clipped("ddp", 2**30)
    assert min(plain[1]) > 0.3  # so that all steps are clipped
    assert clipped(strategy, bucket_size) == plain


@pytest.mark.parametrize("count", [1, 2, 1000, 4097])
def test_squares_add_up_to_the_same_in_any_order_and_cut(count: int) -> None:
    """Against exact fractions: what is kept of the sum is right to 100 bits."""
    from fractions import Fraction

    generator = np.random.default_rng([count])
    numbers = generator.standard_normal(count) * 10.0 ** generator.integers(-8, 3, count)
    exact = sum((Fraction(x) ** 2 for x in numbers.tolist()), Fraction(0))
    for given in ([numbers], [numbers[::-1]], np.array_split(numbers, 7)):
        high, low = compensated.squares(given)
        assert high == float(exact)
        assert abs(Fraction(high) + Fraction(low) - exact) <= exact * Fraction(1, 2**100)


def test_squares_of_what_is_not_finite_are_not_either() -> None:
    for bad in (np.inf, np.nan, 1e200):
        high, low = compensated.squares([np.array([1.0, bad])])
        assert not np.isfinite(high)
        assert low == 0.0


def ties() -> dict[str, dict[str, Array]]:
    """Parameters that float64 rounds up to float16, and that float32 makes a tie, which goes down."""
    gpt = gpt_of(step("ddp", SHAPE, precision=HALF))
    sign = {u: {n: np.where(v < 0, -1.0, 1.0) for n, v in own.items()} for u, own in task.initial(gpt, 0).items()}
    return {u: {n: v * 2.0**-5 * (1 + 2.0**-11 + 2.0**-30) for n, v in own.items()} for u, own in sign.items()}


@pytest.mark.parametrize("strategy", SHARDED)
def test_no_sharding_rounds_first_parameters_in_another_way(strategy: str) -> None:
    """Nor does a first step that is skipped, after which ZeRO 1 and 2 gather them again."""

    def spoil(rank: int, unit: str, gradients: dict[str, Array], step: int) -> None:
        gradients[next(iter(gradients))].flat[0] = np.inf

    plain, made = (begun(name, HALF, ties(), loss_scaling=LossScaling(rule="dynamic")) for name in ("ddp", strategy))
    for number in range(4):
        told = [one.step(rows(number), spoil if number == 0 else None) for one in (plain, made)]
        assert told[0].skipped == told[1].skipped == (number == 0)
        assert told[0].loss == told[1].loss
    final = made.parameters()
    assert all(final[name].tobytes() == value.tobytes() for name, value in plain.parameters().items())


def shipped(precision: Any, strategy: str) -> SimulatedRun:
    model = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    training = {"model": model, "seq_len": 8, "micro_batch_size": 2, "numerics": True, "steps": 3}
    training |= {"precision": precision, "sharding": strategy}
    cluster = {"topology": "star_100g", "world_size": 4}
    return simulate(load_scenario({"name": "x", "cluster": cluster, "training": training}))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3", "parameter_server"])
def test_float64_travels_as_float64(strategy: str) -> None:
    narrow, wide = (reduced(shipped(precision, strategy)) for precision in ("fp32", "fp64"))
    assert wide == 2 * narrow > 0
    spelled = {"params": "float64", "grads": "float64", "reduce": "float64", "master": None}
    one, other = (shipped(precision, strategy).report.learning for precision in ("fp64", spelled))  # type: ignore[union-attr]
    assert one == other


def reduced(played: SimulatedRun) -> float:
    """Bytes of gradients on their way [B]."""
    names = ("all_reduce", "scatter", "push")
    return sum(float(log.nbytes.sum()) for log in played.timeline.logs if log.collective.startswith(names))
