"""Interleaved 1F1B: a rank holds v chunks of the model, p stages apart, and the bubble is v times shorter.

Example with 2 ranks, 2 chunks and 2 micro-batches (stage.micro-batch); B takes two slots::

    rank 0  F0.0 F0.1 F2.0 F2.1 .    .    B2.0 ---- .    B2.1 ---- B0.0 ---- B0.1 ----
    rank 1  .    F1.0 F1.1 F3.0 B3.0 ---- F3.1 B3.1 ---- B1.0 ---- B1.1 ---- .    .

References
----------
.. [1] Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC21,
   section 2.2.2. PyTorch's ScheduleInterleaved1F1B has the same order.
"""

from __future__ import annotations

from simulator.step.pipelines.gpipe import filling
from simulator.step.pipelines.one_forward_one_backward import one_after_one
from simulator.step.pipelines.schedule import Order, Pass, PipelineSchedule, PipelineShape, Placement, Work


def turns(shape: PipelineShape, rank: int, work: Work) -> list[Pass]:
    """Return a rank's passes of one kind (forward, backward, ...): group after group of micro-batches, each group chunk
    by chunk.

    Backward passes begin with the last chunk.
    """
    chunks = range(shape.chunks) if work is Work.FORWARD else range(shape.chunks - 1, -1, -1)
    return [
        Pass(work, chunk * shape.ranks + rank, micro)
        for first in range(0, shape.micro_batches, shape.group)
        for chunk in chunks
        for micro in range(first, min(first + shape.group, shape.micro_batches))
    ]


def warm_up(shape: PipelineShape, rank: int) -> int:
    """Return the number of forward passes that a rank runs in the warm-up; one more runs directly before the first
    backward pass.
    """
    # A group runs through the first v - 1 chunks before its first micro-batch reaches the last chunk; the way to the
    # last rank and back takes 2 (p - r - 1) passes.
    return min(shape.chunks * shape.micro_batches, 2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * shape.group)


def _order(shape: PipelineShape) -> Order:
    """Return the interleaved 1F1B pass order for this pipeline shape."""
    return tuple(
        one_after_one(
            turns(shape, rank, Work.FORWARD),
            turns(shape, rank, Work.BACKWARD),
            warm_up(shape, rank),
            paired=shape.paired,
        )
        for rank in range(shape.ranks)
    )


def refusal(shape: PipelineShape) -> str:
    """Return a sentence telling why the groups of micro-batches in this pipeline shape cannot run, by Megatron-LM's
    rules; empty if possible.

    Every group, the last one included, must have a micro-batch for each rank.
    """
    p, m, g = shape.ranks, shape.micro_batches, shape.group
    if not p <= g <= m:
        return f"got groups of {g} micro-batches; must be from {p} (the pipeline's ranks) to {m} (the micro-batches)"
    # A last group with fewer micro-batches than ranks cannot feed every rank before its next chunk's turn.
    if 0 < m % g < p:
        return (
            f"got {m} micro-batches in groups of {g}, which leaves an incomplete group of {m % g} for {p} ranks; "
            f"write {m - m % g} or {m - m % g + p} micro-batches"
        )
    return ""


def _held(shape: PipelineShape, rank: int) -> int:
    """Return the most chunk activations held at once by a rank: its warm-up passes and a further forward pass."""
    every = shape.chunks * shape.micro_batches
    return min(every, warm_up(shape, rank) + 1 + shape.paired)


def _overtakes(shape: PipelineShape) -> bool:
    """Return True if groups exceed the pipeline: a chunk's messages then overtake another chunk's."""
    return shape.chunks > 1 and shape.group > shape.ranks


SCHEDULE = PipelineSchedule(
    name="interleaved",
    placement=Placement.LOOP,
    chunks=None,
    splits_backward=False,
    order=_order,
    refusal=refusal,
    bubble=filling,
    held=_held,
    grouped=True,
    # Hosts that wait for each message (nanotron, Megatron-LM in 2021) would deadlock if messages overtook each other.
    batches_sends=_overtakes,
)
