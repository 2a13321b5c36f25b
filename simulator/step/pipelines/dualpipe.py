"""In which order do DualPipe and DualPipe-V run micro-batches that come from both ends of the pipeline at once?

DualPipe has two model copies, one from each end of the ranks. DualPipe-V is DualPipe cut in half: a single copy in a V,
whose second leg returns to the first rank. A rank has a stage on each leg, one near the leg's beginning and one far
from it. While both legs are fed, a forward pass through a leg runs beside a backward pass through the other leg, and
the kernels of each hide the sends of the other.

DualPipe with 2 ranks and 4 micro-batches, two for each copy. Rank 0 has stage 0 of the first copy and stage 3, the last
stage of the second copy; B takes two slots, and F+B is a pair::

    rank 0  F0.0 F3.0 F0.1 B3.0 ---- F3.1+ B0.0 ---- B3.1 ---- I0.1 W0.1
    rank 1  F2.0 F1.0 F2.1 B1.0 ---- F1.1+ B2.0 ---- B1.1 ---- I2.1 W2.1

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1, figure 5 and table 2.
.. [2] github.com/deepseek-ai/DualPipe, dualpipe.py: number of passes of each kind.
.. [3] Qi et al., "Cut-in-half", hackmd.io/@ufotalent/r1lVXsa9Jg; DualPipe-V's order equals PyTorch 2.15's
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


class TwoChunks(Chunks):
    """A rank's passes through two chunks, with a common first-in first-out queue for their weight gradients."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)
        self._queue: list[int] = []

    def back(self, leg: int, *, split: bool = True) -> None:
        """Append a backward pass through the chunk on a leg; a split pass leaves its weight gradients in the queue."""
        self.do((_I if split else _B, leg))
        if split:
            self._queue.append(leg)

    def weights(self) -> None:
        """Append the weight-gradient pass that has waited longest in the queue."""
        self.do((_W, self._queue.pop(0)))

    def pair(self, leg: int) -> None:
        """Append a slot with a forward pass through the chunk on a leg and a backward pass through the chunk on the
        other leg.
        """
        # The backward pass of a pair is whole: its weight gradients also hide sends.
        self.slots.append((self.take(_F, leg), self.take(_B, 1 - leg)))


def from_both_ends(legs: TwoChunks, depth: int, place: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return the order of passes on a rank whose two legs are fed from both ends (DualPipe, DualPipe-V).

    Parameters
    ----------
    legs : TwoChunks
        The rank's chunks, the chunk nearer to its leg's beginning first.
    depth : int
        Number of ranks from an end to the turning point.
    place : int
        The rank's place on this way, from 0.
    micro_batches : int
        Number of micro-batches on each leg.
    """
    # Ranks between this rank and the turning point.
    until = depth - place - 1
    # Warm-up: forward passes of leg 0, then of both legs by turns.
    legs.do(*[(_F, 0)] * (2 * until))
    legs.do(*[(_F, 0), (_F, 1)] * (place + 1))
    # The first backward passes arrive; weight gradients fill the gaps until pairs are possible.
    for _ in range(until):
        legs.back(1)
        legs.weights()
        legs.do((_F, 1))
    # Steady state: a forward pass beside a backward pass, in both directions by turns.
    for turn in range(micro_batches - 2 * depth + place + 1):
        if turn == 0 and until == 0:
            # As a pair, the ranks at the turning point would wait for each other and lengthen the bubble.
            legs.do((_F, 0))
            legs.back(1, split=False)
        else:
            legs.pair(0)
        legs.pair(1)
    # Leg 0 has no forward passes left.
    for _ in range(until):
        legs.back(1, split=False)
        legs.pair(1)
    # Cool-down: the second half of the backward passes postpones its weight gradients.
    for turn in range(2 * (place + 1)):
        legs.back(1 - turn % 2, split=turn > place)
    # Postponed weight gradients fill the gaps between the last input gradients.
    for _ in range(until):
        legs.weights()
        legs.back(0)
    # Weight gradients left in the queue end the step.
    for _ in range(place + 1):
        legs.weights()
    return tuple(legs.slots)


def turning(depth: int, times: PassTimes) -> float:
    """Return the bubble [s] of DualPipe's order with `depth` ranks up to the turning point, from durations of passes;
    README of [2]_.
    """
    return (depth - 1) * (times.pair + times.backward - 3 * times.weights)


def _order(shape: PipelineShape) -> Order:
    """Return the DualPipe pass order for this pipeline shape."""
    p = shape.ranks
    # Stages on both legs, the leg with the nearer beginning first.
    ways = [(rank, 2 * p - 1 - rank)[:: 1 if rank < p // 2 else -1] for rank in range(p)]
    return tuple(
        # Each copy gets half of the micro-batches. Ranks r and p - 1 - r have equal places, each on its nearer leg.
        from_both_ends(TwoChunks(*way), p // 2, min(rank, p - 1 - rank), shape.micro_batches // 2)
        for rank, way in enumerate(ways)
    )


def _refusal(shape: PipelineShape) -> str:
    """Return a sentence telling why DualPipe cannot run this pipeline shape; empty if possible."""
    p, m = shape.ranks, shape.micro_batches
    if p % 2:
        return f"got {p} ranks; must be even, because half of the ranks belong to each end of the pipeline"
    if m % 2 or m < 2 * p:
        return f"got {m} micro-batches; must be even, and at least {2 * p} (twice the pipeline's ranks)"
    return ""


def _bubble(shape: PipelineShape, times: PassTimes) -> float:
    """Return DualPipe's bubble [s]; both legs turn in the middle, after p / 2 ranks."""
    return turning(shape.ranks // 2, times)


def _held(shape: PipelineShape, rank: int) -> int:
    """Return the most chunk activations held at once by a rank under DualPipe: p + 1 for p ranks."""
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
    """Return the DualPipe-V pass order for this pipeline shape."""
    p = shape.ranks
    # The V turns at the last rank, and both legs carry every micro-batch.
    return tuple(from_both_ends(TwoChunks(rank, 2 * p - 1 - rank), p, rank, shape.micro_batches) for rank in range(p))


def _refusal_v(shape: PipelineShape) -> str:
    """Return a sentence telling why DualPipe-V cannot run this pipeline shape; empty if possible."""
    p, m = shape.ranks, shape.micro_batches
    return "" if m >= 2 * p else f"got {m} micro-batches; must be at least {2 * p} (twice the pipeline's ranks)"


def _bubble_v(shape: PipelineShape, times: PassTimes) -> float:
    """Return DualPipe-V's bubble [s] for a pipeline shape and durations of passes; the legs turn after p ranks."""
    return turning(shape.ranks, times)


def _held_v(shape: PipelineShape, rank: int) -> int:
    """Return the most chunk activations held at once by a rank under DualPipe-V: 2 p + 1 for p ranks."""
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
