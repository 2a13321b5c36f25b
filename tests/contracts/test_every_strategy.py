"""Every sharding strategy keeps what its STRATEGY declares: numbers, bytes, memory, kernels, units gathered ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.step.spec import Gathering
from simulator.step.strategies.strategy import STRATEGIES
from simulator.testing import check_sharding
from simulator.testing import sharding_laws as laws
from simulator.testing.law import BrokenLawError

# Options with a contract elsewhere: copies of the states (tests/theory/test_training_communication.py), and servers
# that wait for nobody (tests/theory/test_servers_that_do_not_wait.py).
ELSEWHERE = {"shard_size", "asynchronous", "staleness"}
every_strategy = pytest.mark.parametrize("name", STRATEGIES.names())


@every_strategy
def test_every_option_is_tried(name: str) -> None:
    assert STRATEGIES.find(name).options <= set(laws.VARIED) | ELSEWHERE


@every_strategy
def test_a_strategy_learns_what_ddp_learns(name: str) -> None:
    for options in laws.settings_of(name):
        # Nobody carries the numbers of whole tensors yet.
        assert laws.learns_what_ddp_learns(name, options) is ("keep_below" not in options)


@every_strategy
def test_a_strategy_learns_what_ddp_learns_beside_a_slow_rank(name: str) -> None:
    """The other ranks begin the next micro-batch while the slow rank computes the last."""
    assert laws.learns_what_ddp_learns(name, {}, laws.SLOW)


def test_a_strategy_that_forgets_to_gather_what_was_updated_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that came out faster than stage one and was seen by no test."""
    forgetful = replace(STRATEGIES.find("zero1"), name="forgetful", gathering=Gathering.NOT_NEEDED)
    found = {name: STRATEGIES.find(name) for name in STRATEGIES.names()} | {"forgetful": forgetful}
    monkeypatch.setattr(STRATEGIES, "by_name", found)
    with pytest.raises(BrokenLawError, match="differs from ddp's by"):
        laws.learns_what_ddp_learns("forgetful", {})


@every_strategy
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_strategy_sends_what_it_declares(name: str, accumulation: int) -> None:
    # No shard of this model is padded, and every setting is counted.
    assert all(laws.sends_its_volume(name, options, accumulation) for options in laws.settings_of(name))


@every_strategy
def test_memory_returns_to_the_declared_states(name: str) -> None:
    for options in laws.settings_of(name):
        laws.returns_to_its_states(name, options)


@every_strategy
def test_states_follow_from_what_is_sharded(name: str) -> None:
    laws.declares_states_of_its_updater(name)


@every_strategy
def test_a_strategy_runs_the_kernels_that_ddp_runs(name: str) -> None:
    for options in laws.settings_of(name):
        laws.runs_the_kernels_of_ddp(name, options)


@every_strategy
def test_gradients_are_sent_in_the_micro_batches_that_are_declared(name: str) -> None:
    laws.sends_gradients_as_declared(name)


@every_strategy
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_so_many_units_are_gathered_ahead_as_are_asked_for(name: str, prefetch: int) -> None:
    assert laws.gathers_ahead(name, prefetch) is STRATEGIES.find(name).shards_parameters


def test_a_user_gets_the_same_laws_from_a_single_function() -> None:
    checked = check_sharding("zero3")
    assert checked.holds, "\n".join(checked.lines())
    assert all(result.cases for result in checked.results)
