"""A rank's list of passes through two chunks, written by kind: each kind counts its own micro-batches.

Rule: for schedules whose orders are given as so many passes of each kind.
"""

from __future__ import annotations

from itertools import count

from simulator.step.pipelines.schedule import Pass, Slot, Work


class Chunks:
    """A rank's list of passes through its two chunks, each counting its own micro-batches."""

    def __init__(self, first: int, second: int) -> None:
        self.slots: list[Slot] = []
        self._stages = (first, second)
        self._next = {(work, chunk): count() for work in Work for chunk in (0, 1)}

    def take(self, work: Work, chunk: int) -> Pass:
        """The next pass of a kind."""
        # A whole backward pass is both gradients: the next one of either goes on from there.
        if work is Work.BACKWARD:
            next(self._next[Work.WEIGHT_GRADIENT, chunk])
            return Pass(work, self._stages[chunk], next(self._next[Work.INPUT_GRADIENT, chunk]))
        return Pass(work, self._stages[chunk], next(self._next[work, chunk]))

    def do(self, *turns: tuple[Work, int]) -> None:
        """One pass after the other."""
        self.slots += [(self.take(work, chunk),) for work, chunk in turns]
