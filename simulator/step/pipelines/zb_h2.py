"""ZB-H2: zero bubble with twice 1F1B's memory.

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 2.2 and figure 3.
"""

from __future__ import annotations

from simulator.step.pipelines.greedy import greedy
from simulator.step.pipelines.schedule import (
    Order,
    PassTimes,
    PipelineSchedule,
    PipelineShape,
    Placement,
    at_least_one,
)


def _order(shape: PipelineShape) -> Order:
    return greedy(shape.ranks, shape.micro_batches, 2 * shape.ranks)


def late_start(shape: PipelineShape, times: PassTimes) -> float:
    """Nobody waits between its first pass and its last, but the last rank starts p - 1 forward passes later."""
    return (shape.ranks - 1) * times.forward


SCHEDULE = PipelineSchedule(
    name="zb_h2",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=True,
    order=_order,
    refusal=at_least_one,
    bubble=late_start,
    held=None,
)
