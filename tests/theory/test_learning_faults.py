"""Faults in what is carried: what becomes of the numbers, and which checks see it; without a fault none tells."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError
from simulator.learning.checks import CHECKS, is_sum
from simulator.learning.faults import flipped
from simulator.records.learning import Learning
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.training import EVERY_STRATEGY, SHARDED, WITHOUT_SERVERS

MODEL = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 64}
STEPS, AT = 8, 4


def learned(*faults: dict[str, Any], **changed: Any) -> Learning:
    """Train with some faults; the same training is simulated once."""
    return _learned(json.dumps([faults, changed], sort_keys=True))


@cache
def _learned(asked: str) -> Learning:
    faults, changed = json.loads(asked)
    training = {"model": MODEL, "seq_len": 16, "micro_batch_size": 4, "numerics": True, "steps": STEPS}
    training |= {"precision": "fp32", "algorithm": "direct", "faults": [{"step": AT} | fault for fault in faults]}
    cluster = {"topology": "star_100g", "world_size": 4}
    told = simulate(load_scenario({"name": "x", "seed": 3, "cluster": cluster, "training": training | changed}))
    learning: Learning | None = told.report.learning  # type: ignore[union-attr]
    assert learning is not None
    return learning


def fault_of(what: str, bit: int) -> dict[str, Any]:
    return {"what": what} | ({"bit": bit} if what == "bit_flip" else {})


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("sharding", [*EVERY_STRATEGY, {"strategy": "zero3", "shard_size": 2}])
@pytest.mark.one_of(3)
def test_nothing_is_seen_where_nothing_is_wrong(sharding: Any, precision: str) -> None:
    if (sharding, precision) == ("parameter_server", "fp16"):
        pytest.skip("servers do not scale")
    told = learned(sharding=sharding, precision=precision)
    assert (told.seen, told.stopped) == ({}, "")


@pytest.mark.parametrize("algorithm", ["ring", "naive", "tree", "double_binary_tree", "halving_doubling"])
@pytest.mark.one_of(5)
def test_every_algorithms_sums_are_sums(algorithm: str) -> None:
    for reduce in ("float16", "bfloat16", "float32"):
        precision = {"params": "float32", "reduce": reduce}
        assert learned(algorithm=algorithm, sharding="ddp", precision=precision).seen == {}, reduce


@pytest.mark.parametrize("what", ["dropped", "doubled", "stale", "bit_flip"])
@pytest.mark.parametrize("sharding", EVERY_STRATEGY)
@pytest.mark.one_of(3)
def test_a_wrong_transfer_shows_in_its_sum_and_from_its_step_on_in_the_loss(sharding: str, what: str) -> None:
    clean, faulty = learned(sharding=sharding), learned(fault_of(what, 28), sharding=sharding)
    assert faulty.seen["sums"] == AT
    assert faulty.losses[: AT + 1] == clean.losses[: AT + 1]
    assert all(norm != other for norm, other in zip(faulty.gradient_norms[AT:], clean.gradient_norms[AT:], strict=True))
    # A bit of one number may move every loss by less than its last digit.
    assert what == "bit_flip" or faulty.losses[AT + 1 :] != clean.losses[AT + 1 :]
    # The curve alone would not tell: all but a flipped exponent stay within a thousandth of it.
    if what != "bit_flip":
        assert faulty.losses[-1] == pytest.approx(clean.losses[-1], rel=1e-2)
        assert set(faulty.seen) <= {"sums", "norm"}


@pytest.mark.parametrize("algorithm", ["ring", "tree", "naive", "halving_doubling", "double_binary_tree"])
@pytest.mark.parametrize("what", ["dropped", "stale", "bit_flip"])
@pytest.mark.one_of(3)
def test_every_algorithm_carries_a_fault(algorithm: str, what: str) -> None:
    assert learned(fault_of(what, 29), algorithm=algorithm, sharding="ddp").seen["sums"] == AT


def test_parameters_that_arrive_wrong_are_seen_too() -> None:
    """A rank that computes with a wrong table, for one step: gathered anew it is right again."""
    at = {"what": "bit_flip", "bit": 29, "collective": "gather layer 0 forward 0", "transfer": 2}
    told = learned(at, sharding="zero3")
    assert told.seen["sums"] == AT
    updated = learned(at | {"collective": "gather parameters"}, sharding="zero1")
    assert updated.seen["sums"] == AT
    assert updated.seen["copies"] == AT


def test_a_copy_that_arrives_twice_is_a_copy() -> None:
    twice = {"what": "doubled", "collective": "gather layer 0 forward 0"}
    assert learned(twice, sharding="zero3") == learned(sharding="zero3")


@pytest.mark.parametrize("sharding", EVERY_STRATEGY)
def test_infinity_that_nobody_looks_for_ends_the_training(sharding: str) -> None:
    told = learned({"what": "overflow", "rank": 2}, sharding=sharding)
    assert told.seen["finite"] == AT
    assert np.isfinite(told.losses[: AT + 1]).all()
    assert not np.isfinite(told.losses[AT + 1 :]).any()


@pytest.mark.parametrize("sharding", EVERY_STRATEGY)
def test_a_rank_that_stops_leaves_the_others_waiting_for_it_by_name(sharding: str) -> None:
    told = learned({"what": "stopped", "rank": 2}, sharding=sharding)
    assert told.seen == {"watchdog": AT}
    assert len(told.losses) == len(told.ended_s) == AT
    assert told.losses == learned(sharding=sharding).losses[:AT]
    assert "rank 2 has stopped: deadlock at" in told.stopped
    assert "which rank 2 has not reached" in told.stopped


# ------------------------------------------------------------------------------------------- the overflow not told


@pytest.mark.parametrize("sharding", WITHOUT_SERVERS)
def test_an_overflow_that_all_are_told_of_is_skipped_by_all(sharding: str) -> None:
    told = learned({"what": "overflow", "rank": 1}, sharding=sharding, precision="fp16")
    assert told.skipped == (AT,)
    assert told.loss_scales == (65536.0,) * (AT + 1) + (32768.0,) * (STEPS - AT - 1)
    assert told.seen == {}


@pytest.mark.parametrize("sharding", SHARDED)
def test_a_sharded_run_that_does_not_tell_diverges_in_silence(sharding: str) -> None:
    """Only the owner of the shard sees infinity: it skips, the others step, and no loss tells."""
    facts: dict[str, Any] = {"sharding": sharding, "precision": "fp16"}
    told, forgot = (
        learned({"what": "overflow", "rank": 1}, **facts, loss_scaling={"shared": shared}) for shared in (True, False)
    )
    assert forgot.losses[: AT + 1] == told.losses[: AT + 1]
    assert forgot.losses[AT + 1] != told.losses[AT + 1]
    assert forgot.losses[-1] == pytest.approx(told.losses[-1], rel=0.02)
    assert set(forgot.seen) == {"scales"}


def test_where_every_rank_has_the_whole_gradient_nobody_needs_to_tell() -> None:
    facts: dict[str, Any] = {"sharding": "ddp", "precision": "fp16"}
    told, silent = (
        learned({"what": "overflow", "rank": 1}, **facts, loss_scaling={"shared": shared}) for shared in (True, False)
    )
    assert replace(silent, ended_s=()) == replace(told, ended_s=())
    assert silent.ended_s < told.ended_s


def test_other_rules_of_scaling_are_followed() -> None:
    """DeepSpeed lets the first overflow pass; a static scale stays; ranks of an interval grow."""
    at = {"what": "overflow", "rank": 1}
    rules = {name: learned(at, at | {"step": AT + 2}, precision="fp16", loss_scaling=name).loss_scales
             for name in ("dynamic", "deepspeed", {"rule": "static"}["rule"])}  # fmt: skip
    assert rules["static"] == (65536.0,) * STEPS
    assert rules["dynamic"][-1] == 16384.0
    assert rules["deepspeed"][-1] == 32768.0
    grown = learned(precision="fp16", loss_scaling={"rule": "dynamic", "start": 8, "interval": 3}).loss_scales
    assert grown == (8.0,) * 3 + (16.0,) * 3 + (32.0,) * 2


# ------------------------------------------------------------------------------------------------------------ pieces


def test_every_check_is_described() -> None:
    assert list(CHECKS) == ["sums", "copies", "scales", "finite", "norm", "loss", "watchdog"]


def test_a_turned_bit_is_one_bit() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        sent = np.arange(1, 5).astype(dtype)
        for bit in range(8 * sent.itemsize):
            before, after = (x.view(f"u{x.itemsize}") for x in (sent, flipped(sent, 2, bit)))
            assert [int(a ^ b).bit_count() for a, b in zip(before, after, strict=True)] == [0, 0, 1, 0]


def test_a_sum_is_one_to_within_rounding_and_not_beyond() -> None:
    parts = [np.random.default_rng(i).standard_normal(1000).astype(np.float32) for i in range(8)]
    total = np.zeros(1000, np.float32)
    for part in parts:
        total += part
    assert is_sum(parts, total)
    assert not is_sum(parts[1:], total)
    wrong = total.copy()
    wrong[17] *= np.float32(1 + 1e-4)
    assert not is_sum(parts, wrong)
    assert is_sum([np.array([np.inf]), np.array([1.0])], np.array([np.inf]))


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({"what": "dropped", "collective": "bucket"}, "training.faults.0.collective: got 'bucket'; one of gather"),
        ({"what": "bit_flip", "bit": 32}, "training.faults.0.bit: got 32; 'scatter .* carries float32, 0 .. 31"),
        ({"what": "bit_flip", "element": 10**6}, "training.faults.0.element: got 1000000; 'scatter"),
        ({"what": "dropped", "transfer": 10**6}, "training.faults.0.transfer: got 1000000; 'scatter"),
    ],
)
def test_a_transfer_that_is_not_there_is_told(fault: dict[str, Any], line: str) -> None:
    with pytest.raises(ScenarioError, match=line):
        learned(fault, sharding="zero3")


def test_a_fault_on_the_way_back_from_servers_is_a_workers_own() -> None:
    for what in ("bit_flip", "dropped"):
        told = learned(fault_of(what, 29) | {"collective": "pull bucket 0 0"}, sharding="parameter_server")
        assert told.seen["copies"] == AT, what
        assert told.losses != learned(sharding="parameter_server").losses


def test_whoever_stops_first_ends_it() -> None:
    told = learned({"what": "stopped", "rank": 1, "step": 4}, {"what": "stopped", "rank": 2, "step": 2}, sharding="ddp")
    assert (len(told.losses), told.seen) == (2, {"watchdog": 2})
    assert "rank 2 has stopped" in told.stopped


def test_a_scale_that_can_fall_no_further_ends_the_training_in_words() -> None:
    faults = [{"step": step, "what": "overflow", "rank": 1} for step in range(4)]
    told = learned(*faults, precision="fp16", loss_scaling={"rule": "deepspeed", "start": 1})
    assert "loss scale of 1, the least that is allowed" in told.stopped
    assert len(told.losses) < STEPS


def test_nobody_sends_anything_alone() -> None:
    data = {"name": "x", "cluster": {"topology": "dgx_a100", "world_size": 1}}
    training = {"model": MODEL, "seq_len": 16, "numerics": True, "sharding": "zero1", "offload": "optimizer"}
    training |= {"faults": [{"step": 0, "what": "dropped"}]}
    with pytest.raises(ScenarioError, match="a single rank sends no transfers"):
        simulate(load_scenario(data | {"training": training}))
