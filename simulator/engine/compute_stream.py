"""Kernels on a rank, slowed while a collective on the same rank is in flight.

A kernel has two durations, alone and beside communication. Its progress is integrated exactly over the periods with
either pace. A collective counts from the moment when its stream reaches it, because its kernels occupy SMs while they
wait.

Example: a kernel takes 2 s alone or 4 s beside communication; a collective is in flight from t = 1 to t = 2::

    t = 0    left 1.00    expected end 2
    t = 1    left 0.50    expected end 1 + 0.50 x 4 = 3
    t = 2    left 0.25    expected end 2 + 0.25 x 2 = 2.5
"""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from simulator.engine.clock import Clock, ScheduledCallback


@dataclass(slots=True)
class _Running:
    """A running kernel: its two durations, the share left (1 to 0), and the time of the last update."""

    alone: float
    slowed: float
    done: simpy.Event
    left: float = 1.0
    since: float = 0.0
    timer: ScheduledCallback | None = None


@dataclass(slots=True)
class Kernels:
    """The kernels running on a rank, slowed down while a collective is in flight on the same rank.

    Attributes
    ----------
    clock : Clock
        The simulation's clock.
    """

    clock: Clock
    _running: list[_Running] = field(default_factory=list)
    _in_flight: int = 0

    def run(self, alone: float, slowed: float) -> simpy.Event:
        """Start a kernel; return the event for its end.

        Parameters
        ----------
        alone, slowed : float
            Duration alone, and beside communication [s].
        """
        now = self.clock._now
        running = _Running(alone, slowed, simpy.Event(self.clock), since=now)
        self._running.append(running)
        self._time(running, now)
        return running.done

    def communicate(self, change: int) -> None:
        """Count a collective on this rank in (`change` +1) or out (-1); adapt kernel speeds at the first and last."""
        before = self._in_flight > 0
        now = self.clock._now
        if before != (self._in_flight + change > 0):
            # Settle the progress at the old pace before the count changes.
            for running in self._running:
                pace = running.slowed if before else running.alone
                # A pace of 0 means a kernel without duration: nothing is left.
                running.left -= (now - running.since) / pace if pace > 0.0 else running.left
                running.since = now
        self._in_flight += change
        if before != (self._in_flight > 0):
            for running in self._running:
                self._time(running, now)

    def _time(self, running: _Running, now: float) -> None:
        """Schedule a running kernel's end at the present speed from time `now` [s], and cancel its former end."""
        if running.timer is not None:
            running.timer.callbacks = ()
        # Rounding may leave a share slightly below 0, hence max() below.
        pace = running.slowed if self._in_flight else running.alone
        running.timer = self.clock.when(now + max(running.left, 0.0) * pace, lambda: self._end(running))

    def _end(self, running: _Running) -> None:
        """Remove a finished kernel and trigger the event for its end."""
        self._running.remove(running)
        running.done.succeed()
