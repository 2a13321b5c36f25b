"""Any combination of settings trains as one rank does with the whole batch: a plain loop in float64 is the judge."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.records.learning import Learning
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.many import many

STEPS, LENGTH, VOCABULARY = 3, 6, 24
DOUBLE = {"params": "float64", "grads": "float64", "reduce": "float64", "master": None}


def learned(training: dict[str, Any], cluster: dict[str, Any]) -> Learning:
    tied = training.pop("tied", True)
    model = {"model_type": "gpt2", "n_embd": 12, "n_layer": 3, "n_head": 3, "n_positions": 7, "vocab_size": VOCABULARY}
    whole = {"model": model | {"tie_word_embeddings": tied}, "seq_len": LENGTH, "numerics": True, "steps": STEPS}
    data = {"name": "x", "seed": 5, "cluster": {"topology": "star_100g"} | cluster, "training": whole | training}
    report = simulate(load_scenario(data)).report
    learning: Learning | None = report.learning  # type: ignore[union-attr]
    assert learning is not None
    return learning


def by_hand(batch: int, *, tied: bool, clip: float | None, decay: float, optimizer: str) -> list[float]:
    """Adam, Lion, Muon, SGD as their papers and PyTorch's pages write them, on one rank, without the package's own."""
    gpt = Gpt(VOCABULARY, 12, 3, 7, 3, arithmetic("float64"), tied=tied)
    units = {unit: dict(own) for unit, own in task.initial(gpt, 5).items()}
    values = {name: value for own in units.values() for name, value in own.items()}
    first, second = ({name: np.zeros_like(value) for name, value in values.items()} for _ in range(2))
    losses = []
    for number in range(STEPS):
        loss, found = gpt.gradients(units, task.sequences(5, number, batch, LENGTH + 1, VOCABULARY))
        losses.append(loss)
        norm = float(np.sqrt(sum((g**2).sum() for g in found.values())))
        factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        for name, value in values.items():
            step = found[name] * factor
            if optimizer == "muon" and value.ndim == 2 and name.startswith("blocks."):
                first[name] = 0.95 * first[name] + 0.05 * step
                average = 0.95 * first[name] + 0.05 * step
                # torchtitan holds queries, keys and values apart.
                parts = np.split(average, 3) if name.endswith("qkv.weight") else [average]
                value -= 0.01 * (np.concatenate([orthogonal(part) for part in parts]) + decay * value)
            elif optimizer in ("adam", "muon"):
                value -= 0.01 * decay * value
                first[name] = 0.9 * first[name] + 0.1 * step
                second[name] = 0.999 * second[name] + 0.001 * step**2
                mean, spread = first[name] / (1 - 0.9 ** (number + 1)), second[name] / (1 - 0.999 ** (number + 1))
                value -= 0.01 * mean / (np.sqrt(spread) + 1e-8)
            elif optimizer == "lion":
                value -= 0.01 * (np.sign(0.9 * first[name] + 0.1 * step) + decay * value)
                first[name] = 0.99 * first[name] + 0.01 * step
            else:
                step = step + decay * value
                first[name] = step + (0.8 * first[name] if optimizer == "momentum" else 0.0)
                value -= 0.01 * first[name]
    return losses


def orthogonal(matrix: Array) -> Array:
    """Jordan 2024: five Newton-Schulz iterations, and the scale sqrt(max(1, rows / columns))."""
    rows, columns = matrix.shape
    x = (matrix.T if rows > columns else matrix) / np.sqrt((matrix**2).sum())
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    made: Array = np.sqrt(max(1.0, rows / columns)) * (x.T if rows > columns else x)
    return made


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    generator = np.random.default_rng([13, seed])
    pick = lambda *values: values[int(generator.integers(len(values)))]  # noqa: E731
    ranks, strategy = pick(1, 2, 3, 4, 5, 6, 7), pick("ddp", "zero1", "zero2", "zero3", "zero3", "parameter_server")
    strategy = "ddp" if ranks == 1 and strategy == "parameter_server" else strategy
    sharding: dict[str, Any] = {"strategy": strategy, "bucket_size": pick("2 KiB", "30 KiB", "25 MiB")}
    if strategy == "zero3":
        sharding |= {"prefetch": pick(0, 1, 4), "layers_per_unit": pick(1, 2)}
        sharding["gradient_sync"] = pick("every", "shard", "last")
        sharding["reshard_after_forward"] = pick(True, False)
    if strategy in ("zero1", "zero2", "zero3"):
        divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
        sharding["shard_size"] = divisors[int(generator.integers(len(divisors)))]
    if strategy == "parameter_server":
        sharding |= {"servers": pick(1, 2), "servers_on": pick("own", "workers")}
    training = {"sharding": sharding, "precision": DOUBLE, "tied": pick(True, False)}
    training |= {"micro_batch_size": pick(1, 2), "gradient_accumulation_steps": pick(1, 2, 3)}
    training["activation_checkpointing"] = pick(
        "none", "full", "sqrt", "attention", "selective_op", "feed_forward", "activation", {"every": 2}, [0]
    )
    training |= {"attention": pick("standard", "flash"), "optimizer": pick("adam", "lion", "momentum", "sgd", "muon")}
    training["learning"] = {"rate": 0.01, "decay": pick(0.0, 0.1)}
    if training["optimizer"] == "momentum":
        training["learning"]["momentum"] = 0.8
    if strategy != "parameter_server":
        training["clip_norm"] = pick(None, 0.5)
        training["algorithm"] = pick("auto", "direct", "ring")
    if strategy.startswith("zero") and ranks > 1 and generator.random() < 0.2:
        training["offload"] = "optimizer"
    if training["optimizer"] == "muon":
        # Parameter servers and hosts do not have whole matrices.
        if strategy == "parameter_server" or "offload" in training:
            training["optimizer"] = "lion"
        elif strategy != "ddp":
            training["optimizer"] = {"name": "muon", "distribution": pick("gathered", "all_to_all")}
    cluster: dict[str, Any] = {"world_size": ranks}
    if generator.random() < 0.5:
        cluster["stragglers"] = {int(generator.integers(ranks)): float(generator.uniform(0.2, 0.8))}
    if generator.random() < 0.3:
        cluster["jitter"] = {"compute": 0.3, "latency": 0.3}
    return {key: value for key, value in training.items() if value is not None}, cluster


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
def test_any_combination_learns_what_one_rank_does(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        training, cluster = drawn(seed)
        batch = cluster["world_size"] * training["micro_batch_size"] * training["gradient_accumulation_steps"]
        named = training["optimizer"] if isinstance(training["optimizer"], str) else "muon"
        expected = by_hand(
            batch, tied=training["tied"], clip=training.get("clip_norm"),
            decay=training["learning"]["decay"], optimizer=named,
        )  # fmt: skip
        told = learned(dict(training), cluster)
        # Adam and Lion turn the rounding of a gradient that is zero, the key bias's, into moves.
        np.testing.assert_allclose(told.losses, expected, rtol=1e-6, err_msg=f"{seed}: {training} {cluster}")
        np.testing.assert_allclose(told.losses[0], expected[0], rtol=1e-12)
        assert (told.seen, told.stopped) == ({}, "")


SLOW = {0: 0.5}
PARTS_OF_FOUR = {"strategy": "zero3", "shard_size": 2}


@pytest.mark.parametrize("sync", ["every", "shard", "last"])
def test_a_slow_rank_mixes_up_no_micro_batches_of_copies(sync: str) -> None:
    """Two copies of the states: fast ranks scatter the next micro-batch while the slow one's copy is awaited."""
    facts: dict[str, Any] = {"micro_batch_size": 1, "gradient_accumulation_steps": 4}
    told = {
        name: learned(facts | {"precision": DOUBLE, "sharding": sharding}, {"world_size": 4, "stragglers": SLOW})
        for name, sharding in (("ddp", "ddp"), ("copies", PARTS_OF_FOUR | {"gradient_sync": sync}))
    }
    np.testing.assert_allclose(told["copies"].losses, told["ddp"].losses, rtol=1e-9)
    np.testing.assert_allclose(told["copies"].gradient_norms, told["ddp"].gradient_norms, rtol=1e-9)
    assert told["copies"].seen == {}


