"""V-Half: a zero-bubble schedule in a V that holds half of what 1F1B's first rank does.

References
----------
.. [1] Qi, Wan, Amar & Lin, "Pipeline parallelism with controllable memory", NeurIPS 2024, arXiv:2405.15362, figure 3.
"""

from __future__ import annotations

from simulator.step.pipelines.patterns import settled
from simulator.step.pipelines.schedule import Order, PipelineSchedule, PipelineShape, Placement, always, at_least_one


def _pattern(ranks: int, rank: int) -> tuple[int, int, int, int]:
    later = 3 if ranks % 2 == 0 else 0
    return 2 * rank, 3 * ranks - rank - 2, 3 * ranks + later + 2 * rank - 1, 6 * ranks + later - rank - 2


def _order(shape: PipelineShape) -> Order:
    return settled(_pattern, shape.ranks, shape.micro_batches)


SCHEDULE = PipelineSchedule(
    name="v_half",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=at_least_one,
    bubble=None,
    held=None,
    batches_sends=always,
)
