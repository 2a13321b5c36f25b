"""Contract of every optimizer: it holds the states that it declares, and its update moves them and takes that long.

An optimizer needs an entry in `UPDATES`: what its update rule reads and writes for each parameter, counted from its
paper, and whether that is all that it computes. Without an entry a test fails. An optimizer that multiplies matrices
(Muon's Newton-Schulz steps) must have these counted in `flops`, so that it cannot pass for one that only streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pytest

from simulator.cluster.build import build
from simulator.model.parameters import total
from simulator.planner.bound import Bounds
from simulator.planner.setting import Setting
from simulator.step.parallelism import Parallelism
from simulator.step.spec import OPTIMIZERS, Precision, Sharding, TrainingStep
from simulator.step.states import states
from simulator.step.strategies import catalog
from tests.training import TINY, play, step


@dataclass(frozen=True, slots=True)
class Update:
    """An update rule.

    Attributes
    ----------
    states : int
        float32 numbers that it keeps for each parameter.
    flops : float
        Multiplications and additions of matrices for each parameter [FLOP]; 0 if it works number by number.
    source : str
    """

    states: int
    flops: float
    source: str


UPDATES: Final = {
    "sgd": Update(0, 0.0, "p -= rate g"),
    "momentum": Update(1, 0.0, "Polyak 1964: v = m v + g; p -= rate v"),
    "adam": Update(2, 0.0, "Kingma & Ba, arXiv:1412.6980, algorithm 1: first and second moment"),
    "adafactor": Update(0, 0.0, "Shazeer & Stern, arXiv:1804.04235: rows and columns of the second moment alone"),
}
# Working parameters and gradients in bfloat16, a master copy in float32 [B].
PRECISION, PARAMETER, GRADIENT, MASTER, STATE = Precision(), 2, 2, 4, 4
RANKS = 4


def test_every_optimizer_is_counted() -> None:
    assert set(UPDATES) == set(OPTIMIZERS)
    # The simulator has no matrices in an update yet: an optimizer that needs them cannot be declared by a line.
    assert not any(update.flops for update in UPDATES.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_states_and_traffic_are_those_of_the_update_rule(name: str, strategy: str) -> None:
    made = TrainingStep(TINY, 32, 1, optimizer=OPTIMIZERS[name], sharding=Sharding(strategy), precision=PRECISION)
    elements = 1000 * RANKS
    found = states(made, catalog.find(strategy), [(elements, RANKS)])
    own = elements if strategy == "ddp" else elements // RANKS
    kept = UPDATES[name].states * STATE
    assert found.updated == own
    # Every state, gradient and master copy is read once, and every state and master copy written once at least.
    assert found.update_read >= own * (kept + GRADIENT + MASTER)
    assert found.update_written >= own * (kept + MASTER)
    master = 0 if strategy == "zero3" else MASTER  # its shard of the parameters is the master copy
    assert found.optimizer == own * (kept + master)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_the_update_takes_its_traffic_at_hbms_bandwidth_at_least(name: str, strategy: str) -> None:
    made = replace(step(strategy, TINY), optimizer=OPTIMIZERS[name])
    played = play(made, RANKS)
    (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
    kept = UPDATES[name].states * STATE
    elements = total(TINY) // (1 if strategy == "ddp" else RANKS)
    roof = elements * (2 * kept + GRADIENT + 2 * MASTER) / played.cluster.gpus[0].hbm_bandwidth
    assert span.end - span.start >= roof


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_planners_bound_is_the_update_that_is_simulated_or_less(name: str) -> None:
    """The bound asks for the update's kernels by itself, so a new kernel would leave it loose, or too long."""
    made = replace(step("zero1", TINY), optimizer=OPTIMIZERS[name], parallelism=Parallelism())
    played = play(made, RANKS)
    (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
    setting = Setting(
        gpus=RANKS, tp=1, pp=1, cp=1, ep=1, schedule="1f1b", virtual_stages=1, sharding="zero1", shard_size=None,
        micro_batch=2, micro_batches=1, checkpointing="none", offload="none",
    )  # fmt: skip
    (update,) = Bounds(build("star_100g", RANKS)).of(setting, made).updates
    assert 0.5 * (span.end - span.start) <= update <= (span.end - span.start) * (1 + 1e-9)
