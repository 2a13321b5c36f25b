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
from math import inf

import simpy

from simulator.engine.clock import Clock, ScheduledCallback


@dataclass(slots=True)
class _Running:
    """A running kernel: two durations, whether it runs on the GPU, the share left (1 to 0), the last update's time."""

    alone: float
    slowed: float
    on_gpu: bool
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
    _speed: float = 1.0

    def run(self, duration: float, slowed: float, *, on_gpu: bool = True) -> simpy.Event:
        """Start a kernel; return the event for its end.

        Parameters
        ----------
        duration, slowed : float
            Duration alone, and beside communication [s].
        on_gpu : bool
            Whether a change of the GPU's speed changes the kernel's.
        """
        now = self.clock._now
        running = _Running(duration, slowed, on_gpu, simpy.Event(self.clock), since=now)
        self._running.append(running)
        self._time(running, now)
        return running.done

    def communicate(self, change: int) -> None:
        """Count a collective on this rank in (`change` +1) or out (-1); adapt kernel speeds at the first and last."""
        before = self._in_flight > 0
        changes = before != (self._in_flight + change > 0)
        if changes:
            self._settle()
        self._in_flight += change
        if changes:
            self._time_all()

    def run_at(self, speed: float) -> None:
        """Change the GPU's speed to a factor of its usual speed, from now on; 0 stops its kernels."""
        self._settle()
        self._speed = speed
        self._time_all()

    def _settle(self) -> None:
        """Record the progress of running kernels at the present pace, before the pace changes."""
        now = self.clock._now
        for running in self._running:
            pace = self._pace(running)
            # A pace of 0 means a kernel without duration: nothing is left.
            running.left -= (now - running.since) / pace if pace > 0.0 else running.left
            running.since = now

    def _time_all(self) -> None:
        for running in self._running:
            self._time(running, self.clock._now)

    def _pace(self, running: _Running) -> float:
        """Return the time that a whole running kernel takes at the present speed [s]; infinite on a dead GPU."""
        pace = running.slowed if self._in_flight else running.alone
        if not running.on_gpu or self._speed == 1.0 or pace == 0.0:
            return pace
        return pace / self._speed if self._speed else inf

    def _time(self, running: _Running, now: float) -> None:
        """Schedule a running kernel's end at the present speed from time `now` [s], and cancel its former end."""
        if running.timer is not None:
            running.timer.callbacks = ()
        # Rounding may leave a share slightly below 0, hence max() below.
        left, pace = max(running.left, 0.0), self._pace(running)
        running.timer = None
        if not left or pace < inf:
            running.timer = self.clock.when(now + (left * pace if left else 0.0), lambda: self._end(running))

    def _end(self, running: _Running) -> None:
        """Remove a finished kernel and trigger the event for its end."""
        self._running.remove(running)
        running.done.succeed()
