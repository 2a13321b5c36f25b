"""1F1B: a rank passes a micro-batch back as soon as it can, so that it holds no more than p - r of them.

References
----------
.. [1] Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-Flush), ICML 2021.
.. [2] Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC21,
   section 2.2.1.
"""

from __future__ import annotations

from simulator.step.pipelines.gpipe import filling
from simulator.step.pipelines.schedule import (
    Order,
    Pass,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Slot,
    Work,
    at_least_one,
)


def _order(shape: PipelineShape) -> Order:
    m = shape.micro_batches
    return tuple(
        one_after_one(
            [Pass(Work.FORWARD, rank, micro) for micro in range(m)],
            [Pass(Work.BACKWARD, rank, micro) for micro in range(m)],
            min(m, shape.ranks - rank - 1),
        )
        for rank in range(shape.ranks)
    )


def one_after_one(forward: list[Pass], backward: list[Pass], warm_up: int) -> tuple[Slot, ...]:
    """So many forward passes to begin with, then pairs, then what is left of the backward passes."""
    ahead, left = forward[:warm_up], backward[len(forward) - warm_up :]
    pairs = zip(forward[warm_up:], backward, strict=False)
    return tuple((one,) for one in (*ahead, *(one for pair in pairs for one in pair), *left))


def _held(shape: PipelineShape, rank: int) -> int:
    return min(shape.micro_batches, shape.ranks - rank)


SCHEDULE = PipelineSchedule(
    name="1f1b",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=False,
    order=_order,
    refusal=at_least_one,
    bubble=filling,
    held=_held,
)
