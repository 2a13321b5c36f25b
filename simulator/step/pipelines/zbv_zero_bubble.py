"""PyTorch's ScheduleZBVZeroBubble: ZB-V's order by fixed numbers of passes, without simulated times.

Example with 2 ranks and 3 micro-batches (stage.micro-batch)::

    rank 0  F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 F3.2 I3.2 W3.2 I0.1 W0.1 I0.2 W0.2 .
    rank 1  .    F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 F1.2 I1.0 W1.0 F2.2 I2.1 W2.1 I1.1 I2.2 I1.2 W1.1 W2.2 W1.2

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 6; torch.distributed.pipelining
   2.15, with equal orders.
"""

from __future__ import annotations

from simulator.step.pipelines.chunk_passes import Chunks
from simulator.step.pipelines.schedule import (
    Order,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Slot,
    Work,
    always,
)
from simulator.step.pipelines.zero_bubble import late_start


def _rank(shape: PipelineShape, rank: int) -> tuple[Slot, ...]:
    """Return the slots of a rank in order, each with one pass, for this pipeline shape."""
    p, m = shape.ranks, shape.micro_batches
    chunks = Chunks(rank, 2 * p - 1 - rank)
    forward, back, weights = Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT
    ahead = 2 * (p - rank) - 1
    # Warm-up: the first chunk's forward passes until the first micro-batch comes back up the V.
    chunks.do(*[(forward, 0)] * ahead)
    chunks.do(*[(forward, 1), (forward, 0)] * rank)
    # The second chunk starts its backward passes.
    chunks.do(*[(forward, 1), (back, 1), (weights, 1)] * (p - rank))
    # Steady state: forward and backward through both chunks.
    for turn in range(m - p):
        if ahead + rank + turn < m:
            chunks.do((forward, 0))
        chunks.do((back, 0), (weights, 0), (forward, 1), (back, 1), (weights, 1))
    # Cool-down: input gradients before weight gradients, because the ranks after this one wait for them.
    chunks.do(*[(back, 0), (back, 1)] * rank)
    chunks.do(*[(back, 0), (weights, 0)] * (p - rank))
    chunks.do(*[(weights, 1)] * rank, *[(weights, 0)] * rank)
    return tuple(chunks.slots)


def _order(shape: PipelineShape) -> Order:
    """Return the pass order in PyTorch's ScheduleZBVZeroBubble for this pipeline shape."""
    return tuple(_rank(shape, rank) for rank in range(shape.ranks))


def _refusal(shape: PipelineShape) -> str:
    """Return a sentence telling why PyTorch's ZBV schedule cannot run this pipeline shape; empty if possible."""
    least = 2 * shape.ranks - 1
    if shape.micro_batches < least:
        return f"got {shape.micro_batches} micro-batches for {shape.ranks} ranks; must be at least {least} (2 p - 1)"
    return ""


SCHEDULE = PipelineSchedule(
    name="zbv_zero_bubble",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=_refusal,
    bubble=late_start,
    held=None,
    batches_sends=always,
)
