"""What may be expected of a training of days: spread of the outcome, best interval between saves, number of spares.

Outcomes are simulated on several seeds of failures. Settings are compared on the same failures, hence few seeds tell
which of two settings is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_duration
from simulator.run.reliability.failures import Failure, FailureProcess, drawn_failures
from simulator.run.reliability.formulas import daly_interval, young_interval
from simulator.run.reliability.renewal import CATEGORIES, Category, Checkpointing, LongRun, Recovery, long_run

# Intervals that are tried, relative to Young's.
_FACTORS: Final = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
# A run that is bounded by its work draws failures for this many times the work's duration at first.
_AHEAD: Final = 2.0
# Failures of a run: six years of 2,048 nodes with Llama 3's failures; 112 such runs take about a minute.
_MOST_FAILURES: Final = 30_000
# Mean of a Poisson number from which the normal distribution gives its quantiles to 1e-4 of the standard deviation.
_NORMAL_FROM: Final = 1e9


@dataclass(frozen=True, slots=True)
class Job:
    """A training of days on a cluster."""

    nodes: int  # nodes that the job needs at once
    process: FailureProcess  # failures of the nodes
    # `checkpointing`, `recovery`: Saves, and what happens after a failure.
    checkpointing: Checkpointing
    recovery: Recovery


@dataclass(frozen=True, slots=True)
class Outlook:
    """Outcomes of a job on several seeds."""

    runs: tuple[LongRun, ...]  # one outcome for each seed

    @property
    def goodput(self) -> float:
        """Mean share of the time that is useful work, 0 to 1."""
        return float(np.mean([run.goodput for run in self.runs]))

    @property
    def shares(self) -> Mapping[Category, float]:
        """Mean share of the time of each category; the sum is 1."""
        return {
            name: float(np.mean([run.seconds[name] / run.time for run in self.runs if run.time])) for name in CATEGORIES
        }

    def time(self, share: float) -> float:
        """Return the time within which a share of the runs have ended, 0 to 1 [s]."""
        return float(np.quantile([run.time for run in self.runs], share))

    def work(self, share: float) -> float:
        """Return the work that a share of the runs do not exceed, 0 to 1 [s]."""
        return float(np.quantile([run.work for run in self.runs], share))


@dataclass(frozen=True, slots=True)
class IntervalChoice:
    """Intervals of work between saves, each with its simulated useful share of the time."""

    # `young`, `daly`: What the formulas say [s].
    young: float
    daly: float
    # The interval with the largest useful share: the top of a parabola through the simulated points around it [s].
    best: float
    tried: tuple[tuple[float, float], ...]  # pairs (interval [s], useful share)


def outlook(job: Job, seeds: Sequence[int], *, until: float = inf, work: float = inf) -> Outlook:
    """Return the outcomes of a job until a time [s] or until some work [s] is done, one for each seed."""
    return Outlook(tuple(_run(job, seed, until, work) for seed in seeds))


def best_interval(job: Job, seeds: Sequence[int], until: float) -> IntervalChoice:
    """Return the interval between saves with which a job does most work until a time [s].

    Raises
    ------
    ValueError
        Nothing stops the job, so that no save is needed.
    """
    mean = job.process.between_failures(job.nodes)
    if mean == inf:
        raise ValueError("failures: none stops the job, and a job that never stops needs no checkpoint")
    _require_bounded(job, until)
    stall = max(job.checkpointing.stall, 1e-3)
    young, daly = young_interval(stall, mean), daly_interval(stall, mean)
    failures = {seed: drawn_failures(job.process, job.nodes, until, seed) for seed in seeds}
    tried = []
    for factor in _FACTORS:
        saves = replace(job.checkpointing, interval=factor * young)
        run = partial(long_run, job.process, checkpointing=saves, recovery=job.recovery, until=until)
        tried.append((factor * young, float(np.mean([run(failures[seed]).goodput for seed in seeds]))))
    return IntervalChoice(young, daly, _top(tried), tuple(tried))


def _top(tried: Sequence[tuple[float, float]]) -> float:
    """Return the place of the largest value of a curve, between the points that were tried."""
    place = max(range(len(tried)), key=lambda i: tried[i][1])
    if place in (0, len(tried) - 1):
        return tried[place][0]
    around = tried[place - 1 : place + 2]
    bend, slope, _ = np.polyfit(np.log([x for x, _ in around]), [y for _, y in around], 2)
    return float(np.exp(-slope / (2.0 * bend))) if bend < 0 else tried[place][0]


def spares_needed(failures_per_second: float, repair: float, certainty: float = 0.99) -> int:
    """Return the number of spare nodes with which a job waits for none, at a given certainty at any moment.

    Nodes under repair are as many as failures in a repair time: a Poisson number.

    Parameters
    ----------
    failures_per_second : float
        Failures of the whole job that take a node away [1/s].
    repair : float
        Time until a failed node is back [s].

    Examples
    --------
    2,048 nodes with 6.5 failures for 1,000 node-days and repairs of a day: 13.3 nodes are away in the mean, at most 22
    in 99 % of the time.

    >>> spares_needed(2048 * 6.5e-3 / 86400, 86400)
    22
    """
    mean = failures_per_second * repair
    if mean > _NORMAL_FROM:
        return ceil(NormalDist(mean, sqrt(mean)).inv_cdf(certainty))
    # Twelve standard deviations around the mean. Terms relative to the first: exp(-mean) is 0 from a mean of 746 on.
    first, last = (max(0, int(mean + side * (12.0 * sqrt(mean) + 30.0))) for side in (-1, 1))
    steps = np.log(mean) - np.log(np.arange(first + 1, last + 1)) if mean else np.full(last - first, -inf)
    logarithms = np.concatenate([[0.0], np.cumsum(steps)])
    below = np.cumsum(np.exp(logarithms - logarithms.max()))
    return first + int(np.searchsorted(below, certainty * below[-1]))


def _run(job: Job, seed: int, until: float, work: float) -> LongRun:
    """Return a job's outcome on the failures of a seed."""
    if until < inf:
        _require_bounded(job, until)
    # Time that has as many failures as a run may have; a goal may be reached before.
    most = _MOST_FAILURES * job.process.between_failures(job.nodes)
    ahead = until if until < inf else min(_AHEAD * work, most)
    while True:
        failures: tuple[Failure, ...] = drawn_failures(job.process, job.nodes, ahead, seed)
        run = long_run(job.process, failures, job.checkpointing, job.recovery, until=min(until, ahead), work=work)
        # Failures of a longer time begin with the same failures.
        if until < inf or run.work >= work - 1e-3:
            return run
        if ahead >= most:
            done = f"{run.work / work:.1%} of the work is done in {format_duration(ahead)}, with "
            _require_bounded(job, 2.0 * ahead, done)
        ahead = min(2.0 * ahead, most)


def _require_bounded(job: Job, until: float, before: str = "") -> None:
    """Raise ScenarioError if too many failures strike a job before a time [s]; `before` begins the sentence."""
    count = until / job.process.between_failures(job.nodes)
    if count > _MOST_FAILURES:
        raise ScenarioError(
            f"{before}about {count:.2g} failures to simulate in a run; must be at most {_MOST_FAILURES:,}; write fewer "
            "days or tokens, fewer failures, or a shorter restart"
        )
