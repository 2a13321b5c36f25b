"""What becomes of a training of days: work, saves, failures, restarts, one after another on a clock of its own.

A step, a save and a restore are simulated once; their durations enter here. The days consist of work at full or reduced
speed, of saves, and of what follows a failure. Every second of the clock belongs to one category, and the sum over all
categories is the time that passed.

Example: saves of 1 min every 10 min of work, a failure after 25 min, detection 2 min, restart 3 min::

    minute   0-10 work   10-11 save   11-21 work   21-22 save   22-25 lost work   25-27 detection   27-30 restart

Of 30 minutes, 20 are useful, 2 are saves, 3 are lost work, 2 detection and 3 restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final, Literal, get_args

from simulator.run.reliability.failures import Failure, FailureProcess

Category = Literal["useful", "degraded", "checkpoint", "lost work", "detection", "waiting for spares", "restart"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
# Work that rounding may leave before a save or the end [s]: a clock at 100 years has a resolution of 5e-7 s.
_NOTHING: Final = 1e-5
# Cycles below which nothing is passed over.
_FEWEST_SKIPPED: Final = 3.0


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a training saves its states, and how long that takes."""

    interval: float  # work between the end of a save and the next save [s]
    stall: float  # time that a save stops the work [s]
    # Time from the end of the stall until the checkpoint can be used [s]; 0 for a synchronous save. The next save waits
    # for the end of the last one.
    write: float = 0.0
    load: float = 0.0  # time to read a checkpoint [s]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What happens between a failure and the first step after it."""

    detection: float = 0.0  # time until an error ends the job [s]
    watchdog: float = 600.0  # time until a hanging collective ends the job [s]
    restart: float = 0.0  # scheduler, start of the processes, compilation, warm-up, without reading the checkpoint [s]
    # Nodes that wait to replace others; None for as many as needed.
    spares: int | None = None
    repair: float = 86400.0  # time until a failed node is back among the spares [s]
    # Copies of the model of which one leaves if no spare is free, until a node is back; 0: the job waits.
    elastic: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure that stopped the job."""

    time: float  # when the failure happened [s]
    # `node`, `kind`: Failed node, and number of the failure's kind.
    node: int
    kind: int
    lost: float  # work since the last usable checkpoint [s]
    down: float  # time from the failure until the work went on [s]


@dataclass(frozen=True, slots=True)
class LongRun:
    """Outcome of a training of days."""

    time: float  # time that passed [s]
    work: float  # work that is done and not lost, in seconds of a healthy job [s]
    # Time of each category [s]; the sum is `time`.
    seconds: Mapping[Category, float]
    incidents: tuple[Incident, ...]  # failures that stopped the job, in order
    saves: int  # number of completed saves

    @property
    def goodput(self) -> float:
        """Share of the time that is useful work, 0 to 1.

        >>> LongRun(100.0, 90.0, {"useful": 90.0}, (), 4).goodput, LongRun(0.0, 0.0, {"useful": 0.0}, (), 0).goodput
        (0.9, 1.0)
        """
        return self.seconds["useful"] / self.time if self.time else 1.0


def long_run(
    process: FailureProcess,
    failures: Sequence[Failure],
    checkpointing: Checkpointing,
    recovery: Recovery,
    *,
    until: float = inf,
    work: float = inf,
) -> LongRun:
    """Return the outcome of a training until a time [s] or until some work [s] is done, whichever is first.

    Parameters
    ----------
    failures : sequence of Failure
        Failures in order of time, at least until the end of the run.

    Raises
    ------
    ValueError
        Neither a time nor an amount of work ends the run.
    """
    if until == inf and work == inf:
        raise ValueError("until, work: got neither; give the time or the work that ends the run")
    return _Run(process, failures, checkpointing, recovery, until, work).run()


@dataclass(slots=True)
class _Run:
    """State of a run: clock, work, checkpoints, slow nodes, nodes under repair."""

    process: FailureProcess
    failures: Sequence[Failure]
    checkpointing: Checkpointing
    recovery: Recovery
    until: float
    work: float
    time: float = 0.0
    done: float = 0.0
    # Work in the checkpoint that would be loaded, and a checkpoint that is still written: (usable from, work).
    saved: float = 0.0
    writing: tuple[float, float] | None = None
    next_failure: int = 0
    slow: list[tuple[float, float]] = field(default_factory=list)
    repairs: list[float] = field(default_factory=list)
    free: int = 0
    saves: int = 0
    seconds: dict[Category, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    incidents: list[Incident] = field(default_factory=list)

    def run(self) -> LongRun:
        """Return the outcome of the whole run."""
        self.free = self.recovery.spares or 0
        next_save = self.checkpointing.interval
        while self.time < self.until and self.work - self.done > _NOTHING:
            reached = self._works_until(min(next_save, self.work))
            if reached and self.work - self.done > _NOTHING and self._saves():
                self._skips()
                next_save = self.done + self.checkpointing.interval
            if self._failed():
                next_save = self.done + self.checkpointing.interval
        return LongRun(self.time, self.done, self.seconds, tuple(self.incidents), self.saves)

    def _failure(self) -> Failure | None:
        """Return the next failure; None after the last."""
        return self.failures[self.next_failure] if self.next_failure < len(self.failures) else None

    @property
    def _speed(self) -> float:
        """Speed of the slowest node now, which is the speed of the job, relative to a healthy job."""
        return min((speed for end, speed in self.slow if end > self.time), default=1.0)

    def _works_until(self, amount: float) -> bool:
        """Work until some work is done; return False if the end of the run or a failure that stops the job is first."""
        while amount - self.done > _NOTHING:
            self.slow = [slowdown for slowdown in self.slow if slowdown[0] > self.time]
            speed = self._speed
            failure = self._failure()
            ends = [self.time + (amount - self.done) / speed, self.until, *(end for end, _ in self.slow)]
            if failure is not None:
                ends.append(failure.time)
            end = max(self.time, min(ends))
            passed = end - self.time
            self.done += passed * speed
            self.seconds["useful"] += passed * speed
            self.seconds["degraded"] += passed * (1.0 - speed)
            self.time = end
            if end >= self.until:
                return False
            if failure is not None and failure.time <= end:
                if not self._slows(failure):
                    return False
                self.next_failure += 1
        return True

    def _slows(self, failure: Failure) -> bool:
        """Note a failure that slows a node down; return False for one that stops the job."""
        kind = self.process.kinds[failure.kind]
        if kind.effect != "slows":
            return False
        self.slow.append((failure.time + kind.lasts, kind.speed))
        return True

    def _passes(self, category: Category, seconds: float) -> bool:
        """Let time pass; return False if the end of the run or a failure that stops the job is first."""
        end = min(self.time + seconds, self.until)
        while (failure := self._failure()) is not None and failure.time < end:
            if not self._slows(failure):
                struck = max(self.time, failure.time)
                self.seconds[category] += struck - self.time
                self.time = struck
                return False
            self.next_failure += 1
        self.seconds[category] += end - self.time
        self.time = end
        return end < self.until

    def _saves(self) -> bool:
        """Save; return False if the end of the run or a failure is first."""
        if self.writing is not None and not self._passes("checkpoint", max(0.0, self.writing[0] - self.time)):
            return False
        self._written()
        if not self._passes("checkpoint", self.checkpointing.stall):
            return False
        self.writing = self.time + self.checkpointing.write, self.done
        self.saves += 1
        self._written()
        return True

    def _skips(self) -> None:
        """Advance the clock over the coming cycles of work and save that no failure, recovery of a slow node or end of
        the run interrupts, except the last of these cycles. Must be called when a save has ended.

        The save of a cycle begins when the cycle's work has ended and the previous checkpoint has been written.
        """
        self.slow = [slowdown for slowdown in self.slow if slowdown[0] > self.time]
        saves, failure, speed = self.checkpointing, self._failure(), self._speed
        end = min(self.until, *(end for end, _ in self.slow), inf if failure is None else failure.time)
        working = saves.interval / speed
        cycle = max(working, saves.write) + saves.stall
        most = min((end - self.time) / cycle, (self.work - self.done) / saves.interval)
        if not most > _FEWEST_SKIPPED:
            return
        count = int(most) - 1
        self.time += count * cycle
        self.done += count * saves.interval
        self.seconds["useful"] += count * saves.interval
        self.seconds["degraded"] += count * (working - saves.interval)
        self.seconds["checkpoint"] += count * (cycle - working)
        self.saves += count
        self.saved, self.writing = self.done - saves.interval, (self.time + saves.write, self.done)
        self._written()

    def _written(self) -> None:
        """Note that the checkpoint under way can be used, if its write has ended."""
        if self.writing is not None and self.writing[0] <= self.time:
            self.saved, self.writing = self.writing[1], None

    def _failed(self) -> bool:
        """Recover if a failure stops the job now; return False if none does."""
        failure = self._failure()
        if failure is None or failure.time > self.time or self.time >= self.until:
            return False
        self._written()
        self.writing = None
        lost, self.done = self.done - self.saved, self.saved
        self.seconds["useful"] -= lost
        self.seconds["lost work"] += lost
        begun, kind = self.time, self.process.kinds[failure.kind]
        wait = self.recovery.watchdog if kind.effect == "hangs" else self.recovery.detection
        self.next_failure += 1
        self._leaves(failure)
        # A further failure begins the recovery again, without detection.
        parts: tuple[tuple[Category, float], ...] = (("detection", wait),)
        while self.time < self.until:
            parts = (*parts, ("waiting for spares", self._spare_in()))
            parts = (*parts, ("restart", self.recovery.restart + self.checkpointing.load))
            if all(self._passes(*part) for part in parts) or self.time >= self.until:
                break
            self._leaves(self.failures[self.next_failure])
            self.next_failure += 1
            parts = ()
        self.incidents.append(Incident(begun, failure.node, failure.kind, lost, self.time - begun))
        return True

    def _leaves(self, failure: Failure) -> None:
        """Send a failed node to repair and take a spare, or note that a node is missing (`free` below zero)."""
        if self.recovery.spares is not None and self.process.kinds[failure.kind].replaces:
            heappush(self.repairs, self.time + self.recovery.repair)
            self.free -= 1

    def _spare_in(self) -> float:
        """Return the time until every place of the job has a node [s]; with elastic copies 0, at reduced speed."""
        while self.repairs and self.repairs[0] <= self.time:
            heappop(self.repairs)
            self.free += 1
        if self.free >= 0 or self.recovery.spares is None:
            return 0.0
        # The first repairs fill the missing places.
        back = sorted(self.repairs)[-self.free - 1]
        if self.recovery.elastic > 1:
            self.slow.append((back, 1.0 - 1.0 / self.recovery.elastic))
            return 0.0
        return back - self.time
