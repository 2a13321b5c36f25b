"""A collective in closed form: it ends a fixed time after its last rank has come."""

from __future__ import annotations

import simpy

from simulator.engine.clock import Clock
from simulator.records.operation import Collective


class TimedCollective:
    """A collective with a given duration: it ends this duration after the last rank has arrived."""

    def __init__(self, clock: Clock, op: Collective) -> None:
        self._clock = clock
        self._op = op
        # A dict keeps the group's order for messages.
        self._absent = dict.fromkeys(op.group)
        self._done = simpy.Event(clock)

    def reach(self, place: int) -> simpy.Event:
        """Note the arrival of the rank at index `place` in the group; return the event for the collective's end."""
        del self._absent[self._op.group[place]]
        if not self._absent:
            self._clock.when(self._clock._now + (self._op.duration or 0.0), self._finish)
        return self._done

    def _finish(self) -> None:
        """Trigger the event for the collective's end, common to every rank."""
        self._done.succeed()

    def missing(self) -> list[int]:
        """Return the ranks that have not reached the collective."""
        return list(self._absent)
