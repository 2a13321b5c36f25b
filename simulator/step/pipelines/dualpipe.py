"""In which order do DualPipe and DualPipe-V run micro-batches that come from both ends of the pipeline at once?

DualPipe has two copies of the model, one from each end of the ranks. DualPipe-V is DualPipe cut in half: one copy in a
V, whose second leg comes back to the first rank. A rank has a stage of each of two legs, one near the leg's beginning
and one far from it. While both legs are fed, a forward pass through one leg runs beside a backward pass through the
other leg, so that the kernels of each hide the sends of the other.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1, figure 5 and table 2.
.. [2] github.com/deepseek-ai/DualPipe, dualpipe.py: how many passes of each kind.
.. [3] Qi et al., "Cut-in-half", hackmd.io/@ufotalent/r1lVXsa9Jg; the order of DualPipe-V is that of PyTorch 2.15's
   ScheduleDualPipeV.
"""

from __future__ import annotations

from simulator.step.pipelines.chunk_passes import Chunks
from simulator.step.pipelines.schedule import (
    Order,
    PassTimes,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Slot,
    Work,
    always,
)

_F, _B, _I, _W = Work.FORWARD, Work.BACKWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT


class Legs(Chunks):
    """A rank's two chunks; weights' gradients wait in a queue, whichever chunk they are of."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)
        self._queue: list[int] = []

    def back(self, leg: int, *, split: bool = True) -> None:
        """A backward pass; without its weights' gradients if it is split."""
        self.do((_I if split else _B, leg))
        if split:
            self._queue.append(leg)

    def weights(self) -> None:
        """The oldest weights' gradients."""
        self.do((_W, self._queue.pop(0)))

    def pair(self, leg: int) -> None:
        """A forward pass through one leg beside a backward pass through the other."""
        self.slots.append((self.take(_F, leg), self.take(_B, 1 - leg)))


def from_both_ends(legs: Legs, depth: int, place: int, micro_batches: int) -> tuple[Slot, ...]:
    """A rank's order.

    Parameters
    ----------
    legs : Legs
    depth : int
        Ranks from an end to the turning point.
    place : int
        Of this rank on that way.
    micro_batches : int
        That come down each leg.
    """
    until = depth - place - 1
    legs.do(*[(_F, 0)] * (2 * until))
    legs.do(*[(_F, 0), (_F, 1)] * (place + 1))
    for _ in range(until):
        legs.back(1)
        legs.weights()
        legs.do((_F, 1))
    for turn in range(micro_batches - 2 * depth + place + 1):
        if turn == 0 and until == 0:
            # Overlapped, the ranks in the middle would wait for each other: the bubble would be longer.
            legs.do((_F, 0))
            legs.back(1, split=False)
        else:
            legs.pair(0)
        legs.pair(1)
    for _ in range(until):
        legs.back(1, split=False)
        legs.pair(1)
    # The second half of what is left has its weights' gradients put off.
    for turn in range(2 * (place + 1)):
        legs.back(1 - turn % 2, split=turn > place)
    for _ in range(until):
        legs.weights()
        legs.back(0)
    for _ in range(place + 1):
        legs.weights()
    return tuple(legs.slots)


def turning(depth: int, times: PassTimes) -> float:
    """The bubble where a leg has so many ranks to its turning point [s]; README of [2]_."""
    return (depth - 1) * (times.pair + times.backward - 3 * times.weights)


def _order(shape: PipelineShape) -> Order:
    p = shape.ranks
    # The nearer leg first.
    ways = [(rank, 2 * p - 1 - rank)[:: 1 if rank < p // 2 else -1] for rank in range(p)]
    return tuple(
        from_both_ends(Legs(*way), p // 2, min(rank, p - 1 - rank), shape.micro_batches // 2)
        for rank, way in enumerate(ways)
    )


def _refusal(shape: PipelineShape) -> str:
    p, m = shape.ranks, shape.micro_batches
    if p % 2:
        return f"got {p} ranks; must be even, for half of them are nearer to each end"
    if m % 2 or m < 2 * p:
        return f"got {m} micro-batches; must be even, and at least {2 * p} (twice the pipeline's ranks)"
    return ""


def _bubble(shape: PipelineShape, times: PassTimes) -> float:
    return turning(shape.ranks // 2, times)


def _held(shape: PipelineShape, rank: int) -> int:
    return shape.ranks + 1


DUALPIPE = PipelineSchedule(
    name="dualpipe",
    placement=Placement.BOTH_WAYS,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=_refusal,
    bubble=_bubble,
    held=_held,
    pairs=True,
    batches_sends=always,
)


def _order_v(shape: PipelineShape) -> Order:
    p = shape.ranks
    return tuple(from_both_ends(Legs(rank, 2 * p - 1 - rank), p, rank, shape.micro_batches) for rank in range(p))


def _refusal_v(shape: PipelineShape) -> str:
    p, m = shape.ranks, shape.micro_batches
    return "" if m >= 2 * p else f"got {m} micro-batches; must be at least {2 * p} (twice the pipeline's ranks)"


def _bubble_v(shape: PipelineShape, times: PassTimes) -> float:
    return turning(shape.ranks, times)


def _held_v(shape: PipelineShape, rank: int) -> int:
    return 2 * shape.ranks + 1


DUALPIPE_V = PipelineSchedule(
    name="dualpipe_v",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order_v,
    refusal=_refusal_v,
    bubble=_bubble_v,
    held=_held_v,
    pairs=True,
    batches_sends=always,
)

SCHEDULE = (DUALPIPE, DUALPIPE_V)
