"""Looped breadth-first: all micro-batches through a rank's first chunk, then through its next, and back in reverse.

References
----------
.. [1] Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys 2023, arXiv:2211.05953. The order is that of PyTorch's
   ScheduleLoopedBFS, which passes micro-batches back from the last to the first.
"""

from __future__ import annotations

from simulator.step.pipelines.gpipe import filling
from simulator.step.pipelines.schedule import (
    Order,
    Pass,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Work,
    at_least_one,
)


def _order(shape: PipelineShape) -> Order:
    forward = [(chunk, micro) for chunk in range(shape.chunks) for micro in range(shape.micro_batches)]
    return tuple(
        tuple(
            (Pass(work, chunk * shape.ranks + rank, micro),)
            for work, turns in ((Work.FORWARD, forward), (Work.BACKWARD, forward[::-1]))
            for chunk, micro in turns
        )
        for rank in range(shape.ranks)
    )


def _held(shape: PipelineShape, rank: int) -> int:
    return shape.chunks * shape.micro_batches


def _refusal(shape: PipelineShape) -> str:
    p, m = shape.ranks, shape.micro_batches
    if shape.chunks > 1 and m < p:
        return f"got {m} micro-batches for {p} ranks; must be at least as many as the pipeline's ranks"
    return at_least_one(shape)


SCHEDULE = PipelineSchedule(
    name="looped_bfs",
    placement=Placement.LOOP,
    chunks=None,
    splits_backward=False,
    order=_order,
    refusal=_refusal,
    bubble=filling,
    held=_held,
)
