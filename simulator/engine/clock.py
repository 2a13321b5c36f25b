"""The clock: a SimPy environment that can be told absolute times.

Rule: the only module that touches SimPy's queue. Adding a delay to the present rounds; two engines that must agree to
the last bit schedule at the times themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

import simpy

# SimPy runs smaller priorities first: URGENT 0, NORMAL 1. LAST comes after everything else that happens at an instant.
NORMAL = 1
LAST = 2
# Events from one look at the play to the next: some 0.1 s.
_BETWEEN: Final = 2**15


class Occurrence:
    """The least that SimPy's queue needs of an event: callbacks, to be called once.

    A hundred thousand transfers a second cannot afford more. To take one back, empty its callbacks: it stays in the
    queue and does nothing.
    """

    __slots__ = ("callbacks",)
    _ok = True

    def __init__(self, callbacks: tuple[Callable[[Any], None], ...]) -> None:
        self.callbacks: tuple[Callable[[Any], None], ...] | None = callbacks


class Clock(simpy.Environment):
    """Simulated time, from 0.0 on [s]."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def at(self, time: float, event: Any, priority: int = NORMAL) -> None:
        """Let an event happen at an absolute time [s], not before now."""
        queue: list[Any] = self._queue
        heappush(queue, (time, priority, next(self._eid), event))

    def when(self, time: float, act: Callable[[], None], priority: int = NORMAL) -> Occurrence:
        """Call a function at an absolute time [s]."""
        occurrence = Occurrence((lambda _: act(),))
        self.at(time, occurrence, priority)
        return occurrence

    def reach(self, time: float) -> simpy.Event:
        """An event for a process to wait for that happens at an absolute time [s]."""
        event = simpy.Event(self)
        event._ok = True
        event._value = None
        self.at(time, event)
        return event

    def play(self, between: Callable[[], None] = lambda: None) -> None:
        """Run until nothing is left to happen, as SimPy's own `run`; call `between` now and then."""
        queue = self._queue
        while queue:
            between()
            for _ in range(_BETWEEN):
                if not queue:
                    break
                self._now, _, _, event = heappop(queue)
                callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
                for callback in callbacks:
                    callback(event)
                if not event._ok and not hasattr(event, "_defused"):
                    raise event._value
