"""GPipe: a rank runs every micro-batch forward, then every micro-batch backward.

Example with 2 ranks and 2 micro-batches; B takes two slots::

    rank 0  F0 F1 .  .  .  B0 -- B1 --
    rank 1  .  F0 F1 B0 -- B1 -- .  .

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
    """Return the GPipe pass order for this pipeline shape; backward passes have the micro-batch order of forward
    passes.
    """
    micros = range(shape.micro_batches)
    return tuple(
        # With a chunk per rank, stage numbers equal rank numbers.
        tuple((Pass(work, rank, micro),) for work in (Work.FORWARD, Work.BACKWARD) for micro in micros)
        for rank in range(shape.ranks)
    )


def filling(shape: PipelineShape, times: PassTimes) -> float:
    """Return the bubble [s] of filling and draining a pipeline, from its shape and pass durations: (p - 1)(F + B).

    The last rank waits for the first micro-batch to arrive, the first rank for the last micro-batch to return.
    """
    return (shape.ranks - 1) * (times.forward + times.backward)


def _held(shape: PipelineShape, rank: int) -> int:
    """Return the most micro-batches with activations held at once by a rank under GPipe: the step's micro-batches."""
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
