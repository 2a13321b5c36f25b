"""Real training on packed documents equals training on the documents one by one, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, fresh
from simulator.numerics.optimizer import step as optimizer_step
from simulator.step.lengths import Lengths, MicroBatch, batches
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from tests.training import play, step

SMALL = Transformer("small", 2, 16, 2, 2, 8, 64, 32, 24)
DOUBLE = Precision(params="float64").resolved()
TOKENS = 24


def one_by_one(gpt: Gpt, parameters: Any, row: Array, documents: tuple[int, ...]) -> tuple[float, dict[str, Array]]:
    """Loss and gradients of a sequence's documents, each computed alone, weighted by their tokens."""
    loss, gradients, begin = 0.0, dict[str, Array](), 0
    for length in documents:
        # The token behind a document is what its last token predicts.
        own, found = gpt.gradients(parameters, row[None, begin : begin + length + 1])
        share = length / sum(documents)
        loss += share * own
        gradients = {name: gradients.get(name, 0.0) + share * gradient for name, gradient in found.items()}
        begin += length
    return loss, gradients


@pytest.mark.parametrize("attention", ["standard", "flash"])
def test_a_pass_over_packed_documents_is_the_sum_of_passes_over_each(attention: Any) -> None:
    gpt = Gpt(32, 16, 2, TOKENS, 2, arithmetic("float64"), attention, tied=True)
    parameters, row = task.initial(gpt, 0), task.sequences(0, 0, 1, TOKENS + 1, 32)[0]
    documents = (11, 7, 5, 1)
    loss, gradients = replace(gpt, documents=documents).gradients(parameters, row[None])
    expected, wanted = one_by_one(gpt, parameters, row, documents)
    assert loss == pytest.approx(expected, rel=1e-12)
    assert loss != pytest.approx(gpt.gradients(parameters, row[None])[0], rel=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-10, atol=1e-14)


def by_hand(drawn: tuple[tuple[MicroBatch, ...], ...], steps: int) -> tuple[list[float], dict[str, Array]]:
    """Losses and parameters of a plain loop: the mean over the tokens of a micro-batch, then over micro-batches."""
    gpt = Gpt(32, 16, 2, TOKENS, 2, arithmetic("float64"), tied=True)
    parameters = {unit: dict(own) for unit, own in task.initial(gpt, 0).items()}
    flat = {name: value for own in parameters.values() for name, value in own.items()}
    rule, losses = Adam(), list[float]()
    states = {name: fresh(rule, value) for name, value in flat.items()}
    micro_batches = [micro for rank in drawn for micro in rank]
    for number in range(steps):
        found = [
            one_by_one(gpt, parameters, row, micro.documents)
            for row, micro in zip(rows(number, len(micro_batches)), micro_batches, strict=True)
        ]
        losses.append(float(np.mean([loss for loss, _ in found])))
        for name, value in flat.items():
            gradient = np.mean([gradients[name] for _, gradients in found], axis=0)
            optimizer_step(rule, value, gradient, states[name])
    return losses, flat


def rows(number: int, count: int) -> Array:
    return task.sequences(0, number, count, TOKENS + 1, 32)


@pytest.mark.parametrize(
    ("ranks", "facts"),
    [
        (2, {}),
        (2, {"sharding": "zero3", "activation_checkpointing": "full"}),
        (2, {"attention": "flash", "activation_checkpointing": "selective_op"}),
        (2, {"activation_checkpointing": "attention"}),
        (4, {"parallelism": Parallelism(tp=2)}),
        (4, {"parallelism": Parallelism(pp=2)}),
    ],
    ids=["ddp", "zero3", "flash", "attention", "tp", "pp"],
)
def test_a_training_on_packed_documents_learns_what_each_teaches(ranks: int, facts: dict[str, Any]) -> None:
    strategy = facts.pop("sharding", "ddp")
    lengths = Lengths(histogram={11: 2.0, 7: 1.0, 5: 1.0}, seed=3)
    drawn = batches(lengths, "pack", TOKENS, 1, (2, 2))
    assert any(len(micro.documents) > 1 for rank in drawn for micro in rank)
    assert any(micro.used < TOKENS for rank in drawn for micro in rank)
    keys = {"seq_len": TOKENS, "micro_batch_size": 1, "gradient_accumulation_steps": 2, "precision": DOUBLE}
    made = step(strategy, replace(SMALL, tied=True), algorithm="direct", **keys, **facts)
    made = replace(made.with_keys(lengths=lengths, batching="pack"), batches=drawn)
    played = play(made, ranks)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline, Adam(), seed=5)
    training = start(setting, task.initial(setting.gpt, 0))
    losses = [training.step(rows(number, 4)).loss for number in range(3)]
    expected, parameters = by_hand(drawn, 3)
    assert losses == pytest.approx(expected, rel=1e-12)
    for name, value in training.parameters().items():
        np.testing.assert_allclose(value, parameters[name], rtol=1e-7, atol=1e-9)
