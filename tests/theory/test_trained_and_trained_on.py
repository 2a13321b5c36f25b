"""What one training leaves another begins with: parameters in and out, batches in, the rate up and down."""

from __future__ import annotations

import json
from math import cos, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError
from simulator.numerics.learning_rate import RateSchedule
from simulator.records.learning import Learning
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import check_scenario
from simulator.sweeps.artifacts import npz_bytes

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 30}
DOUBLE = {"params": "float64", "reduce": "float64"}
SHARDINGS = [
    "ddp", "zero1", "zero2", "zero3", {"strategy": "zero3", "shard_size": 2},
    "parameter_server", {"strategy": "parameter_server", "servers": 3, "bucket_size": "4 KiB"},
]  # fmt: skip
Array = np.ndarray[Any, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With batches.npy: 4 steps of 8 sequences; and their halves."""
    tokens = np.random.default_rng(7).integers(0, 30, (4, 8, 9)).astype(np.uint8)
    for name, part in {"batches": tokens, "first": tokens[:2], "second": tokens[2:]}.items():
        np.save(tmp_path / f"{name}.npy", part)
    return tmp_path


def trained(
    folder: Path, steps: int = 4, ranks: int = 4, learning: dict[str, Any] | None = None, **keys: Any
) -> SimulatedRun:
    training = {"model": MODEL, "seq_len": 8, "micro_batch_size": 8 // ranks, "numerics": True, "precision": DOUBLE}
    training |= {"steps": steps, "learning": {"batches": "batches.npy", "rate": 0.5} | (learning or {})}
    training |= {"optimizer": "sgd", "algorithm": "direct"} | keys
    data = {"name": "x", "seed": 3, "cluster": {"topology": "star_100g", "world_size": ranks}, "training": training}
    return simulate(check_scenario(data, "x", folder))


def parameters(run: SimulatedRun) -> dict[str, Array]:
    assert run.parameters is not None
    return dict(run.parameters)


def learned(run: SimulatedRun) -> Learning:
    told = run.report.learning  # type: ignore[union-attr]
    assert told is not None
    return told


def left(run: SimulatedRun, path: Path) -> None:
    path.write_bytes(npz_bytes(parameters(run)))


def assert_near(one: dict[str, Array], other: dict[str, Array], atol: float) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=0, atol=atol, err_msg=name)


# ----------------------------------------------------------------------------------------------------------- in, out


@pytest.mark.parametrize("sharding", SHARDINGS, ids=str)
@pytest.mark.one_of(3)
def test_two_steps_and_two_steps_are_four(folder: Path, sharding: Any) -> None:
    """Sgd keeps nothing but parameters: what is left after two steps is all that the next two need."""
    whole = trained(folder, sharding=sharding)
    left(trained(folder, 2, sharding=sharding, learning={"batches": "first.npy"}), folder / "half.npz")
    rest = trained(folder, 2, sharding=sharding, learning={"batches": "second.npy", "initial": "half.npz"})
    assert_near(parameters(rest), parameters(whole), 1e-14)
    assert_near(parameters(whole), parameters(trained(folder)), 1e-14)
    moved = np.abs(parameters(whole)["tok.weight"] - parameters(trained(folder, 2))["tok.weight"]).max()
    assert moved > 1e-3


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", {"params": "bfloat16", "master": None}], ids=str)
@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_every_precision_leaves_what_it_begins_with(folder: Path, precision: Any, sharding: str) -> None:
    """A rate that moves nothing: what comes out is what went in, in the dtype in which it is updated."""
    facts: dict[str, Any] = {"precision": precision, "sharding": sharding, "loss_scaling": "none"}
    left(trained(folder, 1, **facts), folder / "start.npz")
    learning = {"initial": "start.npz", "warmup": 1}  # of which the first step has a rate of 0
    run = trained(folder, 1, learning=learning, **facts)
    with np.load(folder / "start.npz") as began:
        for name, value in parameters(run).items():
            np.testing.assert_array_equal(value.astype(np.float64), began[name].astype(np.float64))
            assert began[name].dtype == np.float32  # .npy files have no name for bfloat16
            assert value.dtype.name == ("bfloat16" if isinstance(precision, dict) else "float32")


def test_a_head_of_its_own_has_a_name_and_a_tied_one_has_none(folder: Path) -> None:
    tied, own = trained(folder, 1), trained(folder, 1, model={**MODEL, "tie_word_embeddings": False})
    assert set(parameters(own)) - set(parameters(tied)) == {"head.weight"}
    assert list(parameters(own))[:3] == ["tok.weight", "pos.weight", "blocks.0.ln1.weight"]
    assert list(parameters(own))[-3:] == ["lnf.weight", "lnf.bias", "head.weight"]


def test_a_vocabulary_may_be_padded(folder: Path) -> None:
    """Rows beyond the tokens that there are: in names' shapes, and never looked up."""
    run = trained(folder, 1, model={**MODEL, "vocab_size": 64})
    assert parameters(run)["tok.weight"].shape == (64, 16)


def test_only_real_training_has_parameters(folder: Path) -> None:
    assert trained(folder, numerics=False).parameters is None


# ----------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(("ranks", "micro"), [(2, 4), (2, 2), (4, 1)])
def test_ranks_own_rows_in_order_and_tell_their_own_loss(folder: Path, ranks: int, micro: int) -> None:
    """Rank r has rows r n .. r n + n - 1 of a step; its loss is that of one rank alone with these rows."""
    rows = np.load(folder / "batches.npy")
    n = 8 // ranks
    facts: dict[str, Any] = {"micro_batch_size": micro, "gradient_accumulation_steps": n // micro}
    told = learned(trained(folder, 2, ranks=ranks, **facts))
    assert np.shape(told.losses_by_rank) == (2, ranks)
    np.testing.assert_allclose(np.mean(told.losses_by_rank, axis=1), told.losses, rtol=1e-12)
    for rank in range(ranks):
        np.save(folder / "own.npy", rows[:, rank * n : (rank + 1) * n])
        own = learned(trained(folder, 1, ranks=1, micro_batch_size=n, learning={"batches": "own.npy"}))
        assert own.losses[0] == pytest.approx(told.losses_by_rank[0][rank], rel=1e-12)


def test_workers_that_wait_for_nobody_own_the_same_rows(folder: Path) -> None:
    """At a rate that moves next to nothing each worker's first loss is that of one rank alone with its rows."""
    rows = np.load(folder / "batches.npy")
    asynchronous = {"strategy": "parameter_server", "asynchronous": True}
    told = learned(trained(folder, 1, sharding=asynchronous, learning={"rate": 1e-9}))
    for rank in range(4):
        np.save(folder / "own.npy", rows[:1, 2 * rank : 2 * rank + 2])
        own = learned(trained(folder, 1, ranks=1, micro_batch_size=2, learning={"batches": "own.npy"}))
        assert own.losses[0] == pytest.approx(told.losses_by_rank[0][rank], rel=1e-6)


def test_a_step_that_nobody_took_does_not_count(folder: Path) -> None:
    """Servers that wait for nobody count each worker's gradient, all others each step that was not skipped."""
    overflow = {"step": 1, "what": "overflow", "element": 5}
    half = trained(folder, precision="fp16", faults=[overflow], loss_scaling={"rule": "static", "start": 1.0})
    assert (learned(half).skipped, learned(half).optimizer_steps) == ((1,), (1, 1, 2, 3))
    for sharding in SHARDINGS:
        assert learned(trained(folder, sharding=sharding)).optimizer_steps == (1, 2, 3, 4)
    asynchronous = {"strategy": "parameter_server", "asynchronous": True, "servers": 2}
    assert learned(trained(folder, sharding=asynchronous)).optimizer_steps == (4, 8, 12, 16)


@pytest.mark.parametrize("tied", [True, False])
def test_one_element_overflows(folder: Path, tied: bool) -> None:
    """Without a scale that would skip the step: sgd makes just that parameter infinite, and the next loss no number."""
    facts: dict[str, Any] = {"model": {**MODEL, "tie_word_embeddings": tied}}
    run = trained(folder, 1, faults=[{"step": 0, "what": "overflow", "rank": 2, "element": 11}], **facts)
    where = {name: np.flatnonzero(~np.isfinite(value)).tolist() for name, value in parameters(run).items()}
    name = "lnf.bias" if tied else "head.weight"
    assert {key: found for key, found in where.items() if found} == {name: [11]}
    last = 16 if tied else 30 * 16
    told = rf"faults.0.element: got {last}; the gradient of {name} has elements 0 .. {last - 1}$"
    with pytest.raises(ScenarioError, match=told):
        trained(folder, 1, faults=[{"step": 0, "what": "overflow", "element": last}], **facts)


def test_what_is_no_number_is_none_in_a_report(folder: Path) -> None:
    run = trained(folder, 2, faults=[{"step": 0, "what": "overflow"}])
    told = run.report.to_dict()["learning"]
    assert told["losses_by_rank"][1] == (None,) * 4
    assert json.loads(json.dumps(told, allow_nan=False))["optimizer_steps"] == [1, 2]


def test_a_longer_file_gives_its_first_steps(folder: Path) -> None:
    assert_near(parameters(trained(folder, 2)), parameters(trained(folder, 2, learning={"batches": "first.npy"})), 0)


# -------------------------------------------------------------------------------------------------------------- rates


def rate(kind: str, warmup: int, steps: int, t: int) -> float:
    """As Hugging Face transformers hands them to PyTorch's LambdaLR (optimization.py)."""
    if t < warmup:
        return float(t) / float(max(1, warmup))
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return max(0.0, float(steps - t) / float(max(1, steps - warmup)))
    progress = float(t - warmup) / float(max(1, steps - warmup))
    return max(0.0, 0.5 * (1.0 + cos(pi * 0.5 * 2.0 * progress)))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 7), (3, 10), (5, 5), (1, 100)])
