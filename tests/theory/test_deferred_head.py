"""Deferred weight gradients of the head (Megatron-LM's --defer-embedding-wgrad-compute): bytes, kernels and order."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.records.operation import Allocate, Collective, Compute, Free, Op
from simulator.step.framework import BARE
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from tests.training import TINY, PlayedStep, play, step

# Four micro-batches of 2 x 32 tokens in bfloat16 on two stages; two data-parallel ranks.
TOKENS, MICROS = 2 * 32, 4
# The head's input and the gradient of its logits, 2 bytes a number.
WAITING = 2 * TOKENS * (TINY.hidden_size + TINY.vocab_size)


def played(deferred: Any, strategy: str = "ddp", **facts: Any) -> PlayedStep:
    cut = Parallelism(pp=2, deferred_head_gradients=deferred, **facts.pop("cut", {}))
    framework = BARE.with_constants(gradient_buffers=True, accumulates_in_matmul=True)
    precision = Precision(grads="float32").resolved()
    facts |= {"gradient_accumulation_steps": MICROS, "parallelism": cut, "precision": precision}
    made = step(strategy, framework=framework, **facts)
    return play(made, 4)


def last(run: PlayedStep) -> list[Op]:
    """Operations of the last stage."""
    return list(run.plan.program.ranks[-1])


@pytest.mark.parametrize(("deferred", "number"), [(0, 0), (1, 1), (3, 3), ("all", 4), (9, 4)])
def test_input_and_gradient_of_the_logits_wait_for_each_deferred_micro_batch(deferred: Any, number: int) -> None:
    ops = last(played(deferred))
    waiting = [op for op in ops if isinstance(op, Allocate) and op.name.startswith("head deferred")]
    assert [op.nbytes for op in waiting] == [WAITING] * number
    freed = [op.allocation for op in ops if isinstance(op, Free)]
    assert all(freed.count(op.name) == 1 for op in waiting)


@pytest.mark.parametrize("schedule", [{}, {"schedule": "interleaved", "virtual_stages": 2}])
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_deferred_kernels_follow_the_last_backward_pass_and_precede_the_sum(strategy: str, schedule: Any) -> None:
    ops = last(played(2, strategy, cut=schedule))
    places = {op.name: place for place, op in enumerate(ops)}
    backward = [places[name] for name in places if " backward " in name]
    drained = [places[f"head weight gradient {micro}"] for micro in (0, 1)]
    assert max(backward) < drained[0] < drained[1]
    sums = [place for place, op in enumerate(ops) if isinstance(op, Collective) and "bucket" in op.name]
    assert sum(place > drained[1] for place in sums) == 1
    assert "head weight gradient 2" not in places


def test_only_the_order_of_kernels_changes() -> None:
    """The same kernels on every rank; the first stage waits less for the last, as in Megatron-LM's pipeline drain."""

    def kernels(run: PlayedStep) -> list[float]:
        return [
            sum(op.duration for op in ops if isinstance(op, Compute) and op.stream == "compute")
            for ops in run.plan.program.ranks
        ]

    now, later = played(0, micro_batch_size=16), played("all", micro_batch_size=16)
    assert kernels(later) == pytest.approx(kernels(now))
    first = [
        max(span.end for span in run.timeline.spans if span.rank == 0 and span.name.startswith("embedding backward"))
        for run in (now, later)
    ]
    assert first[1] < first[0]


def test_three_of_four_micro_batches_wait_at_the_peak_of_the_last_stage() -> None:
    """The peak is in the last backward pass: three micro-batches wait while the fourth goes back."""
    peaks = [
        max(sample.nbytes for sample in played(deferred).timeline.memory if sample.rank == 3)
        for deferred in (0, 3, "all")
    ]
    assert peaks[1] - peaks[0] == 3 * WAITING
    assert peaks[2] - peaks[0] == 3 * WAITING


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"strategy": "zero3"}, "zero3 cannot defer"),
        ({"cut": {"schedule": "zb_h1"}}, "zb_h1 cannot defer"),
        ({"loss": "chunked"}, "a chunked loss computes"),
    ],
)
def test_settings_that_cannot_defer_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        played("all", **facts)
