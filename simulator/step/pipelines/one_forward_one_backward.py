"""1F1B: a rank runs backward passes as early as possible, and rank r holds at most p - r micro-batches.

Example with 3 ranks and 4 micro-batches; B takes two slots::

    rank 0  F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    rank 1  .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    rank 2  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .

References
----------
.. [1] Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-Flush), ICML 2021.
.. [2] Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC21,
   section 2.2.1.
"""

from __future__ import annotations

from simulator.step.pipelines.gpipe import filling
from simulator.step.pipelines.schedule import (
    Order,
    Pass,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Slot,
    Work,
    at_least_one,
)


def _order(shape: PipelineShape) -> Order:
    """Return the 1F1B pass order for this pipeline shape."""
    m = shape.micro_batches
    return tuple(
        one_after_one(
            [Pass(Work.FORWARD, rank, micro) for micro in range(m)],
            [Pass(Work.BACKWARD, rank, micro) for micro in range(m)],
            # The first micro-batch returns after a forward pass on each of the p - r - 1 ranks behind.
            min(m, shape.ranks - rank - 1),
        )
        for rank in range(shape.ranks)
    )


def one_after_one(forward: list[Pass], backward: list[Pass], warm_up: int) -> tuple[Slot, ...]:
    """Return a rank's order: `warm_up` forward passes, then forward and backward passes by turns, then the rest of the
    backward passes.
    """
    ahead, left = forward[:warm_up], backward[len(forward) - warm_up :]
    # `backward` is longer than the rest of `forward`; its end is in `left`.
    pairs = zip(forward[warm_up:], backward, strict=False)
    return tuple((entry,) for entry in (*ahead, *(entry for pair in pairs for entry in pair), *left))


def _held(shape: PipelineShape, rank: int) -> int:
    """Return the most micro-batches with activations held at once by a rank under 1F1B: min(m, p - rank)."""
    return min(shape.micro_batches, shape.ranks - rank)


SCHEDULE = PipelineSchedule(
    name="1f1b",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=False,
    order=_order,
    refusal=at_least_one,
    # Same bubble as GPipe's; 1F1B saves memory, not time.
    bubble=filling,
    held=_held,
)
