"""V-Min: a zero-bubble schedule in a V that holds a third of what 1F1B's first rank does.

References
----------
.. [1] Qi, Wan, Amar & Lin, "Pipeline parallelism with controllable memory", NeurIPS 2024, arXiv:2405.15362, figure 3.
"""

from __future__ import annotations

from simulator.step.pipelines.patterns import settled
from simulator.step.pipelines.schedule import Order, PipelineSchedule, PipelineShape, Placement, always, at_least_one


def _pattern(ranks: int, rank: int) -> tuple[int, int, int, int]:
    later = 2 if ranks % 3 == 0 else 0
    return rank, 2 * ranks - rank - 1, 2 * ranks + later + rank, 4 * ranks + later - rank - 1


def _order(shape: PipelineShape) -> Order:
    return settled(_pattern, shape.ranks, shape.micro_batches)


SCHEDULE = PipelineSchedule(
    name="v_min",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=at_least_one,
    bubble=None,
    held=None,
    batches_sends=always,
)
