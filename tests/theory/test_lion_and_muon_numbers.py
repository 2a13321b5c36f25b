"""Lion and Muon on simulated ranks learn what a plain numpy loop on one rank learns, to 1e-12 in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning import matrices
from simulator.learning.learn import gpt_of, rule_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.training import Training
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.run.simulate import simulate
from simulator.scenario.build_training import optimizer
from simulator.scenario.load import load_scenario
from simulator.step.framework import BARE, Framework
from simulator.step.learning_spec import LearningSpec, TrainingTask
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from simulator.step.training_spec import OptimizerSpec
from tests.training import EVERY_STRATEGY, play, step

WIDTH, WORDS, LENGTH, STEPS = 16, 32, 8, 3
SHAPE = Transformer("tied", 2, WIDTH, 2, 2, 8, 4 * WIDTH, WORDS, LENGTH, tied=True)
DOUBLE = Precision(params="float64").resolved()
RATE, DECAY = 0.01, 0.1
LESSON = TrainingTask(LearningSpec(rate=RATE, decay=DECAY))
ONE = Parallelism()


def begun(name: str, strategy: str, ranks: int, batch: int, task_of: TrainingTask, **facts: Any) -> Training:
    facts = {"precision": DOUBLE, "seq_len": LENGTH, "lesson": task_of, "optimizer": made_of(name, strategy)} | facts
    replicas = ranks // facts.get("parallelism", ONE).size
    made = step(
        strategy, SHAPE, micro_batch_size=batch // replicas // facts.get("gradient_accumulation_steps", 1), **facts
    )
    played = play(made, ranks)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline, rule_of(made, ranks), seed=5)
    return start(setting, task.initial(setting.gpt, 0))


def made_of(name: str, strategy: str, **keys: Any) -> Any:
    return optimizer(OptimizerSpec(name=name, **keys), strategy, updated="float64")


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
    made = begun("lion", strategy, ranks, 12, LESSON)
    losses = [made.step(rows(number, 12)).loss for number in range(STEPS)]
    same(made, losses, by_hand(lion(), 12))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_lion_is_its_algorithm_with_cut_matrices(strategy: str) -> None:
    made = begun("lion", strategy, 4, 12, LESSON, parallelism=Parallelism(tp=2))
    losses = [made.step(rows(number, 12)).loss for number in range(STEPS)]
    same(made, losses, by_hand(lion(), 12))


# ------------------------------------------------------------------------------------------------------------- Muon

# Every pair of sharding and distribution that real training supports.
WAYS = [
    ("ddp", "replicated"), ("zero1", "gathered"), ("zero1", "all_to_all"), ("zero2", "gathered"),
    ("zero2", "all_to_all"), ("zero3", "gathered"), ("zero3", "all_to_all"),
]  # fmt: skip
SPLITS = BARE.with_constants(split_maps=True)


def pieces(name: str, shape: tuple[int, ...], blocks: int, splits: bool) -> list[Any]:
    """Return the places of the matrices inside a parameter that are made orthogonal, one by one."""
    rows, columns = (np.arange(size) for size in shape)
    if name.endswith("qkv.weight"):
        thirds = [np.split(third, blocks) for third in np.split(rows, 3)]
        cut = (
            [own for third in thirds for own in third]
            if splits
            else [np.concatenate(own) for own in zip(*thirds, strict=True)]
        )
        return [np.ix_(own, columns) for own in cut]
    if name.endswith("fc1.weight"):
        return [np.ix_(own, columns) for own in np.split(rows, blocks)]
    return [np.ix_(rows, own) for own in np.split(columns, blocks)]


def muon(
    blocks: int = 1,
    *,
    splits: bool = True,
    nesterov: bool = True,
    coefficients: tuple[float, ...] = (3.4445, -4.7750, 2.0315),
) -> Any:
    """Jordan 2024 for matrices of layers: m = 0.95 m + 0.05 g, d = 0.95 m + 0.05 g (Nesterov), five iterations
    X = a X + (b A + c A A) X with A = X X', from X = d / |d|, transposed if d has more rows than columns; then
    p -= rate (sqrt(max(1, rows / columns)) X + decay p). AdamW (Loshchilov & Hutter 2019) for everything else.

    With `splits`, queries, keys and values are three matrices. With `blocks` tensor-parallel ranks, a rank's part of a
    matrix is a matrix: rows of queries, keys, values and of the MLP's first matrix, columns of the other two.
    """
    a, b, c = coefficients
    momenta: dict[str, Array] = {}
    second: dict[str, Array] = {}

    def orthogonal(d: Array) -> Array:
        x = d.T if d.shape[0] > d.shape[1] else d
        x = x / np.sqrt((x**2).sum())
        for _ in range(5):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        x = x.T if d.shape[0] > d.shape[1] else x
        return np.sqrt(max(1.0, d.shape[0] / d.shape[1])) * x

    def update(name: str, p: Array, g: Array, t: int) -> None:
        m = momenta.get(name, np.zeros_like(p))
        if p.ndim == 2 and name.startswith("blocks."):
            momenta[name] = m = 0.95 * m + 0.05 * g
            d = 0.95 * m + 0.05 * g if nesterov else m
            made = np.zeros_like(p)
            for place in pieces(name, p.shape, blocks, splits):
                made[place] = orthogonal(d[place])
            p -= RATE * (made + DECAY * p)
            return
        v = second.get(name, np.zeros_like(p))
        momenta[name], second[name] = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        hats = momenta[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
        p -= RATE * (hats[0] / (np.sqrt(hats[1]) + 1e-8) + DECAY * p)

    return update


def learned_with_muon(strategy: str, way: str, ranks: int, batch: int, **facts: Any) -> tuple[Training, list[float]]:
    facts = {"framework": SPLITS, "optimizer": made_of("muon", strategy, distribution=way)} | facts
    made = begun("muon", strategy, ranks, batch, LESSON, **facts)
    return made, [made.step(rows(number, batch)).loss for number in range(STEPS)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("strategy", "way"), WAYS)
@pytest.mark.one_of(3)
def test_muon_is_its_formulas_under_every_sharding(strategy: str, way: str, ranks: int) -> None:
    made, losses = learned_with_muon(strategy, way, ranks, 60)
    same(made, losses, by_hand(muon(), 60))
    assert made.checks.seen == {}


@pytest.mark.parametrize(("strategy", "way"), WAYS)
def test_muon_with_tensor_parallelism_makes_each_ranks_part_orthogonal(strategy: str, way: str) -> None:
    made, losses = learned_with_muon(strategy, way, 4, 12, parallelism=Parallelism(tp=2))
    same(made, losses, by_hand(muon(blocks=2), 12))


@pytest.mark.parametrize("tensor", [1, 2])
def test_muon_takes_queries_keys_and_values_as_the_framework_holds_them(tensor: int) -> None:
    made, losses = learned_with_muon(
        "zero1", "gathered", 4, 12, framework=Framework(), parallelism=Parallelism(tp=tensor)
    )
    same(made, losses, by_hand(muon(blocks=tensor, splits=False), 12))


@pytest.mark.parametrize(
    "facts",
    [
        {"bucket_size": 2**12}, {"shard_size": 2}, {"shard_size": 2, "gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 3},
        {"reshard_after_forward": 2}, {"reshard_after_forward": 2, "layers_per_unit": 2}, {"clip_norm": 1e9},
    ],
    ids=str,
)  # fmt: skip
def test_muon_is_its_formulas_with_every_option(facts: dict[str, Any]) -> None:
    strategy = "zero3" if {"reshard_after_forward", "layers_per_unit"} & set(facts) else "zero1"
    made, losses = learned_with_muon(strategy, "gathered", 4, 24, **facts)
    same(made, losses, by_hand(muon(), 24))


def test_muon_is_its_formulas_in_a_pipeline() -> None:
    made, losses = learned_with_muon(
        "ddp", "replicated", 4, 24, parallelism=Parallelism(pp=2), gradient_accumulation_steps=2
    )
    same(made, losses, by_hand(muon(), 24))


@pytest.mark.parametrize(
    "wrong",
    [
        {"coefficients": (3.4445, -4.7750, 2.0316)}, {"coefficients": (3.4445, -4.7751, 2.0315)},
        {"coefficients": (3.4446, -4.7750, 2.0315)}, {"nesterov": False}, {"splits": False}, {"blocks": 2},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_formula_is_found(wrong: dict[str, Any]) -> None:
    made, losses = learned_with_muon("zero1", "gathered", 2, 12)
    with pytest.raises(AssertionError):
        same(made, losses, by_hand(muon(**wrong), 12))


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_a_sum_in_place_of_the_mean_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions hardly depend on the gradient's size; its norm, decay and Adam's part do: clipping shows the size."""
    monkeypatch.setattr(TrainingContext, "shares", property(lambda setting: 1))
    made = begun(name, "ddp", 2, 12, LESSON, framework=SPLITS)
    assert made.step(rows(0, 12)).norm == pytest.approx(2 * norm_by_hand(12), rel=1e-12)


