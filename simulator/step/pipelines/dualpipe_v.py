"""DualPipe-V: DualPipe cut in half. One copy of the model in a V, whose second leg comes back to the first rank.

References
----------
.. [1] Qi et al., "Cut-in-half", hackmd.io/@ufotalent/r1lVXsa9Jg; the order is that of PyTorch 2.15's
   ScheduleDualPipeV.
"""

from __future__ import annotations

from simulator.step.pipelines.both_ends import Legs, from_both_ends, turning
from simulator.step.pipelines.schedule import Order, PassTimes, PipelineSchedule, PipelineShape, Placement, always


def _order(shape: PipelineShape) -> Order:
    p = shape.ranks
    return tuple(from_both_ends(Legs(rank, 2 * p - 1 - rank), p, rank, shape.micro_batches) for rank in range(p))


def _refusal(shape: PipelineShape) -> str:
    p, m = shape.ranks, shape.micro_batches
    return "" if m >= 2 * p else f"got {m} micro-batches; must be at least {2 * p} (twice the pipeline's ranks)"


def _bubble(shape: PipelineShape, times: PassTimes) -> float:
    return turning(shape.ranks, times)


def _held(shape: PipelineShape, rank: int) -> int:
    return 2 * shape.ranks + 1


SCHEDULE = PipelineSchedule(
    name="dualpipe_v",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=_refusal,
    bubble=_bubble,
    held=_held,
    pairs=True,
    batches_sends=always,
)
