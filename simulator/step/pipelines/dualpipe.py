"""DualPipe: two copies of the model, one from each end of the ranks.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1 and table 2.
"""

from __future__ import annotations

from simulator.step.pipelines.both_ends import Legs, from_both_ends, turning
from simulator.step.pipelines.schedule import Order, PassTimes, PipelineSchedule, PipelineShape, Placement, always


def _order(shape: PipelineShape) -> Order:
    p = shape.ranks
    # The nearer leg first.
    ways = [(rank, 2 * p - 1 - rank)[:: 1 if rank < p // 2 else -1] for rank in range(p)]
    return tuple(
        from_both_ends(Legs(*way), p // 2, min(rank, p - 1 - rank), shape.micro_batches // 2)
        for rank, way in enumerate(ways)
    )


def _refusal(shape: PipelineShape) -> str:
    p, m = shape.ranks, shape.micro_batches
    if p % 2:
        return f"got {p} ranks; must be even, for half of them are nearer to each end"
    if m % 2 or m < 2 * p:
        return f"got {m} micro-batches; must be even, and at least {2 * p} (twice the pipeline's ranks)"
    return ""


def _bubble(shape: PipelineShape, times: PassTimes) -> float:
    return turning(shape.ranks // 2, times)


def _held(shape: PipelineShape, rank: int) -> int:
    return shape.ranks + 1


SCHEDULE = PipelineSchedule(
    name="dualpipe",
    placement=Placement.BOTH_WAYS,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=_refusal,
    bubble=_bubble,
    held=_held,
    pairs=True,
    batches_sends=always,
)
