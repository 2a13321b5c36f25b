"""Lion and Muon on simulated ranks learn what a plain numpy loop on one rank learns, to 1e-12 in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning.learn import gpt_of, rule_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.training import Training
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.scenario.build_training import optimizer
from simulator.scenario.training_spec import OptimizerSpec
from simulator.step.parallelism import Parallelism
from simulator.step.spec import Precision, TrainingTask
from tests.training import EVERY_STRATEGY, play, step

WIDTH, WORDS, LENGTH, STEPS = 16, 32, 8, 3
SHAPE = Transformer("tied", 2, WIDTH, 2, 2, 8, 4 * WIDTH, WORDS, LENGTH, tied=True)
DOUBLE = Precision("float64", "float64", "float64", None, "float64")
RATE, DECAY = 0.01, 0.1


def begun(name: str, strategy: str, ranks: int, batch: int, task_of: TrainingTask, **facts: Any) -> Training:
    facts = {"precision": DOUBLE, "seq_len": LENGTH, "lesson": task_of, "optimizer": made_of(name, strategy)} | facts
    tensor = facts.get("parallelism", Parallelism()).tp
    made = step(strategy, SHAPE, micro_batch_size=batch * tensor // ranks, **facts)
    played = play(made, ranks, "dgx_h100" if tensor > 1 else "star_100g")
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline, rule_of(made, ranks), seed=5)
    return start(setting, task.initial(setting.gpt, 0))


def made_of(name: str, strategy: str, **keys: Any) -> Any:
    return optimizer(OptimizerSpec(name=name, **keys), strategy)


def rows(number: int, batch: int) -> Array:
    return task.sequences(0, number, batch, LENGTH + 1, WORDS)


def by_hand(update: Any, batch: int) -> tuple[list[float], dict[str, Array]]:
    """Losses and parameters of a loop over the whole batch on one rank; `update` changes a parameter in place."""
    gpt = Gpt(WORDS, WIDTH, 2, LENGTH, 2, arithmetic("float64"), tied=True)
    units = {unit: dict(own) for unit, own in task.initial(gpt, 0).items()}
    flat = {name: value for own in units.values() for name, value in own.items()}
    losses = []
    for number in range(STEPS):
        loss, found = gpt.gradients(units, rows(number, batch))
        losses.append(loss)
        for name, value in flat.items():
            update(name, value, found[name], number + 1)
    return losses, flat


def lion() -> Any:
    """Chen et al. 2023, algorithm 2: c = b1 m + (1 - b1) g; p -= rate (sign(c) + decay p); m = b2 m + (1 - b2) g."""
    momenta: dict[str, Array] = {}

    def update(name: str, p: Array, g: Array, _: int) -> None:
        m = momenta.get(name, np.zeros_like(p))
        p -= RATE * (np.sign(0.9 * m + 0.1 * g) + DECAY * p)
        momenta[name] = 0.99 * m + 0.01 * g

    return update


def same(found: Training, losses: list[float], expected: tuple[list[float], dict[str, Array]]) -> None:
    """Losses and parameters agree to 1e-12, apart from the key bias: its gradient is zero but for rounding, which Lion
    and Adam turn into moves. No other number depends on it.
    """
    np.testing.assert_allclose(losses, expected[0], rtol=1e-12)
    parameters = found.parameters()
    assert set(parameters) == set(expected[1])
    for name, value in expected[1].items():
        keep = np.r_[:WIDTH, 2 * WIDTH : 3 * WIDTH] if name.endswith("qkv.bias") else np.s_[:]
        np.testing.assert_allclose(parameters[name][keep], value[keep], rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_lion_is_its_algorithm_under_every_sharding(strategy: str, ranks: int) -> None:
    made = begun("lion", strategy, ranks, 12, TrainingTask(rate=RATE, decay=DECAY))
    losses = [made.step(rows(number, 12)).loss for number in range(STEPS)]
    same(made, losses, by_hand(lion(), 12))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_lion_is_its_algorithm_with_cut_matrices(strategy: str) -> None:
    made = begun("lion", strategy, 4, 12, TrainingTask(rate=RATE, decay=DECAY), parallelism=Parallelism(tp=2))
    losses = [made.step(rows(number, 12)).loss for number in range(STEPS)]
    same(made, losses, by_hand(lion(), 12))
