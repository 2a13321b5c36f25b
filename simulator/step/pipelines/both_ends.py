"""What DualPipe and DualPipe-V have in common: a rank's order where micro-batches come from both ends at once.

A rank has a stage of each of two legs, one near that leg's beginning and one far from it. While both are fed, a forward
pass through one leg runs beside a backward pass through the other, so that one's kernels hide the other's sends.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1 and figure 5.
.. [2] github.com/deepseek-ai/DualPipe, dualpipe.py: how many passes of each kind.
"""

from __future__ import annotations

from simulator.step.pipelines.chunk_passes import Chunks
from simulator.step.pipelines.schedule import PassTimes, Slot, Work

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
