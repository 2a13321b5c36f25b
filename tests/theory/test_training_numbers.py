"""A step that is played trains a real model: the same numbers whatever is sharded, and PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning import exchange, updating
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.state import Rank
from simulator.learning.training import Training
from simulator.numerics import task
from simulator.numerics.loss_scaling import Scale, grad_scaler
from simulator.numerics.optimizer import Adam
from simulator.numerics.optimizer import step as adam_step
from simulator.numerics.packing import unpack
from simulator.records.operation import Computation, Exchange, NumericAction
from simulator.records.timeline import Span
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.step.learning_spec import TrainingTask
from simulator.step.precision import Precision
from tests.golden.gpt import farthest, golden, initial, tokens, update_difference
from tests.golden.half import SHAPE, half
from tests.training import EVERY_STRATEGY, WITHOUT_SERVERS, PlayedStep, play, step


def training(
    strategy: str, ranks: int = 4, dtype: str = "float32", topology: Any = "star_100g", **facts: Any
) -> Training:
    precision = Precision(params=dtype, grads=dtype, reduce=facts.pop("reduce", dtype), master=None, matmul=dtype)
    batch = 16 // ranks // facts.get("gradient_accumulation_steps", 1)
    made = step(strategy, SHAPE, precision=precision, seq_len=32, micro_batch_size=batch, **facts)
    played = play(made, ranks, topology)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline)
    return start(setting, initial(setting.gpt))


Trained = tuple[list[float], list[float], dict[str, Array]]
# Steps after which trainings are held to each other: a bit that differs in one update differs in the next passes, in
# Adam's moments and in all updates that follow.
FEW = 4


def trained(strategy: str, steps: int = 20, **facts: Any) -> Trained:
    made = training(strategy, **facts)
    told = [made.step(tokens(number)) for number in range(steps)]
    return [one.loss for one in told], [one.norm for one in told], made.parameters()


@cache
def once(strategy: str, steps: int, **facts: Any) -> Trained:
    """Train as `trained` does, one time for each asked training."""
    return trained(strategy, steps, **facts)


@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
@pytest.mark.one_of(4)
def test_four_played_ranks_train_as_ddp_does(strategy: str) -> None:
    loss, norm, final = trained(strategy)
    reference = golden("fp32_ddp")
    assert np.abs(np.array(loss) - reference["loss"]).max() <= 3e-6
    np.testing.assert_allclose(norm, reference["gnorm"], rtol=1e-6)
    assert farthest(final, reference) <= 1e-5


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 1), ("zero3", 1), ("zero3", 2), ("zero1", 4)])
def test_in_float64_it_is_pytorch_to_the_last_digits(strategy: str, ranks: int) -> None:
    made = training(strategy, ranks, "float64")
    told = [made.step(tokens(number)) for number in range(20)]
    reference = golden("fp64_single")
    np.testing.assert_allclose([one.loss for one in told], reference["loss"], rtol=1e-12)
    np.testing.assert_allclose([one.norm for one in told], reference["gnorm"], rtol=1e-12)
    found = made.parameters()
    size = max(float(np.abs(reference[f"final/{name}"]).max()) for name in found)
    assert farthest(found, reference) <= 1e-12 * size


def same_bits(one: Trained, other: Trained) -> bool:
    """After all steps: every loss, and every bit of every parameter."""
    return one[0] == other[0] and all(one[2][name].tobytes() == value.tobytes() for name, value in other[2].items())


@pytest.mark.parametrize("attention", ["standard", "flash"])
@pytest.mark.parametrize(
    "checkpointing", ["full", 2, (1,), "sqrt", "attention", "selective_op", "feed_forward", "activation"], ids=str
)
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
@pytest.mark.one_of(3)
def test_what_is_computed_again_changes_no_bit(strategy: str, checkpointing: object, attention: str) -> None:
    plain, again = (
        once(strategy, FEW, activation_checkpointing=c, attention=attention) for c in ("none", checkpointing)
    )
    assert same_bits(plain, again)


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_the_same_training_twice_gives_the_same_bits(strategy: str) -> None:
    assert same_bits(trained(strategy, FEW), trained(strategy, FEW))


@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
def test_micro_batches_add_up_to_the_batch(strategy: str) -> None:
    """Four micro-batches of one sequence are a batch of four, but for rounding."""
    whole, cut = trained(strategy, 2), trained(strategy, 2, gradient_accumulation_steps=4)
    np.testing.assert_allclose(cut[0], whole[0], rtol=1e-6)
    np.testing.assert_allclose(cut[1], whole[1], rtol=1e-5)


@pytest.mark.parametrize("bucket_size", [2**12, 2**17, 2**30])
@pytest.mark.one_of(3)
def test_in_rank_order_no_sharding_and_no_bucketing_changes_a_bit(bucket_size: int) -> None:
    """`direct` adds every element in rank order, however it is cut."""
    plain = once("ddp", FEW, algorithm="direct")
    for strategy in WITHOUT_SERVERS:
        assert same_bits(plain, once(strategy, FEW, algorithm="direct", bucket_size=bucket_size)), strategy


@pytest.mark.parametrize("bucket_size", [2**12, 2**17, 2**30])
def test_a_ring_gives_the_same_bits_where_buckets_are_equal(bucket_size: int) -> None:
    """All units have a multiple of four elements, so nothing is padded, and chunks are the shards."""
    plain = once("ddp", FEW, algorithm="ring", bucket_size=bucket_size)
    for strategy in ("zero1", "zero2"):
        assert same_bits(plain, once(strategy, FEW, algorithm="ring", bucket_size=bucket_size)), strategy


@pytest.mark.parametrize("facts", [{"prefetch": 3}, {"reshard_after_forward": False}, {"reshard_after_forward": 2}])
def test_when_parameters_are_gathered_changes_no_bit(facts: dict[str, Any]) -> None:
    assert same_bits(once("zero3", FEW, algorithm="ring"), once("zero3", FEW, algorithm="ring", **facts))


def test_a_ring_adds_in_another_order() -> None:
    direct, ring, cut = (trained("ddp", 4, **facts) for facts in (
        {"algorithm": "direct"}, {"algorithm": "ring"}, {"algorithm": "ring", "bucket_size": 2**12}
    ))  # fmt: skip
    assert not same_bits(direct, ring)
    assert not same_bits(ring, cut)


@pytest.mark.parametrize("algorithm", ["naive", "tree", "double_binary_tree", "halving_doubling"])
def test_every_algorithm_trains_alike_but_for_rounding(algorithm: str) -> None:
    loss, norm, _ = trained("ddp", 5, algorithm=algorithm)
    assert np.abs(np.array(loss) - golden("fp32_ddp")["loss"][:5]).max() <= 3e-6
    np.testing.assert_allclose(norm, golden("fp32_ddp")["gnorm"][:5], rtol=1e-6)


NODES_OF_TWO = {
    "builder": "nodes",
    "options": {
        "gpus": 2, "inside": "nvswitch", "link_bandwidth": "300 GB/s", "hosts": 1, "pcie_bandwidth": "63 GB/s",
        "pcie_latency": "1 us", "nics": 2, "nic_bandwidth": "25 GB/s", "nic_latency": "1 us",
    },
    "gpu": "a100_sxm_80gb",
}  # fmt: skip


@pytest.mark.long
def test_copies_of_the_states_in_nodes_give_the_bits_of_sums_that_go_through_nodes() -> None:
    """Hybrid sharding in nodes against ddp under `hierarchical`: first inside, then across."""
    facts: dict[str, Any] = {"algorithm": "hierarchical", "topology": NODES_OF_TWO}
    for strategy in ("zero1", "zero2", "zero3"):
        assert same_bits(trained("ddp", **facts), trained(strategy, shard_size=2, **facts))


@pytest.mark.parametrize(
    "facts",
    [
        {"shard_size": 2},
        {"shard_size": 2, "gradient_sync": "shard", "gradient_accumulation_steps": 2},
        {"gradient_sync": "last", "gradient_accumulation_steps": 2},
        {"reshard_after_forward": 2},
        {"reshard_after_forward": False},
        {"layers_per_unit": 2},
        {"prefetch": 0},
    ],
    ids=str,
)
@pytest.mark.one_of(3)
def test_finer_sharding_trains_as_ddp_does(facts: dict[str, Any]) -> None:
    loss, norm, final = trained("zero3", **facts)
    reference = golden("fp32_ddp")
    assert np.abs(np.array(loss) - reference["loss"]).max() <= 3e-6
    np.testing.assert_allclose(norm, reference["gnorm"], rtol=1e-6)
    assert farthest(final, reference) <= 1e-5


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"servers": 3},
        {"servers": 2, "servers_on": "workers"},
        {"gradient_accumulation_steps": 2, "bucket_size": 2**16},
    ],
    ids=str,
)
@pytest.mark.one_of(4)
def test_servers_train_as_ddp_does(facts: dict[str, Any]) -> None:
    """Gradients are added as they arrive; parameters after every step are the servers'."""
    made = training("parameter_server", **facts)
    told = [made.step(tokens(number)) for number in range(20)]
    reference = golden("fp32_ddp")
    assert np.abs(np.array([one.loss for one in told]) - reference["loss"]).max() <= 3e-6
    np.testing.assert_allclose([one.norm for one in told], reference["gnorm"], rtol=1e-6)
    assert farthest(made.parameters(), reference) <= 1e-5


