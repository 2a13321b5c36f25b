"""Every sharding strategy keeps what its STRATEGY declares: numbers, bytes, memory, kernels, units gathered ahead."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.model.parameters import modules
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.optimizer import Adam
from simulator.records.operation import Collective, Computation, Compute, Exchange
from simulator.step.spec import Gathering, GradientSync, Precision, State, Updater
from simulator.step.states import even_part, states
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.units import units
from tests.training import Played, play, step

RANKS = 4
# Every module's parameters can be cut into four parts, so that padding adds nothing.
EVEN = Transformer("even", 6, 16, 2, 2, 8, 64, 32, 8)
SHALLOW = replace(EVEN, num_layers=3)
DOUBLE = Precision("float64", "float64", "float64", None, "float64")
HALF = Precision(reduce="bfloat16")
# Options that change what is communicated; a strategy is tried with those that it listens to.
VARIED: dict[str, tuple[Any, ...]] = {
    "reshard_after_forward": (False, 2),
    "prefetch": (0, 3),
    "layers_per_unit": (4,),
    "keep_below": (100,),
    "gradient_sync": ("last",),
    "servers": (2,),
    "servers_on": ("workers",),
    "bucket_size": (2**10,),
}
# Options with a contract elsewhere: copies of the states (tests/theory/test_training_communication.py), and servers
# that wait for nobody (tests/theory/test_servers_that_do_not_wait.py).
ELSEWHERE = {"shard_size", "asynchronous", "staleness"}
every_strategy = pytest.mark.parametrize("name", STRATEGIES.names())


@cache
def trained(name: str, facts: tuple[tuple[str, Any], ...] = ()) -> tuple[list[float], dict[str, Array]]:
    """Losses and parameters of a real training in float64."""
    made = step(name, SHALLOW, precision=DOUBLE, seq_len=8, accumulation=2, algorithm="direct", **dict(facts))
    played = play(made, RANKS)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline, Adam(), seed=5)
    training = start(setting, task.initial(setting.gpt, 0))
    rows = (task.sequences(0, number, played.plan.tokens // 8, 9, EVEN.vocab_size) for number in range(2))
    return [training.step(tokens).loss for tokens in rows], training.parameters()


def settings_of(name: str) -> list[dict[str, Any]]:
    """The defaults, and one option after the other that the strategy listens to."""
    options = STRATEGIES.find(name).options
    return [{}, *({option: value} for option in sorted(options & set(VARIED)) for value in VARIED[option])]


def learns_as_ddp_does(name: str, **facts: Any) -> None:
    losses, parameters = trained(name, tuple(facts.items()))
    expected_losses, expected = trained("ddp")
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    assert set(parameters) == set(expected)
    for parameter, value in expected.items():
        # The key bias has a gradient of zero, whose rounding Adam turns into moves.
        keep = np.s_[: EVEN.hidden_size] if parameter.endswith("qkv.bias") else np.s_[:]
        np.testing.assert_allclose(parameters[parameter][keep], value[keep], rtol=0, atol=1e-9, err_msg=parameter)


@every_strategy
def test_every_option_is_tried(name: str) -> None:
    assert STRATEGIES.find(name).options <= set(VARIED) | ELSEWHERE


@every_strategy
def test_a_strategy_learns_what_ddp_learns(name: str) -> None:
    for facts in settings_of(name):
        if "keep_below" not in facts:  # whose numbers nobody carries yet
            learns_as_ddp_does(name, **facts)


def test_a_strategy_that_forgets_to_gather_what_was_updated_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that came out faster than stage one and was seen by no test."""
    forgetful = replace(STRATEGIES.find("zero1"), name="forgetful", gathering=Gathering.NOT_NEEDED)
    found = {name: STRATEGIES.find(name) for name in STRATEGIES.names()} | {"forgetful": forgetful}
    monkeypatch.setattr(STRATEGIES, "by_name", found)
    with pytest.raises(AssertionError):
        learns_as_ddp_does("forgetful")


def on_the_wire(played: Played) -> float:
    """Elements of all transfers of gradients and parameters."""
    logs = [log for log in played.timeline.logs if not log.collective.startswith("sum gradient norm")]
    return float(sum(log.nbytes.sum() for log in logs)) / 2  # of two bytes each


@every_strategy
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_strategy_sends_what_it_declares(name: str, accumulation: int) -> None:
    strategy = STRATEGIES.find(name)
    for facts in settings_of(name):
        made = step(name, EVEN, precision=HALF, accumulation=accumulation, **facts)
        played = play(made, RANKS)
        parts = units(made, played.cluster.gpus[0], RANKS, sharded=strategy.shards_parameters)
        assert all(part.elements % RANKS == 0 for part in parts)
        if any(part.resident % RANKS for part in parts):
            continue
        declared = strategy.volume(parts, made.sharding, accumulation, RANKS)
        assert on_the_wire(played) == pytest.approx(declared, rel=1e-12), facts


