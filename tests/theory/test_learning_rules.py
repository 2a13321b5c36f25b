"""Rules of training that PyTorch documents, on a played step: clipping, optimizers, dropout, one table at both ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.training import Training
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.dropout import Draw
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, Rule, Sgd, fresh
from simulator.numerics.optimizer import step as optimizer_step
from simulator.step.learning_spec import TrainingTask
from simulator.step.precision import Precision
from tests.training import SHARDED, WITHOUT_SERVERS, play, step

TIED = Transformer("tied", 2, 16, 2, 2, 8, 64, 32, 8, tied=True)
DOUBLE = Precision(params="float64").resolved()


def begun(strategy: str, ranks: int = 4, rule: Rule | None = None, shape: Transformer = TIED, **facts: Any) -> Training:
    facts = {"precision": DOUBLE, "seq_len": 8, "micro_batch_size": 2, "algorithm": "direct"} | facts
    made = step(strategy, shape, **facts)
    played = play(made, ranks)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline, rule or Adam(), seed=5)
    return start(setting, task.initial(setting.gpt, 0))


def rows(number: int, count: int = 8) -> Array:
    return task.sequences(0, number, count, 9, 32)


def by_hand(rule: Rule, clip: float | None, steps: int = 4) -> dict[str, Array]:
    """A plain loop over the whole batch on one rank."""
    gpt = Gpt(32, 16, 2, 8, 2, arithmetic("float64"), tied=True)
    parameters = {unit: dict(own) for unit, own in task.initial(gpt, 0).items()}
    flat = {name: value for own in parameters.values() for name, value in own.items()}
    states = {name: fresh(rule, value) for name, value in flat.items()}
    for number in range(steps):
        _, found = gpt.gradients(parameters, rows(number))
        norm = np.sqrt(sum((g**2).sum() for g in found.values()))
        factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        for name, value in flat.items():
            optimizer_step(rule, value, factor * found[name], states[name])
    return flat


@pytest.mark.parametrize("rule", [Adam(decay=0.1), Sgd(0.3), Sgd(0.1, 0.9), Sgd(0.1, 0.9, 0.01)], ids=repr)
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
@pytest.mark.one_of(3)
def test_every_sharding_steps_as_one_rank_does(strategy: str, clip: float | None, rule: Rule) -> None:
    """A table that is embedding and head gets its gradient from both; the norm is of everything."""
    made = begun(strategy, rule=rule, clip_norm=clip)
    norms = [made.step(rows(number)).norm for number in range(4)]
    if clip is not None:
        assert norms[0] > clip  # so that it is clipped
    expected = by_hand(rule, clip)
    found = made.parameters()
    assert set(found) == set(expected)
    for name, value in expected.items():
        # Adam turns the rounding of a key bias, whose gradient is zero, into moves.
        keep = np.s_[:16] if name.endswith("qkv.bias") else np.s_[:]
        np.testing.assert_allclose(found[name][keep], value[keep], rtol=0, atol=1e-9, err_msg=name)


def test_clipping_changes_no_bit_between_shardings() -> None:
    single = Precision(params="float32").resolved()
    plain = begun("ddp", clip_norm=0.3, precision=single)
    losses = [plain.step(rows(n)).loss for n in range(6)]
    for strategy in SHARDED:
        made = begun(strategy, clip_norm=0.3, precision=single, bucket_size=2**12)
        assert [made.step(rows(n)).loss for n in range(6)] == losses
        found = made.parameters()
        assert all((found[name] == value).all() for name, value in plain.parameters().items())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
@pytest.mark.one_of(3)
def test_any_number_of_ranks_learns_the_same_batch(strategy: str, ranks: int) -> None:
    made = begun(strategy, ranks, micro_batch_size=8 // ranks)
    losses = [made.step(rows(n)).loss for n in range(3)]
    alone = begun("ddp", 1, micro_batch_size=8)
    np.testing.assert_allclose(losses, [alone.step(rows(n)).loss for n in range(3)], rtol=1e-12)


@pytest.mark.parametrize("shard_size", [1, 2, 4])
def test_copies_of_the_states_may_be_of_any_size(shard_size: int) -> None:
    made, whole = begun("zero3", shard_size=shard_size), begun("ddp")
    np.testing.assert_allclose(*([one.step(rows(n)).loss for n in range(3)] for one in (made, whole)), rtol=1e-12)


def test_the_hosts_update_is_the_gpus() -> None:
    from simulator.step.training_spec import Offload

    for strategy in SHARDED:
        here, there = begun(strategy), begun(strategy, offload=Offload(what="optimizer"))
        assert [here.step(rows(n)).loss for n in range(3)] == [there.step(rows(n)).loss for n in range(3)]


# ---------------------------------------------------------------------------------------------------------- dropout


def dropping(strategy: str = "ddp", **facts: Any) -> Training:
    return begun(strategy, dropout=True, lesson=TrainingTask(dropout=0.2), **facts)


def test_what_is_kept_is_a_share_and_grows_so_that_the_mean_stays() -> None:
    draw = Draw(0.25, (1, 2))
    mask = draw.mask((1000, 100))
    assert mask is not None
    assert mask.dtype == np.bool_
    # 100,000 draws: five deviations are 0.7 %.
    assert mask.mean() == pytest.approx(0.75, abs=0.007)
    assert np.unique(draw.factor(mask, np.dtype(np.float64))).tolist() == [0.0, 1 / 0.75]
    other = draw.at(1).mask((1000, 100))
    assert other is not None
    assert (mask == other).mean() == pytest.approx(0.75**2 + 0.25**2, abs=0.007)


def test_dropout_differs_between_ranks_layers_and_steps_and_not_between_runs() -> None:
    made = dropping()
    draws = {(r, u, m, b): made.setting.draw(r, u, m, b).seed for r in (0, 1) for u in made.setting.gpt.units
             for m in (0, 1) for b in (0, 1)}  # fmt: skip
    assert len(set(draws.values())) == len(draws)
    assert [dropping().step(rows(0)).loss] == [made.step(rows(0)).loss]
    assert begun("ddp").step(rows(0)).loss != dropping().step(rows(0)).loss


@pytest.mark.parametrize("attention", ["standard", "flash"])
@pytest.mark.parametrize(
    "checkpointing", ["full", "sqrt", "attention", "selective_op", "feed_forward", "activation", (1,)]
)
@pytest.mark.one_of(3)
def test_what_is_computed_again_leaves_out_the_same(checkpointing: object, attention: str) -> None:
    plain, again = (dropping(attention=attention, activation_checkpointing=c) for c in ("none", checkpointing))
    assert [plain.step(rows(n)).loss for n in range(3)] == [again.step(rows(n)).loss for n in range(3)]
    assert all((again.parameters()[name] == value).all() for name, value in plain.parameters().items())


@pytest.mark.parametrize("strategy", SHARDED)
def test_no_sharding_changes_what_is_left_out(strategy: str) -> None:
    one, other = dropping(), dropping(strategy)
    assert [one.step(rows(n)).loss for n in range(3)] == [other.step(rows(n)).loss for n in range(3)]


def test_flash_and_standard_attention_leave_out_the_same() -> None:
    losses = [[made.step(rows(n)).loss for n in range(3)] for made in map(_attending, ("standard", "flash"))]
    np.testing.assert_allclose(*losses, rtol=1e-12)


def _attending(attention: str) -> Training:
    return dropping(attention=attention)
