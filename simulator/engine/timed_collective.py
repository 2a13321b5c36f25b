"""A collective whose closed form stands for its transfers: it ends a fixed time after its last rank has reached it."""

from __future__ import annotations

import simpy

from simulator.engine.clock import Clock
from simulator.records.operation import Collective


class TimedCollective:
    """Waits for all ranks, then for its duration."""

    def __init__(self, clock: Clock, op: Collective) -> None:
        self._clock = clock
        self._op = op
        self._absent = dict.fromkeys(op.group)
        self._done = simpy.Event(clock)

    def reach(self, place: int) -> simpy.Event:
        """A rank's stream has reached the operation; the event is its end, the same for all."""
        del self._absent[self._op.group[place]]
        if not self._absent:
            self._clock.when(self._clock._now + (self._op.duration or 0.0), self._finish)
        return self._done

    def _finish(self) -> None:
        self._done.succeed()

    def missing(self) -> list[int]:
        """Ranks that have not reached it yet."""
        return list(self._absent)
