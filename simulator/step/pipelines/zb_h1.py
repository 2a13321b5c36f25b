"""ZB-H1: zero bubble within 1F1B's memory.

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 2.1 and figure 2.
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
    return greedy(shape.ranks, shape.micro_batches, shape.ranks)


def unhidden(shape: PipelineShape, times: PassTimes) -> float:
    """Of 1F1B's bubble weights' gradients fill two parts; with passes that take equally long, and enough of them."""
    return (shape.ranks - 1) * (times.forward + times.backward - 2 * times.weights)


SCHEDULE = PipelineSchedule(
    name="zb_h1",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=True,
    order=_order,
    refusal=at_least_one,
    bubble=unhidden,
    held=None,
)
