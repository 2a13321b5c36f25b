"""A step that is played trains a real model: the same numbers whatever is sharded, and PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.model.shape import Transformer
from simulator.numerics.arithmetic import Array
from simulator.training.spec import Precision
from simulator.training_numbers import Training, start
from tests.golden.gpt import farthest, golden, initial, model, tokens
from tests.training import play, step

SHAPE = Transformer("golden", 2, 64, 4, 4, 16, 256, 128, 32, tied=False)
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")


def training(
    strategy: str, ranks: int = 4, dtype: str = "float32", topology: str = "star_100g", **facts: Any
) -> Training:
    precision = Precision(params=dtype, grads=dtype, reduce=dtype, master=None, matmul=dtype)
    batch = 16 // ranks // facts.get("accumulation", 1)
    made = step(strategy, SHAPE, precision=precision, seq_len=32, micro_batch_size=batch, **facts)
    played = play(made, ranks, topology)
    gpt = model(dtype)
    return start(gpt, played.plan, played.timeline, initial(gpt))


def trained(strategy: str, steps: int = 20, **facts: Any) -> tuple[list[float], list[float], dict[str, Array]]:
    made = training(strategy, **facts)
    told = [made.step(tokens(number)) for number in range(steps)]
    return [loss for loss, _ in told], [norm for _, norm in told], made.parameters()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_four_played_ranks_train_as_ddp_does(strategy: str) -> None:
    loss, norm, final = trained(strategy)
    reference = golden("fp32_ddp")
    assert np.abs(np.array(loss) - reference["loss"]).max() <= 3e-6
    np.testing.assert_allclose(norm, reference["gnorm"], rtol=1e-6)
    assert farthest(final, reference) <= 1e-5


def test_one_rank_in_float64_is_pytorch_to_the_last_digits() -> None:
    made = training("zero3", 2, "float64")
    told = [made.step(tokens(number)) for number in range(20)]
    reference = golden("fp64_single")
    np.testing.assert_allclose([loss for loss, _ in told], reference["loss"], rtol=1e-12)
    np.testing.assert_allclose([norm for _, norm in told], reference["gnorm"], rtol=1e-12)


@pytest.mark.parametrize("checkpointing", ["full", 2, (1,)])
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_what_is_computed_again_changes_no_bit(strategy: str, checkpointing: object) -> None:
    plain, again = trained(strategy, 3), trained(strategy, 3, checkpointing=checkpointing)
    assert plain[0] == again[0]
    assert all((plain[2][name] == again[2][name]).all() for name in plain[2])


def test_the_same_training_twice_gives_the_same_bits() -> None:
    first, second = trained("zero2", 3), trained("zero2", 3)
    assert first[0] == second[0]
    assert all((first[2][name] == second[2][name]).all() for name in first[2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_micro_batches_add_up_to_the_batch(strategy: str) -> None:
    """Four micro-batches of one sequence are a batch of four, but for rounding."""
    whole, cut = trained(strategy, 2), trained(strategy, 2, accumulation=4)
    np.testing.assert_allclose(cut[0], whole[0], rtol=1e-6)
    np.testing.assert_allclose(cut[1], whole[1], rtol=1e-5)


@pytest.mark.parametrize("bucket_size", [2**12, 2**17, 2**30])
def test_in_rank_order_no_sharding_and_no_bucketing_changes_a_bit(bucket_size: int) -> None:
    """`direct` adds every element in rank order, however it is cut."""
    plain = trained("ddp", 4, algorithm="direct")
    for strategy in STRATEGIES:
        cut = trained(strategy, 4, algorithm="direct", bucket_size=bucket_size)
        assert cut[0] == plain[0], strategy
        assert all((cut[2][name] == plain[2][name]).all() for name in plain[2]), strategy


def test_a_ring_adds_in_another_order() -> None:
    direct, ring = (trained("ddp", 4, algorithm=name) for name in ("direct", "ring"))
    assert any((direct[2][name] != ring[2][name]).any() for name in direct[2])


@pytest.mark.parametrize("algorithm", ["naive", "tree", "double_binary_tree", "halving_doubling"])
def test_every_algorithm_trains_alike_but_for_rounding(algorithm: str) -> None:
    loss, norm, _ = trained("ddp", 5, algorithm=algorithm)
    assert np.abs(np.array(loss) - golden("fp32_ddp")["loss"][:5]).max() <= 3e-6
    np.testing.assert_allclose(norm, golden("fp32_ddp")["gnorm"][:5], rtol=1e-6)


def test_a_network_full_of_others_changes_times_and_no_bit() -> None:
    """Two topologies, of which one makes all ranks share a link."""
    alone, crowded = (trained("zero3", 3, algorithm="ring", topology=t) for t in ("star_100g", "h100_ethernet_100g"))
    assert alone[0] == crowded[0]
    assert all((alone[2][name] == crowded[2][name]).all() for name in alone[2])


def test_what_cannot_be_carried_yet_is_refused() -> None:
    with pytest.raises(ValueError, match="write collectives: played"):
        training("zero3", collectives="auto")
    with pytest.raises(ValueError, match="not built yet"):
        training("zero3", shard_size=2)
