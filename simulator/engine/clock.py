"""The clock: a SimPy environment with events at absolute times.

No other module touches SimPy's queue. SimPy schedules by delay, and adding a delay to the present time rounds. Two
engines that must agree to the last bit schedule at absolute times.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

import simpy

# SimPy runs smaller priorities first: URGENT 0, NORMAL 1. LAST follows everything else in an instant.
NORMAL = 1
LAST = 2
# Number of events between two progress reports: about 0.1 s.
_BETWEEN: Final = 2**15


class ScheduledCallback:
    """The minimal event for the queue of the simulation library SimPy: a tuple of callbacks, called once.

    Creating a full SimPy event for each of a hundred thousand transfers per second would be too slow. To cancel an
    occurrence, empty its callbacks: it stays in the queue without effect.
    """

    __slots__ = ("callbacks",)
    _ok = True

    def __init__(self, callbacks: tuple[Callable[[Any], None], ...]) -> None:
        self.callbacks: tuple[Callable[[Any], None], ...] | None = callbacks


class Clock(simpy.Environment):
    """The simulation's clock: a SimPy environment starting at 0.0 [s]."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def at(self, time: float, event: Any, priority: int = NORMAL) -> None:
        """Insert an event into the queue at the absolute time `time`, not before now [s]; ties go by `priority`."""
        queue: list[Any] = self._queue
        heappush(queue, (time, priority, next(self._eid), event))

    def when(self, time: float, act: Callable[[], None], priority: int = NORMAL) -> ScheduledCallback:
        """Call the function `act` at the absolute time `time` [s]; return the callback, which can be cancelled."""
        occurrence = ScheduledCallback((lambda _: act(),))
        self.at(time, occurrence, priority)
        return occurrence

    def reach(self, time: float) -> simpy.Event:
        """Return an event on which a SimPy process can wait, triggered at the absolute time `time` [s]."""
        event = simpy.Event(self)
        event._ok = True
        event._value = None
        self.at(time, event)
        return event

    def play(self, between: Callable[[], None] = lambda: None) -> None:
        """Process events until the queue is empty, like SimPy's `run`; call `between` once per batch of events."""
        queue = self._queue
        while queue:
            between()
            for _ in range(_BETWEEN):
                if not queue:
                    break
                # The body of SimPy's `step`, inlined for speed.
                self._now, _, _, event = heappop(queue)
                callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
                for callback in callbacks:
                    callback(event)
                if not event._ok and not hasattr(event, "_defused"):
                    raise event._value
