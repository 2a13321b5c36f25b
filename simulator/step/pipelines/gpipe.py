"""GPipe: all micro-batches forward, then all of them backward.

References
----------
.. [1] Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019,
   section 2.2.
"""

from __future__ import annotations

from simulator.step.pipelines.schedule import (
    Order,
    Pass,
    PassTimes,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Work,
    at_least_one,
)


def order(shape: PipelineShape) -> Order:
    """Micro-batches in one order both ways."""
    micros = range(shape.micro_batches)
    return tuple(
        tuple((Pass(work, rank, micro),) for work in (Work.FORWARD, Work.BACKWARD) for micro in micros)
        for rank in range(shape.ranks)
    )


def filling(shape: PipelineShape, times: PassTimes) -> float:
    """The last rank waits for the first micro-batch to come, the first one for the last to come back."""
    return (shape.ranks - 1) * (times.forward + times.backward)


def _held(shape: PipelineShape, rank: int) -> int:
    return shape.micro_batches


SCHEDULE = PipelineSchedule(
    name="gpipe",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=False,
    order=order,
    refusal=at_least_one,
    bubble=filling,
    held=_held,
)
