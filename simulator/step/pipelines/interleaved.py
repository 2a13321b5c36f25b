"""Interleaved 1F1B: a rank holds v chunks of the model, p stages apart, which makes the bubble v times shorter.

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
    """A rank's passes of one kind: group after group of micro-batches, and each group chunk by chunk.

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
    """Forward passes before the first that is followed by a backward pass."""
    return min(shape.chunks * shape.micro_batches, 2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * shape.group)


def _order(shape: PipelineShape) -> Order:
    return tuple(
        one_after_one(turns(shape, rank, Work.FORWARD), turns(shape, rank, Work.BACKWARD), warm_up(shape, rank))
        for rank in range(shape.ranks)
    )


def refusal(shape: PipelineShape) -> str:
    """As Megatron-LM refuses: a group feeds all ranks, and the last one too."""
    p, m, g = shape.ranks, shape.micro_batches, shape.group
    if not p <= g <= m:
        return f"got groups of {g} micro-batches; must be from {p} (the pipeline's ranks) to {m} (the micro-batches)"
    if 0 < m % g < p:
        return (
            f"got {m} micro-batches in groups of {g}, which leaves {m % g} for {p} ranks; "
            f"write {m - m % g} or {m - m % g + p} micro-batches"
        )
    return ""


def _held(shape: PipelineShape, rank: int) -> int:
    every = shape.chunks * shape.micro_batches
    return min(every, warm_up(shape, rank) + 1)


def _overtakes(shape: PipelineShape) -> bool:
    """Return True if groups are larger than the pipeline: then messages of one chunk overtake those of another."""
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
    batches_sends=_overtakes,
)