def test_schedules_are_those_of_transformers(kind: Any, warmup: int, steps: int) -> None:
    made = RateSchedule(kind, warmup, steps)
    expected = [rate(kind, warmup, steps, t) for t in range(steps)]
    np.testing.assert_allclose([made.factor(t) for t in range(steps)], expected, rtol=1e-15, atol=1e-16)
    shared = RateSchedule(kind, warmup, steps, updates=3)
    np.testing.assert_allclose(
        [shared.factor(u) for u in range(3 * steps)], np.repeat(expected, 3), rtol=1e-15, atol=1e-16
    )


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("sharding", ["ddp", "zero3", "parameter_server"])
@pytest.mark.one_of(3)
def test_a_scheduled_run_is_a_chain_of_runs_of_one_step_each_at_its_rate(
    folder: Path, kind: str, sharding: str
) -> None:
    tokens, learning = np.load(folder / "batches.npy"), {"warmup": 2, "schedule": kind}
    scheduled = trained(folder, sharding=sharding, learning=learning)
    left(trained(folder, 1, learning={"warmup": 1}), folder / "p.npz")  # at a rate of 0: the seed's own
    for t in range(4):
        np.save(folder / "one.npy", tokens[t : t + 1])
        factor = rate(kind, 2, 4, t)
        if factor:
            one = {"batches": "one.npy", "initial": "p.npz", "rate": 0.5 * factor}
            left(trained(folder, 1, learning=one), folder / "p.npz")
    with np.load(folder / "p.npz") as expected:
        assert_near(parameters(scheduled), dict(expected), 1e-14)