# How far apart losses of three steps may lie: float64 by rounding alone, which Adam makes larger where a gradient is
# zero; the others by about the spacing of their numbers near 1, for each step and a little more.
NEAR = {"fp64": 1e-6, "fp32": 1e-5, "fp16": 5e-3, "bf16": 2e-2}
CROSSED: dict[str, tuple[Any, ...]] = {
    "strategy": ("ddp", "zero1", "zero2", "zero3", "zero3", "zero3", "parameter_server"),
    "gradient_accumulation_steps": (1, 2, 4),
    "gradient_sync": ("every", "shard", "last"),
    "stragglers": ({}, SLOW, {3: 0.3}, {0: 0.6, 2: 0.4}),
    "precision": tuple(NEAR),
    "shard_size": (1, 2, 4),
    "layers_per_unit": (1, 2),
    "bucket_size": ("2 KiB", "25 MiB"),
}


def crossed(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Choices that each are sound, put together at random, on four ranks."""
    generator = np.random.default_rng([17, seed])
    chosen = {key: values[int(generator.integers(len(values)))] for key, values in CROSSED.items()}
    keys = ("gradient_sync", "shard_size", "layers_per_unit") if chosen["strategy"] == "zero3" else ("bucket_size",)
    training = {key: chosen[key] for key in ("precision", "gradient_accumulation_steps")} | {"micro_batch_size": 1}
    training["sharding"] = {key: chosen[key] for key in ("strategy", *keys)}
    if chosen["strategy"] == "parameter_server":
        training["loss_scaling"] = "none"  # servers do not look for overflows
    return training, {"world_size": 4, "stragglers": chosen["stragglers"]}


@cache
def plain_ddp(accumulation: int) -> Learning:
    facts = {"sharding": "ddp", "precision": DOUBLE, "micro_batch_size": 1}
    return learned(facts | {"gradient_accumulation_steps": accumulation}, {"world_size": 4})


def as_ddp_does(seed: int) -> None:
    training, cluster = crossed(seed)
    told, expected = learned(dict(training), cluster), plain_ddp(training["gradient_accumulation_steps"])
    rtol, what = NEAR[training["precision"]], f"{seed}: {training} {cluster}"
    np.testing.assert_allclose(told.losses, expected.losses, rtol=rtol, err_msg=what)
    assert (told.seen, told.stopped) == ({}, "")


@pytest.mark.parametrize("block", [*range(3), *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 8))])
def test_choices_that_are_sound_alone_are_sound_together(block: int) -> None:
    for seed in range(block * 3, block * 3 + 3):
        as_ddp_does(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(20)))
def test_choices_that_are_sound_alone_are_sound_together_many(block: int) -> None:
    for seed in range(1000 + block * 100, 1100 + block * 100):
        as_ddp_does(seed)


def test_gradients_are_added_up_in_their_own_dtype() -> None:
    """Of eight micro-batches in bfloat16: a sum in float32 is another than one in bfloat16."""
    facts = {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "sharding": "ddp"}
    exact = learned(facts | {"precision": DOUBLE}, {"world_size": 2}).gradient_norms[0]
    norms = {}
    for grads in ("bfloat16", "float32"):
        precision = {"params": "bfloat16", "grads": grads, "reduce": "float32"}
        norms[grads] = learned(facts | {"precision": precision}, {"world_size": 2}).gradient_norms[0]
    assert norms["bfloat16"] != norms["float32"]
    assert list(norms.values()) == pytest.approx([exact] * 2, rel=0.01)


def test_a_clipped_step_knows_nothing_of_the_losss_scale() -> None:
    """The norm is of the gradient, not of what float16 made of it."""
    facts: dict[str, Any] = {"micro_batch_size": 4, "clip_norm": 0.3, "optimizer": "sgd", "learning": {"rate": 0.5}}
    half = learned(facts | {"precision": "fp16", "sharding": "zero1"}, {"world_size": 2})
    wide = learned(facts | {"precision": "fp32", "sharding": "ddp"}, {"world_size": 2})
    np.testing.assert_allclose(half.losses, wide.losses, rtol=2e-3)
    np.testing.assert_allclose(half.gradient_norms, wide.gradient_norms, rtol=1e-2)


def test_each_ranks_scale_is_its_own_where_nobody_tells() -> None:
    facts: dict[str, Any] = {"micro_batch_size": 1, "precision": "fp16", "sharding": "zero1"}
    facts |= {
        "loss_scaling": {"rule": "dynamic", "shared": False},
        "faults": [{"step": 1, "what": "overflow", "rank": 1}],
    }
    told = learned(facts, {"world_size": 2})
    assert told.seen == {"scales": 1}
    assert told.skipped == (1,)


def test_a_window_may_be_the_last_of_a_text() -> None:
    tokens: Array = np.arange(10)
    found = task.windows(tokens, 0, 0, 200, 4)
    assert set(found[:, 0].tolist()) == set(range(7))
    assert (np.diff(found, axis=1) == 1).all()


def test_tf32_rounds_to_the_nearest_even() -> None:
    """Ten digits of a fraction are kept of float32's 23."""
    tf32, unit = arithmetic("tf32"), 2.0**-10
    given = np.array([1 + 0.5 * unit, 1 + 1.5 * unit, 1 + 0.51 * unit, 1 + 0.49 * unit, -1 - 1.5 * unit], np.float32)
    expected = [1, 1 + 2 * unit, 1 + unit, 1, -1 - 2 * unit]
    assert tf32.operand(given).tolist() == expected
