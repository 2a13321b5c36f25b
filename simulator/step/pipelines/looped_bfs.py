"""Looped breadth-first: every micro-batch through a rank's first chunk, then its next chunk, and back in reverse order.

Example with 2 ranks, 2 chunks and 2 micro-batches (stage.micro-batch); B takes two slots::

    rank 0  F0.0 F0.1 F2.0 F2.1 .    .    .    B2.1 ---- B2.0 ---- B0.1 ---- B0.0 ----
    rank 1  .    F1.0 F1.1 F3.0 F3.1 B3.1 ---- B3.0 ---- B1.1 ---- B1.0 ---- .    .

References
----------
.. [1] Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys 2023, arXiv:2211.05953. The order equals PyTorch's
   ScheduleLoopedBFS, which runs backward passes from the last micro-batch to the first.
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
    """Return the looped breadth-first pass order for this pipeline shape."""
    forward = [(chunk, micro) for chunk in range(shape.chunks) for micro in range(shape.micro_batches)]
    return tuple(
        tuple(
            (Pass(work, chunk * shape.ranks + rank, micro),)
            # Reversing chunks and micro-batches frees the newest activations first.
            for work, turns in ((Work.FORWARD, forward), (Work.BACKWARD, forward[::-1]))
            for chunk, micro in turns
        )
        for rank in range(shape.ranks)
    )


def _held(shape: PipelineShape, rank: int) -> int:
    """Return the most chunk activations held at once by a rank: every chunk of every micro-batch."""
    return shape.chunks * shape.micro_batches


def _refusal(shape: PipelineShape) -> str:
    """Return a sentence telling why looped breadth-first cannot run this pipeline shape; empty if possible."""
    p, m = shape.ranks, shape.micro_batches
    # With fewer micro-batches than ranks, rank 0 would wait for its next chunk's input.
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
