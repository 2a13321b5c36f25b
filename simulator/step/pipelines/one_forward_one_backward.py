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

from collections.abc import Iterable

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
            paired=shape.paired,
        )
        for rank in range(shape.ranks)
    )


def one_after_one(forward: list[Pass], backward: list[Pass], warm_up: int, *, paired: bool = False) -> tuple[Slot, ...]:
    """Return a rank's order: `warm_up` forward passes, then forward and backward passes by turns, then the rest of the
    backward passes.

    With `paired`, the kernels of the two passes of a turn are interleaved, as one slot of the order. The warm-up then
    has one forward pass more, because the last rank's backward pass needs a forward pass of an earlier slot: "F0 B0 F1
    B1" becomes "F0, F1 with B0, B1".

    >>> passes = [[Pass(work, 0, micro) for micro in range(3)] for work in (Work.FORWARD, Work.BACKWARD)]
    >>> [" ".join(map(str, slot)) for slot in one_after_one(*passes, 0, paired=True)]
    ['F0.0', 'F0.1 B0.0', 'F0.2 B0.1', 'B0.2']
    """
    warm_up = min(len(forward), warm_up + paired)
    # `backward` is longer than the rest of `forward`; its end follows the turns.
    turns = list(zip(forward[warm_up:], backward, strict=False))
    both: Iterable[Slot] = turns if paired else ((entry,) for turn in turns for entry in turn)
    ends = (forward[:warm_up], backward[len(forward) - warm_up :])
    ahead, left = (((entry,) for entry in passes) for passes in ends)
    return *ahead, *both, *left


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