def test_servers_that_do_not_wait_count_a_step_when_all_workers_have_pushed_once(folder: Path) -> None:
    """In the first step of a warmup the rate is 0 for every worker's update, not only for the first that arrives."""
    asynchronous = {"strategy": "parameter_server", "asynchronous": True}
    still = trained(folder, 1, learning={"warmup": 1})
    assert_near(parameters(trained(folder, 1, sharding=asynchronous, learning={"warmup": 1})), parameters(still), 0)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_takes_its_betas_and_eps(folder: Path, decay: float) -> None:
    """Two steps by Kingma & Ba's formulas (2015, algorithm 1), with gradients from sgd's steps at a rate of 1."""
    first, second, eps, alpha = 0.7, 0.6, 0.01, 0.05
    adam = {"betas": [first, second], "eps": eps, "rate": alpha, "decay": decay}
    m, v = dict[str, Any](), dict[str, Any]()
    left(trained(folder, 1, learning={"warmup": 1}), folder / "p.npz")
    for t, batches in enumerate(("first.npy", "one.npy"), 1):
        if t == 2:
            np.save(folder / "one.npy", np.load(folder / "batches.npy")[1:2])
        with np.load(folder / "p.npz") as there:
            before = dict(there)
        down = parameters(trained(folder, 1, learning={"batches": batches, "initial": "p.npz", "rate": 1.0}))
        after = {}
        for name, p in before.items():
            g = p - down[name]
            m[name] = first * m.get(name, 0) + (1 - first) * g
            v[name] = second * v.get(name, 0) + (1 - second) * g**2
            step = alpha * (m[name] / (1 - first**t)) / (np.sqrt(v[name] / (1 - second**t)) + eps)
            after[name] = p * (1 - alpha * decay) - step
        (folder / "p.npz").write_bytes(npz_bytes(after))
    found = trained(folder, 2, optimizer="adam", sharding="zero3", learning=adam)
    # A gradient taken back from a difference has its rounding, 1e-16, which eps keeps from growing.
    assert_near(parameters(found), after, 1e-12 / sqrt(eps))
