"""ZBV as PyTorch's ScheduleZBVZeroBubble has it: ZB-V's order by counts, without looking at times.

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 6; torch.distributed.pipelining
   2.15, whose orders are those of this file.
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
    p, m = shape.ranks, shape.micro_batches
    own = Chunks(rank, 2 * p - 1 - rank)
    forward, back, weights = Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT
    ahead = 2 * (p - rank) - 1
    own.do(*[(forward, 0)] * ahead)
    own.do(*[(forward, 1), (forward, 0)] * rank)
    own.do(*[(forward, 1), (back, 1), (weights, 1)] * (p - rank))
    for turn in range(m - p):
        if ahead + rank + turn < m:
            own.do((forward, 0))
        own.do((back, 0), (weights, 0), (forward, 1), (back, 1), (weights, 1))
    own.do(*[(back, 0), (back, 1)] * rank)
    own.do(*[(back, 0), (weights, 0)] * (p - rank))
    own.do(*[(weights, 1)] * rank, *[(weights, 0)] * rank)
    return tuple(own.slots)


def _order(shape: PipelineShape) -> Order:
    return tuple(_rank(shape, rank) for rank in range(shape.ranks))


def _refusal(shape: PipelineShape) -> str:
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
