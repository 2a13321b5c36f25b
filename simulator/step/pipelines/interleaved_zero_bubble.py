"""Interleaved zero bubble: interleaved 1F1B in which rank r computes weight gradients r backward passes later.

Example with 2 ranks, 2 chunks and 2 micro-batches (stage.micro-batch)::

    rank 0  F0.0 F0.1 F2.0 F2.1 .    I2.0 W2.0 I2.1 W2.1 I0.0 W0.0 I0.1 W0.1
    rank 1  .    F1.0 F1.1 F3.0 I3.0 F3.1 I3.1 W3.0 I1.0 W3.1 I1.1 W1.0 W1.1

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024; the order equals PyTorch 2.15's
   ScheduleInterleavedZeroBubble.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.step.pipelines import interleaved
from simulator.step.pipelines.schedule import Order, Pass, PipelineSchedule, PipelineShape, Placement, Work, always
from simulator.step.pipelines.zero_bubble import unhidden


def _rank(shape: PipelineShape, rank: int) -> list[Pass]:
    """Return the passes of a rank in order, for this pipeline shape."""
    every = shape.chunks * shape.micro_batches
    # Fewer warm-up passes than interleaved 1F1B: input gradients alone return earlier than whole backward passes.
    ahead = min(every, (shape.chunks - 1) * shape.group + shape.ranks - 1 - rank)
    forward = interleaved.turns(shape, rank, Work.FORWARD)
    backward = interleaved.turns(shape, rank, Work.INPUT_GRADIENT)
    weights = [replace(entry, work=Work.WEIGHT_GRADIENT) for entry in backward]
    passes = forward[:ahead]
    for turn, back in enumerate(backward):
        # Empty slices at both ends: forward passes run out, and the first r weight gradients are not due yet.
        passes += [
            *forward[ahead + turn : ahead + turn + 1],
            back,
            *weights[max(turn - rank, 0) : max(turn - rank + 1, 0)],
        ]
    return passes + weights[max(every - rank, 0) :]


def _order(shape: PipelineShape) -> Order:
    """Return the interleaved zero-bubble pass order for this pipeline shape."""
    return tuple(tuple((entry,) for entry in _rank(shape, rank)) for rank in range(shape.ranks))


SCHEDULE = PipelineSchedule(
    name="interleaved_zero_bubble",
    placement=Placement.LOOP,
    chunks=None,
    splits_backward=True,
    order=_order,
    refusal=interleaved.refusal,
    bubble=unhidden,
    held=None,
    grouped=True,
    batches_sends=always,
)