def test_who_is_late_is_added_last() -> None:
    """The order of arrival decides the last digits: with rank 0 slow its gradient is added after the others'."""
    even, late = learned(sharding=SERVERS), learned(sharding=SERVERS, stragglers={0: 0.5})
    assert even == learned(sharding=SERVERS)
    assert even.losses != late.losses
    assert even.losses == pytest.approx(late.losses, abs=1e-4)
    # Equal workers arrive in the order of their ranks, which is `direct`'s.
    assert even.losses == learned(sharding="ddp").losses


@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
def test_a_slow_rank_changes_times_and_no_bit(strategy: str) -> None:
    even, late = (learned(slow, sharding=strategy, steps=5) for slow in (None, {2: 0.3}))
    assert even.ended_s < late.ended_s
    assert replace(even, ended_s=()) == replace(late, ended_s=())


def test_a_network_full_of_others_changes_times_and_no_bit() -> None:
    """Two topologies, of which one makes all ranks share a link."""
    topologies = ("star_100g", "h100_ethernet_100g")
    for strategy in WITHOUT_SERVERS:
        alone, crowded = (once(strategy, FEW, algorithm="ring", topology=topology) for topology in topologies)
        assert same_bits(alone, crowded), strategy


POLICIES = (
    "none",
    "full",
    2,
    (1,),
    "sqrt",
    "attention",
    "selective_op",
    "feed_forward",
    "activation",
    (("full", (0,)), ("attention", (2, 3))),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", POLICIES, ids=str)
@pytest.mark.parametrize("attention", ["standard", "flash"])
@pytest.mark.parametrize(("strategy", "dropout"), [("ddp", 0.0), ("zero3", 0.1)])
@pytest.mark.one_of(3)
def test_played_activations_are_the_bytes_that_numpy_keeps_at_every_moment(
    strategy: str,
    dropout: float,
    attention: str,
    checkpointing: object,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two programs that never import each other: one counts tensors of a shape, the other holds arrays."""
    shape = replace(SHAPE, num_layers=4)
    precision = Precision(
        params=dtype, grads="float32", reduce="float32", master=None if dtype == "float32" else "float32", matmul=dtype
    )
    facts: dict[str, Any] = {"precision": precision, "attention": attention, "gradient_accumulation_steps": 2}
    facts |= {"dropout": dropout > 0, "lesson": TrainingTask(dropout=dropout)}
    played = play(
        step(strategy, shape, activation_checkpointing=checkpointing, seq_len=24, micro_batch_size=3, **facts), 2
    )
    gpt = gpt_of(played.plan.step)
    made = start(TrainingContext(gpt, played.plan, played.timeline), task.initial(gpt, 0))
    kept: dict[tuple[int, str], int] = {}
    computed = Training._computed

    def computing(self: Training, rank: Rank, act: NumericAction[Computation], *others: Any) -> None:
        name = f"{act.units[0] if act.units else ''} {act.effect.value} {act.micro}"
        if act.effect is Computation.BACKWARD:
            kept[rank.number, name] = rank.cached_bytes()
        computed(self, rank, act, *others)
        if act.effect is Computation.FORWARD:
            kept[rank.number, name] = rank.cached_bytes()

    monkeypatch.setattr(Training, "_computed", computing)
    made.step(task.sequences(0, 0, 12, 25, 128))
    spans = {(s.rank, s.name): s for s in played.timeline.spans}
    assert len(kept) == 2 * 2 * 2 * 6
    assert [rank.cached_bytes() for rank in made.ranks] == [0, 0]
    for (rank, name), nbytes in kept.items():
        assert activations(played, spans[rank, name]) == nbytes, name


def activations(played: PlayedStep, span: Span) -> int:
    """Of a rank while one of its spans lasts [B]."""
    samples = [m for m in played.timeline.memory if m.rank == span.rank and m.time <= span.start]
    held = dict(samples[-1].by_category)
    return held.get("activations", 0) + held.get("recomputed activations", 0)


def passes_the_gate(made: Training, spoil: Any = None) -> bool:
    """What sound programs differ by, and a little more (tests/golden/README.md)."""
    told = [made.step(tokens(n), spoil) for n in range(20)]
    reference = golden("fp32_ddp")
    near = np.abs(np.array([one.loss for one in told]) - reference["loss"]).max() <= 3e-6
    norms = np.allclose([one.norm for one in told], reference["gnorm"], rtol=1e-6, atol=0)
    return bool(near and norms and farthest(made.parameters(), reference) <= 1e-5)


def multiplied(factor: float) -> Any:
    def spoil(rank: int, unit: str, gradients: dict[str, Array], step: int) -> None:
        for name in gradients:
            gradients[name] = gradients[name] * np.float32(factor)

    return spoil


def zeroed_once() -> Any:
    seen: list[int] = []

    def spoil(rank: int, unit: str, gradients: dict[str, Array], step: int) -> None:
        if rank == 1 and unit == "layer 0":
            seen.append(rank)
            if len(seen) == 6:
                gradient = gradients["blocks.0.fc1.weight"]
                gradient.flat[np.abs(gradient).argmax()] = 0.0

    return spoil


def not_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias of one norm keeps each rank's own gradient."""
    sent, received = exchange.sent, exchange.received
    own: dict[tuple[int, Any], Array] = {}
    name = "blocks.1.ln2.bias"

    def sending(setting: TrainingContext, rank: Rank, op: Any, act: Any) -> Array:
        array = sent(setting, rank, op, act)
        own[rank.number, act] = array.copy()
        return array

    def receiving(setting: TrainingContext, rank: Rank, act: Any, array: Array) -> None:
        if act.effect is Exchange.ALL_REDUCE:
            there, here = (unpack(setting.gpt, x, act.units)["layer 1"][name] for x in (array, own[rank.number, act]))
            there[...] = here * np.float32(4)
        received(setting, rank, act, array)

    monkeypatch.setattr(exchange, "sent", sending)
    monkeypatch.setattr(exchange, "received", receiving)


def reduced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    received = exchange.received

    def receiving(setting: TrainingContext, rank: Rank, act: Any, array: Array) -> None:
        twice = act.effect is Exchange.ALL_REDUCE and "layer 1" in act.units
        received(setting, rank, act, array * np.float32(4) if twice else array)

    monkeypatch.setattr(exchange, "received", receiving)


def decays(monkeypatch: pytest.MonkeyPatch) -> None:
    def decaying(adam: Adam, parameters: Array, gradient: Array, state: Any) -> None:
        parameters *= np.float32(1 - adam.rate * 0.01)
        adam_step(adam, parameters, gradient, state)

    monkeypatch.setattr(updating, "step", decaying)


def test_the_gate_lets_a_right_one_pass() -> None:
    assert passes_the_gate(training("ddp", bucket_size=2**30))
    assert passes_the_gate(training("ddp", gradient_accumulation_steps=4))


@pytest.mark.parametrize(
    "mutant",
    ["sum for mean", "norm's bias not reduced", "one element zeroed once", "float16 on the wire", "epsilon 1e-6",
     "weight decay", "bucket reduced twice", "accumulation not divided"],
)  # fmt: skip
@pytest.mark.one_of(3)
def test_the_gate_stops_a_wrong_one(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"bucket_size": 2**30}
    spoil = None
    if mutant == "sum for mean":
        spoil = multiplied(4)
    elif mutant == "norm's bias not reduced":
        not_reduced(monkeypatch)
    elif mutant == "one element zeroed once":
        spoil = zeroed_once()
    elif mutant == "float16 on the wire":
        facts["reduce"] = "float16"
    elif mutant == "weight decay":
        decays(monkeypatch)
    elif mutant == "bucket reduced twice":
        reduced_twice(monkeypatch)
    elif mutant == "accumulation not divided":
        facts["gradient_accumulation_steps"], spoil = 4, last_multiplied(4)
    made = training("ddp", **facts)
    if mutant == "epsilon 1e-6":
        made.setting = replace(made.setting, rule=Adam(epsilon=1e-6))
    assert not passes_the_gate(made, spoil)


def last_multiplied(factor: float) -> Any:
    """After the last micro-batch, for each backward pass adds to what is there."""
    seen: dict[tuple[int, str], int] = {}

    def spoil(rank: int, unit: str, gradients: dict[str, Array], step: int) -> None:
        seen[rank, unit] = seen.get((rank, unit), 0) + 1
        if seen[rank, unit] % 4 == 0:
            multiplied(factor)(rank, unit, gradients, step)

    return spoil


@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
@pytest.mark.one_of(4)
def test_float16_scales_skips_and_learns_as_pytorch_does(strategy: str) -> None:
    training, told = half(strategy)
    reference = golden("fp16_A")
    assert [one.scale for one in told] == reference["scale"].tolist()
    assert [one.skipped for one in told] == reference["skipped"].astype(bool).tolist()
    assert training.ranks[0].scale.value == float(reference["final_scale"])
    assert {state.steps for rank in training.ranks for state in rank.states.values()} == {
        int(reference["adam_step"][-1])
    }
    assert np.abs(np.array([one.loss for one in told]) - reference["loss"]).max() <= 2e-4
    kept = [n for n, one in enumerate(told) if not one.skipped]
    np.testing.assert_allclose([told[n].norm for n in kept], reference["gnorm"][kept], rtol=2e-3)
    assert update_difference(training.parameters(), reference) <= 0.02


@pytest.mark.parametrize("mutant", ["backoff by four", "infinity made zero", "not unscaled"])
@pytest.mark.one_of(3)
def test_a_wrong_scaler_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = golden("fp16_A")
    scale = Scale(backoff=0.25) if mutant == "backoff by four" else grad_scaler()
    if mutant == "infinity made zero":
        right = updating.unscaled
        zeroing = lambda *given: np.nan_to_num(right(*given), posinf=0.0, nan=0.0)  # noqa: E731
        monkeypatch.setattr(updating, "unscaled", zeroing)
    if mutant == "not unscaled":
        monkeypatch.setattr(updating, "unscaled", lambda gradient, scale, dtype: gradient.astype(dtype))
    training, told = half("ddp", scale=scale)
    same_scales = [one.scale for one in told] == reference["scale"].tolist()
    near = update_difference(training.parameters(), reference) <= 0.02
    close = np.abs(np.array([one.loss for one in told]) - reference["loss"]).max() <= 2e-4
    kept = [n for n, one in enumerate(told) if not one.skipped]
    norms = np.allclose([told[n].norm for n in kept], reference["gnorm"][kept], rtol=2e-3)
    assert not (same_scales and near and close and norms)


def test_what_cannot_be_carried_yet_is_refused() -> None:
    with pytest.raises(ValueError, match="write collectives: played"):
        training("zero3", collectives="auto")
    with pytest.raises(ValueError, match=r"does not support sharding\.keep_below"):
        training("zero3", keep_below=100)


SERVERS = {"strategy": "parameter_server", "servers": 2}


def learned(stragglers: dict[int, float] | None = None, **changed: Any) -> Any:
    model_ = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 64}
    training_ = {"model": {**model_, "tie_word_embeddings": False}, "seq_len": 16, "micro_batch_size": 8}
    training_ |= {"numerics": True, "steps": 30, "precision": "fp32", "algorithm": "direct"} | changed
    cluster = {"topology": "star_100g", "world_size": 4, "stragglers": stragglers or {}}
    return simulate(load_scenario({"name": "x", "seed": 3, "cluster": cluster, "training": training_})).report.learning


def test_a_scenario_learns_from_its_seed_and_tells_a_number_a_step() -> None:
    told = learned()
    assert len(told.losses) == len(told.gradient_norms) == 30
    # Nobody knows anything at first: ln 64; strides are learned from then on.
    assert told.losses[0] == pytest.approx(np.log(64), rel=0.02)
    assert told.losses[-1] < told.losses[0] - 0.1
    assert told == learned()
    whole = learned(sharding="ddp")
    assert whole.losses == told.losses
    assert whole.gradient_norms == pytest.approx(told.gradient_norms, rel=1e-6)  # squares are summed part by part
    assert told.skipped == ()


def test_half_precision_scales_its_loss_and_learns_as_well() -> None:
    half_, single = learned(precision="fp16"), learned()
    assert set(half_.loss_scales) <= {65536.0, 32768.0, 16384.0}
    assert half_.losses[-1] == pytest.approx(single.losses[-1], rel=0.02)
