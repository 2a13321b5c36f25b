"""What may be expected of a training of days: spread, best interval, spares."""

from __future__ import annotations

import math

import pytest

from simulator.basics.errors import ScenarioError
from simulator.run.reliability.failures import DAY, FailureKind, FailureProcess, drawn_failures
from simulator.run.reliability.outlook import Job, best_interval, outlook, spares_needed
from simulator.run.reliability.renewal import Checkpointing, Recovery

# A job that fails once a day, saves in a minute and restarts in five.
DAILY = Job(16, FailureProcess((FailureKind("any", 1 / 16 / DAY),)), Checkpointing(3600.0, 60.0), Recovery(restart=300))


def test_the_best_interval_is_youngs_within_a_tenth_where_his_assumptions_hold() -> None:
    choice = best_interval(DAILY, range(20), 300 * DAY)
    assert choice.young == pytest.approx(math.sqrt(2 * 60 * DAY))
    assert choice.best == pytest.approx(choice.young, rel=0.1)


def test_a_job_that_never_fails_has_no_best_interval() -> None:
    with pytest.raises(ValueError, match="needs no checkpoint"):
        best_interval(Job(4, FailureProcess(()), DAILY.checkpointing, DAILY.recovery), [0], DAY)


def test_the_end_of_some_work_has_a_spread_around_dalys_expectation() -> None:
    found = outlook(DAILY, range(60), work=50 * DAY)
    expected = 50 * DAY * DAY * math.exp(300 / DAY) * math.expm1(3660 / DAY) / 3600
    assert sum(run.time for run in found.runs) / 60 == pytest.approx(expected, rel=0.01)
    assert found.time(0.05) < found.time(0.5) < found.time(0.95)
    assert all(run.work == pytest.approx(50 * DAY) for run in found.runs)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_spares_of_a_poisson_number() -> None:
    # scipy.stats.poisson.ppf(0.99, 13.312) = 22 and ppf(0.99, 2.2187) = 6.
    assert spares_needed(2048 * 6.5e-3 / DAY, DAY) == 22
    assert spares_needed(2048 * 6.5e-3 / DAY, DAY / 6) == 6
    assert spares_needed(0.0, DAY) == 0


def test_more_spares_mean_less_waiting_on_the_same_failures() -> None:
    waits = []
    for spares in (0, 1, 2, 4):
        recovery = Recovery(restart=300, spares=spares, repair=DAY)
        found = outlook(Job(16, DAILY.process, DAILY.checkpointing, recovery), range(5), until=100 * DAY)
        waits.append(found.shares["waiting for spares"])
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < 0.02


def test_failures_of_a_longer_time_begin_with_those_of_a_shorter_one() -> None:
    short, long = (drawn_failures(DAILY.process, 16, days * DAY, 3) for days in (50, 100))
    assert long[: len(short)] == short


@pytest.mark.parametrize("mean", [0.5, 40.0, 700.0, 740.0, 746.0, 3000.0])
def test_spares_are_a_quantile_of_the_poisson_distribution(mean: float) -> None:
    """At 746 and more, exp(-mean) is 0 in float64; the terms here are fractions of whole numbers."""
    count = spares_needed(mean, 1.0)
    terms = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)]
    assert math.fsum(terms[:-1]) < 0.99 <= math.fsum(terms)


def test_spares_of_a_large_mean_are_those_of_the_normal_distribution() -> None:
    """99 % of the outcomes are below mean + 2.32635 standard deviations."""
    for mean in (1e6, 1e8, 1e12):
        assert spares_needed(mean, 1.0) == pytest.approx(mean + 2.32635 * math.sqrt(mean), abs=1 + 1e-5 * mean**0.5)


def test_a_goal_within_the_limit_of_failures_is_reached() -> None:
    """A failure an hour on 2e7 s of work: about 6,000, and twice the time ahead would have more than a third of 30,000.

    With 6e7 s of work the same job has about 20,000 failures; twice the work ahead would have more than 30,000.
    """
    process = FailureProcess((FailureKind("error", 1.0 / 3600.0),))
    job = Job(1, process, Checkpointing(600.0, 1.0), Recovery(restart=60.0))
    (run,) = outlook(job, range(1), work=6e7).runs
    assert run.work == pytest.approx(6e7)
    assert 6e7 / 3600 < len(run.incidents) < 30_000
    assert 2 * 6e7 / 3600 > 30_000


@pytest.mark.parametrize(
    ("between", "end", "text"),
    [
        # A restart of 600 s is interrupted by a failure every 10 s.
        (10.0, {"work": 1e7}, r"0\.0% of the work is done in .*, with about .* failures to simulate"),
        (3600.0, {"work": 1e30}, "must be at most 30,000"),
        (3600.0, {"until": 1e14}, "must be at most 30,000"),
    ],
)
def test_a_goal_out_of_reach_is_refused(between: float, end: dict[str, float], text: str) -> None:
    process = FailureProcess((FailureKind("error", 1.0 / between),))
    job = Job(1, process, Checkpointing(3600.0, 10.0), Recovery(restart=600.0))
    with pytest.raises(ScenarioError, match=text):
        outlook(job, range(2), **end)
    if "until" in end:
        with pytest.raises(ScenarioError, match=text):
            best_interval(job, range(2), **end)
