"""Interleaved zero bubble: interleaved 1F1B whose rank r computes weights' gradients r backward passes later.

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024; the order is that of PyTorch 2.15's
   ScheduleInterleavedZeroBubble.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.step.pipelines import interleaved
from simulator.step.pipelines.schedule import Order, Pass, PipelineSchedule, PipelineShape, Placement, Work, always
from simulator.step.pipelines.zero_bubble import unhidden


def _rank(shape: PipelineShape, rank: int) -> list[Pass]:
    every = shape.chunks * shape.micro_batches
    ahead = min(every, (shape.chunks - 1) * shape.group + shape.ranks - 1 - rank)
    forward = interleaved.turns(shape, rank, Work.FORWARD)
    backward = interleaved.turns(shape, rank, Work.INPUT_GRADIENT)
    weights = [replace(one, work=Work.WEIGHT_GRADIENT) for one in backward]
    made = forward[:ahead]
    for turn, back in enumerate(backward):
        made += [
            *forward[ahead + turn : ahead + turn + 1],
            back,
            *weights[max(turn - rank, 0) : max(turn - rank + 1, 0)],
        ]
    return made + weights[max(every - rank, 0) :]


def _order(shape: PipelineShape) -> Order:
    return tuple(tuple((one,) for one in _rank(shape, rank)) for rank in range(shape.ranks))


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