def norm_by_hand(batch: int) -> float:
    gpt = Gpt(WORDS, WIDTH, 2, LENGTH, 2, arithmetic("float64"), tied=True)
    _, found = gpt.gradients(dict(task.initial(gpt, 0)), rows(0, batch))
    return float(np.sqrt(sum((g**2).sum() for g in found.values())))


def bits(strategy: str, way: str, dtype: str, ranks: int = 4, **facts: Any) -> dict[str, bytes]:
    precision = Precision(params=dtype).resolved()
    chosen = optimizer(OptimizerSpec(name="muon", distribution=way), strategy, updated=dtype)
    made, _ = learned_with_muon(
        strategy, way, ranks, 12, optimizer=chosen, precision=precision, algorithm="direct", **facts
    )
    return {name: value.tobytes() for name, value in made.parameters().items()}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_in_rank_order_no_sharding_changes_a_bit(dtype: str) -> None:
    """`direct` adds gradients in rank order, and every rank makes the same matrices orthogonal: in bfloat16 for
    float32.
    """
    plain = bits("ddp", "replicated", dtype)
    for strategy, way in WAYS[1:]:
        assert bits(strategy, way, dtype) == plain, (strategy, way)


# ------------------------------------------------------------------------------------------------------------ bytes


def logged(made: Training, name: str) -> float:
    """Bytes of the simulated transfers of collectives with `name` in their names, over all ranks [B]."""
    return sum(float(log.nbytes.sum()) for log in made.setting.timeline.logs if name in log.collective)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_gathered_averages_are_the_bytes_of_the_simulated_transfers(
    strategy: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank's share of float64 numbers reaches N - 1 ranks; 2 and 4 divide the elements of every matrix."""
    taken: list[int] = []
    joined = TrainingContext.joined

    def counting(setting: TrainingContext, rank: int, unit: str, parts: Any) -> Array:
        taken.append(sum(len(part) for number, part in enumerate(parts) if number != rank))
        return joined(setting, rank, unit, parts)

    monkeypatch.setattr(TrainingContext, "joined", counting)
    made, _ = learned_with_muon(strategy, "gathered", ranks, 12)
    # 12 d^2 elements of matrices in each of two layers.
    assert 8 * sum(taken) / STEPS == logged(made, "averages") == 8 * (ranks - 1) * 2 * 12 * WIDTH**2


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_matrices_to_and_from_owners_are_the_bytes_of_the_simulated_transfers(
    strategy: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner has 1 / N of each of its matrices already, and receives and sends back the rest."""
    owned: list[Array] = []
    to_owners = matrices.to_owners

    def watching(setting: TrainingContext, group: Any, units: Any) -> list[Array]:
        held = [{float(x) for unit in units for x in rank.averages[unit]} for rank in group]
        found = to_owners(setting, group, units)
        owned.extend(np.array([x not in own for x in array]) for own, array in zip(held, found, strict=True))
        return found

    monkeypatch.setattr(matrices, "to_owners", watching)
    made, _ = learned_with_muon(strategy, "all_to_all", ranks, 12)
    moved = 8 * sum(int(foreign.sum()) for foreign in owned) / STEPS
    assert moved == logged(made, "to owners") == logged(made, "from owners")
    assert moved == 8 * (ranks - 1) / ranks * 2 * 12 * WIDTH**2


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("way", ["gathered", "all_to_all"])
def test_real_training_sends_the_bytes_of_a_step_without_numbers(way: str, precision: str) -> None:
    model = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    training = {"model": model, "seq_len": 8, "micro_batch_size": 1, "sharding": "zero1", "precision": precision}
    training |= {"optimizer": {"name": "muon", "distribution": way}, "collectives": "played"}
    sent = {}
    for numerics in (True, False):
        own = {"numerics": True, "steps": 2} if numerics else {}
        data = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 4}, "training": training | own}
        logs = simulate(load_scenario(data)).timeline.logs
        sent[numerics] = {log.collective: float(log.nbytes.sum()) for log in logs}
    assert sent[True] == sent[False]


@pytest.mark.parametrize(("strategy", "way"), WAYS)
@pytest.mark.one_of(3)
def test_experts_learn_the_same_under_every_sharding(strategy: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router and an expert's two matrices are matrices of their own, wherever the expert is."""
    monkeypatch.setattr(f"{__name__}.SHAPE", replace(SHAPE, num_experts=4, active_experts=2))
    alone, losses = learned_with_muon("ddp", "replicated", 1, 12)
    spread = Parallelism(ep=2)
    for parallelism in (Parallelism(), spread):
        made, found = learned_with_muon(strategy, way, 4, 12, parallelism=parallelism)
        same(made, found, (losses, alone.parameters()))


@pytest.mark.parametrize("way", ["gathered", "all_to_all"])
def test_an_overflow_leaves_momenta_and_parameters_alone(way: str, tmp_path: Path) -> None:
    """The first step overflows and is skipped, so the second is the first one of a training without the fault."""
    model = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    training = {"model": model, "seq_len": 8, "micro_batch_size": 2, "sharding": "zero1", "precision": "fp16"}
    training |= {"optimizer": {"name": "muon", "distribution": way}, "numerics": True}
    np.save(tmp_path / "once.npy", rows(0, 8)[None])
    np.save(tmp_path / "twice.npy", np.repeat(rows(0, 8)[None], 2, axis=0))
    found = {}
    overflow = [{"step": 0, "what": "overflow", "rank": 1}]
    for steps, faults, file in ((1, [], "once.npy"), (2, overflow, "twice.npy")):
        own = {"steps": steps, "faults": faults, "loss_scaling": {"rule": "static", "start": 1024.0}}
        own["learning"] = {"batches": str(tmp_path / file)}
        data = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 4}, "training": training | own}
        found[steps] = simulate(load_scenario(data))
    assert found[2].report.learning.skipped == (0,)
    for name, value in found[1].parameters.items():
        assert value.tobytes() == found[2].parameters[name].tobytes(), name
