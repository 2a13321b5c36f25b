"""A rank's sequence of passes through two chunks, with a micro-batch counter for each kind of pass and chunk.

DualPipe and ZBV use this class: their papers give an order by numbers of passes of each kind.
"""

from __future__ import annotations

from itertools import count

from simulator.step.pipelines.schedule import Pass, Slot, Work


class Chunks:
    """A rank's sequence of passes through two chunks; micro-batches are counted separately for each kind and chunk.

    >>> own = Chunks(0, 3)
    >>> own.do((Work.FORWARD, 0), (Work.FORWARD, 0), (Work.FORWARD, 1))
    >>> [str(one) for slot in own.slots for one in slot]
    ['F0.0', 'F0.1', 'F3.0']
    """

    def __init__(self, first: int, second: int) -> None:
        self.slots: list[Slot] = []
        self._stages = (first, second)
        self._next = {(work, chunk): count() for work in Work for chunk in (0, 1)}

    def take(self, work: Work, chunk: int) -> Pass:
        """Return the next pass of a kind (forward, backward, ...) through a chunk (0 or 1), and count its
        micro-batch.
        """
        # A whole backward pass contains both gradients: it advances the counters of both.
        if work is Work.BACKWARD:
            next(self._next[Work.WEIGHT_GRADIENT, chunk])
            return Pass(work, self._stages[chunk], next(self._next[Work.INPUT_GRADIENT, chunk]))
        return Pass(work, self._stages[chunk], next(self._next[work, chunk]))

    def do(self, *turns: tuple[Work, int]) -> None:
        """Append passes to the rank's sequence, each in a slot of its own; each argument is a pair (kind of pass,
        chunk).
        """
        self.slots += [(self.take(work, chunk),) for work, chunk in turns]
