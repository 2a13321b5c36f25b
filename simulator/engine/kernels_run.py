"""Kernels of one rank, slowed while a collective of the rank is in flight.

Rule: a span of kernels has two durations, alone and beside communication; its progress is integrated exactly over the
times when one or the other holds. A collective is in flight from when its stream reaches it to its end, for its kernels
hold their SMs while they wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from simulator.engine.clock import Clock, Occurrence


@dataclass(slots=True)
class _Running:
    """Kernels at work: how much is left (1 to 0), and since when at which pace."""

    alone: float
    slowed: float
    done: simpy.Event
    left: float = 1.0
    since: float = 0.0
    timer: Occurrence | None = None


@dataclass(slots=True)
class Kernels:
    """What runs on one rank's SMs.

    Attributes
    ----------
    clock : Clock
    """

    clock: Clock
    _running: list[_Running] = field(default_factory=list)
    _in_flight: int = 0

    def run(self, alone: float, slowed: float) -> simpy.Event:
        """Start kernels that take `alone` [s], or `slowed` beside communication; the event is their end."""
        now = self.clock._now
        running = _Running(alone, slowed, simpy.Event(self.clock), since=now)
        self._running.append(running)
        self._time(running, now)
        return running.done

    def communicate(self, change: int) -> None:
        """A collective has come into flight (+1) or has ended (-1)."""
        before = self._in_flight > 0
        now = self.clock._now
        if before != (self._in_flight + change > 0):
            for running in self._running:
                pace = running.slowed if before else running.alone
                running.left -= (now - running.since) / pace if pace > 0.0 else running.left
                running.since = now
        self._in_flight += change
        if before != (self._in_flight > 0):
            for running in self._running:
                self._time(running, now)

    def _time(self, running: _Running, now: float) -> None:
        if running.timer is not None:
            running.timer.callbacks = ()
        pace = running.slowed if self._in_flight else running.alone
        running.timer = self.clock.when(now + max(running.left, 0.0) * pace, lambda: self._end(running))

    def _end(self, running: _Running) -> None:
        self._running.remove(running)
        running.done.succeed()