@every_strategy
def test_memory_returns_to_the_declared_states(name: str) -> None:
    strategy = STRATEGIES.find(name)
    elements = sum(module.elements for module in modules(EVEN))
    for facts in settings_of(name):
        made = step(name, EVEN, accumulation=2, **facts)
        played = play(made, RANKS)
        parts = units(made, played.cluster.gpus[0], RANKS, sharded=strategy.shards_parameters)
        resident = sum(part.resident for part in parts)
        held = states(made, strategy.shards, strategy.updater, [even_part(elements, RANKS)], resident)
        last = {sample.rank: dict(sample.by_category) for sample in played.timeline.memory}
        expected = {"parameters": held.parameters, "optimizer": held.optimizer}
        for categories in last.values():
            assert {c: n for c, n in categories.items() if n} == {c: n for c, n in expected.items() if n}


@every_strategy
def test_states_follow_from_what_is_sharded(name: str) -> None:
    """Adam in mixed precision, bytes a parameter (Rajbhandari et al., table 1): 2 of parameters, 12 of the optimizer.

    Where parameters are sharded their float32 shard is the master copy; where servers update, they keep the twelve.
    """
    strategy, elements = STRATEGIES.find(name), 4000
    held = states(step(name), strategy.shards, strategy.updater, [even_part(elements, RANKS)])
    assert (State.PARAMETERS in strategy.shards) == (strategy.gathering is Gathering.BEFORE_USE)
    parameters = 4 * elements / RANKS if strategy.shards_parameters else 2 * elements
    optimizer = {Updater.EVERY_RANK: 12 * elements, Updater.OWNERS: 12 * elements / RANKS, Updater.SERVERS: 0}
    together = optimizer[strategy.updater] + 2 * elements
    if strategy.shards_parameters:
        together = optimizer[strategy.updater]
    assert held.parameters == parameters
    assert held.parameters + held.optimizer == together


def kernels(played: Played) -> list[tuple[str, float, float]]:
    kinds = ("forward", "backward", "recompute")
    return sorted((s.name, s.flops, s.nbytes) for s in played.timeline.spans if s.rank == 0 and s.kind in kinds)


@every_strategy
def test_a_strategy_runs_the_kernels_that_ddp_runs(name: str) -> None:
    expected = kernels(play(step("ddp", EVEN, accumulation=2, checkpointing="full"), RANKS))
    for facts in settings_of(name):
        assert kernels(play(step(name, EVEN, accumulation=2, checkpointing="full", **facts), RANKS)) == expected


@every_strategy
def test_gradients_are_sent_in_the_micro_batches_that_are_declared(name: str) -> None:
    strategy, accumulation = STRATEGIES.find(name), 3
    played = play(step(name, EVEN, accumulation=accumulation), RANKS)
    sends = (Exchange.ALL_REDUCE, Exchange.REDUCE_SCATTER, Exchange.PUSH)
    acts = [op.act for op in played.plan.program.collectives().values() if op.act is not None]
    micros = {act.micro for act in acts if act.effect in sends}
    assert micros == (set(range(accumulation)) if strategy.sending is GradientSync.EVERY else {accumulation - 1})


def starts(played: Played, *effects: Computation | Exchange) -> list[float]:
    """When rank 0 begins each operation on layers, by what it does; root and ends of the model aside."""
    acts = {op.name: op.act for op in played.plan.program.ranks[0] if isinstance(op, Compute | Collective)}
    spans = [(span.start, acts[span.name]) for span in played.timeline.spans if span.rank == 0]
    return sorted(t for t, act in spans if act and act.effect in effects and act.units[0].startswith("layer"))


@every_strategy
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_so_many_units_are_gathered_ahead_as_are_asked_for(name: str, prefetch: int) -> None:
    """Counted in the log: at each layer's start, gathers begun, less its own and those of the layers before it.

    The last layer stays for its backward pass, so that one needs no gather. Gathers follow each other on one stream, so
    the first layer begins while those ahead of it still wait.
    """
    played = play(step(name, EVEN, prefetch=prefetch), RANKS)
    gathers = starts(played, Exchange.ALL_GATHER)
    if STRATEGIES.find(name).gathering is not Gathering.BEFORE_USE:
        assert gathers == []
        return
    forward, backward = starts(played, Computation.FORWARD), starts(played, Computation.BACKWARD)
    layers = EVEN.num_layers
    ahead = [bisect_right(gathers, t) - (n + 1) for n, t in enumerate(forward[: layers - prefetch])]
    assert ahead[0] <= prefetch
    assert ahead[1:] == [prefetch] * len(ahead[1:])
    ahead = [bisect_right(gathers, t) - (layers + n) for n, t in enumerate(backward[: layers - prefetch])]
    assert ahead == [prefetch] * len(ahead)
