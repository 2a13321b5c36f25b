"""Trainings of days against the formulas of Young and Daly, Meta's effective training time, and cases by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from simulator.run.reliability.failures import DAY, Failure, FailureKind, FailureProcess, drawn_failures
from simulator.run.reliability.formulas import daly_interval, wall_time, young_interval
from simulator.run.reliability.renewal import Checkpointing, LongRun, Recovery, long_run

HOUR = 3600.0
STOPS = FailureProcess((FailureKind("GPU", 1.0),))


def by_hand(
    times: list[float], checkpointing: Checkpointing, recovery: Recovery, process: FailureProcess = STOPS, **ends: float
) -> LongRun:
    """A run with failures of the first kind at given times."""
    return long_run(process, [Failure(time, 0, 0) for time in times], checkpointing, recovery, **ends)


def goodputs(mean: float, interval: float, save: float, restart: float, seeds: int) -> np.ndarray:
    process = FailureProcess((FailureKind("any", 1.0 / mean),))
    found = []
    for seed in range(seeds):
        failures = drawn_failures(process, 1, 200 * mean, seed)
        run = long_run(process, failures, Checkpointing(interval, save), Recovery(restart=restart), until=200 * mean)
        found.append(run.goodput)
    return np.array(found)


def test_the_example_of_the_module() -> None:
    # Minutes as seconds: saves of 1 each 10 of work, a failure at 25, detection 2, restart 3, end at 30.
    run = by_hand([25.0], Checkpointing(10.0, 1.0), Recovery(detection=2.0, restart=3.0), until=30.0)
    assert run.seconds == {
        "useful": 20.0, "degraded": 0.0, "checkpoint": 2.0, "lost work": 3.0, "detection": 2.0,
        "waiting for spares": 0.0, "restart": 3.0,
    }  # fmt: skip
    assert [(one.time, one.lost, one.down) for one in run.incidents] == [(25.0, 3.0, 5.0)]


@pytest.mark.parametrize(
    ("mean", "save", "young", "daly"),
    [(24 * HOUR, 300, 120.0, 116.7), (6 * HOUR, 300, 60.0, 56.7), (HOUR / 4, 300, 12.2, 9.1),
     (3.1 * HOUR, 60, 19.3, 18.6), (3.1 * HOUR, 10, 7.9, 7.8)],
)  # fmt: skip
def test_intervals_of_young_and_daly_in_minutes(mean: float, save: float, young: float, daly: float) -> None:
    assert young_interval(save, mean) / 60 == pytest.approx(young, abs=0.06)
    assert daly_interval(save, mean) / 60 == pytest.approx(daly, abs=0.06)


@pytest.mark.parametrize(
    ("mean", "save", "restart"), [(24 * HOUR, 300, 600), (6 * HOUR, 300, 600), (3.1 * HOUR, 60, 900), (900, 300, 600)]
)
def test_the_useful_share_is_dalys_within_three_standard_errors(mean: float, save: float, restart: float) -> None:
    interval = young_interval(save, mean)
    found = goodputs(mean, interval, save, restart, 60)
    expected = 1.0 / wall_time(1.0, interval, save, mean, restart)
    assert abs(found.mean() - expected) < 3 * found.std() / math.sqrt(len(found)) + 1.0 / 400


@pytest.mark.long
def test_the_best_interval_by_simulation_is_youngs_within_a_tenth() -> None:
    # Saves are short beside the time between failures, as Young assumes; the same failures for every interval.
    mean, save = 24 * HOUR, 60.0
    best = young_interval(save, mean)
    factors = np.linspace(0.5, 1.7, 13)
    lost = [1 - goodputs(mean, best * factor, save, 300, 40).mean() for factor in factors]
    # The bottom of the parabola through the points, as the curve is flat there.
    a, b, _ = np.polyfit(np.log(factors), lost, 2)
    assert math.exp(-b / (2 * a)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("nodes", "save", "printed"), [(2048, 300, 0.696), (2048, 10, 0.901), (128, 300, 0.924)])
def test_metas_effective_training_time_within_five_per_cent(nodes: int, save: float, printed: float) -> None:
    # Kokolis et al., arXiv:2410.21680: 6.5 failures for 1,000 node-days, restarts of 5 minutes, the best interval.
    rate, restart = 6.5e-3 / DAY, 300.0
    process = FailureProcess((FailureKind("any", rate),))
    mean = 1 / (nodes * rate)
    interval = math.sqrt(2 * save * mean)
    expected = (1 - nodes * rate * (restart + interval / 2)) / (1 + save / interval)
    assert expected == pytest.approx(printed, abs=0.006)
    alone = FailureProcess((FailureKind("any", nodes * rate),))
    runs = [
        long_run(
            alone, drawn_failures(alone, 1, 100 * mean, seed), Checkpointing(interval, save), Recovery(restart=restart),
            until=100 * mean,
        ).goodput
        for seed in range(20)
    ]  # fmt: skip
    assert process.between_failures(nodes) == pytest.approx(mean)
    assert np.mean(runs) == pytest.approx(expected, rel=0.05)


def test_llama_3_has_about_419_interruptions_in_54_days() -> None:
    # 2,048 nodes, 3.79 failures for 1,000 node-days: 419 within three standard deviations of a Poisson number.
    process = FailureProcess((FailureKind("any", 3.79e-3 / DAY),))
    counts = [len(drawn_failures(process, 2048, 54 * DAY, seed)) for seed in range(3)]
    assert all(abs(count - 419) < 3 * math.sqrt(419) for count in counts)


def test_without_failures_only_saves_cost_time() -> None:
    run = by_hand([], Checkpointing(600.0, 30.0), Recovery(), until=1000 * 630.0)
    assert run.goodput == pytest.approx(600 / 630, rel=1e-12)
    # The last save ends with the run and serves nobody.
    assert run.saves == 999


def test_a_failure_during_a_save_or_a_restart_begins_again() -> None:
    # Work 0-10, save until 12 fails at 11; restart 11-16 fails at 14; restart 14-19; work from nothing until 29.
    run = by_hand([11.0, 14.0], Checkpointing(10.0, 2.0), Recovery(restart=5.0), work=10.0, until=100.0)
    assert run.time == 10.0
    run = by_hand([11.0, 14.0], Checkpointing(10.0, 2.0), Recovery(restart=5.0), work=11.0)
    assert run.time == pytest.approx(19 + 10 + 2 + 1)
    assert run.seconds["lost work"] == 10.0
    assert run.seconds["restart"] == 3.0 + 5.0


def test_an_asynchronous_checkpoint_counts_from_the_end_of_its_write() -> None:
    # Work 0-10, stall 10-11, written at 17. A failure at 15 loses all, a failure at 18 only the work since 10.
    slow = Checkpointing(10.0, 1.0, write=6.0)
    assert by_hand([15.0], slow, Recovery(), until=15.5).incidents[0].lost == 14.0
    assert by_hand([18.0], slow, Recovery(), until=18.5).incidents[0].lost == pytest.approx(7.0)


def test_the_next_save_waits_for_the_write_of_the_last() -> None:
    # Work of 2 and a write of 6: the save at 2 + 1 + 2 = 5 waits until 9.
    run = by_hand([], Checkpointing(2.0, 1.0, write=6.0), Recovery(), until=9.0)
    assert run.seconds["checkpoint"] == 1.0 + 4.0


def test_a_hang_is_found_by_the_watchdog() -> None:
    hangs = FailureProcess((FailureKind("hang", 1.0, "hangs"),))
    run = by_hand([5.0], Checkpointing(100.0, 1.0), Recovery(detection=1.0, watchdog=600.0), hangs, until=1000.0)
    assert run.seconds["detection"] == 600.0


def test_a_slow_node_costs_its_part_while_it_lasts() -> None:
    slow = FailureProcess((FailureKind("throttled", 1.0, "slows", speed=0.5, lasts=20.0),))
    run = by_hand([10.0], Checkpointing(1e9, 1.0), Recovery(), slow, until=100.0)
    assert run.seconds["degraded"] == 10.0
    assert run.work == 90.0
    assert not run.incidents


def test_without_a_spare_the_job_waits_for_the_repair_and_an_elastic_job_does_not() -> None:
    saves = Checkpointing(1e9, 1.0)
    waits = by_hand([10.0], saves, Recovery(spares=0, repair=50.0), until=100.0)
    assert waits.seconds["waiting for spares"] == 50.0
    one = by_hand([10.0], saves, Recovery(spares=1, repair=50.0), until=100.0)
    assert one.seconds["waiting for spares"] == 0.0
    # Two failures, one spare: the second waits until the first node is back at 60.
    two = by_hand([10.0, 20.0], saves, Recovery(spares=1, repair=50.0), until=100.0)
    assert two.seconds["waiting for spares"] == 40.0
    # A fourth of the copies leaves until the node is back.
    elastic = by_hand([10.0], saves, Recovery(spares=0, repair=50.0, elastic=4), until=100.0)
    assert elastic.seconds["waiting for spares"] == 0.0
    assert elastic.seconds["degraded"] == pytest.approx(50.0 / 4)


def test_the_same_seed_has_the_same_failures_whatever_else_changes() -> None:
    one, two = FailureKind("GPU", 1 / DAY), FailureKind("link", 2 / DAY)
    alone = drawn_failures(FailureProcess((one,)), 4, 10 * DAY, 7)
    both = drawn_failures(FailureProcess((one, two)), 4, 10 * DAY, 7)
    more = drawn_failures(FailureProcess((one,)), 8, 10 * DAY, 7)
    assert alone == tuple(failure for failure in both if failure.kind == 0)
    assert alone == tuple(failure for failure in more if failure.node < 4)
    assert all(before.time <= after.time for before, after in pairwise(both))


@pytest.mark.parametrize("seed", range(20))
def test_cycles_that_are_passed_over_are_the_cycles_that_would_be_run(seed: int) -> None:
    # A node that is slow by nothing for no time disturbs a run without changing it: with one in each cycle, no cycle is
    # passed over.
    draw = np.random.default_rng(seed)
    process = FailureProcess((FailureKind("any", 3 / DAY), FailureKind("nothing", 0.0, "slows")))
    saves = Checkpointing(draw.uniform(300, 900), draw.uniform(0, 60), draw.uniform(0, 1200), 60.0)
    failures = drawn_failures(process, 1, 10 * DAY, seed)
    every = [Failure(time, 0, 1) for time in np.arange(0, 10 * DAY, 200.0).tolist()]
    disturbed = tuple(sorted([*failures, *every]))
    few, many = (
        long_run(process, drawn, saves, Recovery(30.0, restart=300.0), until=10 * DAY)
        for drawn in (failures, disturbed)
    )
    assert few.work == pytest.approx(many.work, rel=1e-9)
    assert few.saves == many.saves
    for name, seconds in few.seconds.items():
        assert seconds == pytest.approx(many.seconds[name], rel=1e-9, abs=1e-3)


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
def test_weibull_failures_keep_their_mean_time(shape: float) -> None:
    process = FailureProcess((FailureKind("GPU", 1 / DAY, shape=shape),))
    count = len(drawn_failures(process, 20, 1000 * DAY, 1))
    assert count == pytest.approx(20_000, rel=0.03)


def test_new_machines_fail_more_often_at_first() -> None:
    # A rate of 1 + 3 exp(-t / 10): in 10 days 10 + 30 (1 - 1/e) = 29 failures of a node, later 10.
    process = FailureProcess((FailureKind("GPU", 1 / DAY),), early_factor=3.0, early_time=10 * DAY)
    failures = drawn_failures(process, 200, 100 * DAY, 1)
    first = sum(failure.time < 10 * DAY for failure in failures)
    last = sum(failure.time >= 90 * DAY for failure in failures)
    assert first / 200 == pytest.approx(10 + 30 * (1 - math.exp(-1)), rel=0.05)
    assert last / 200 == pytest.approx(10, rel=0.05)


def test_lemons_fail_ten_times_as_often() -> None:
    process = FailureProcess((FailureKind("GPU", 0.01 / DAY),), lemons=0.05)
    failures = drawn_failures(process, 4000, 100 * DAY, 2)
    # A mean of 1 failure for each node: 0.95 + 0.05 x 10 = 1.45 with lemons.
    assert len(failures) / 4000 == pytest.approx(1.45, rel=0.05)
    assert process.between_failures(4000) == pytest.approx(100 * DAY / 1.45 / 4000)


@pytest.mark.parametrize("seed", range(40))
def test_every_second_belongs_to_one_category_and_time_never_runs_backwards(seed: int) -> None:
    draw = np.random.default_rng(seed)
    kinds = tuple(
        FailureKind(
            f"kind {i}", draw.uniform(0, 0.5) / DAY, draw.choice(["stops", "hangs", "slows"]), draw.uniform(0.6, 1.5),
            draw.uniform(0.2, 1), draw.uniform(0, DAY), bool(draw.integers(2)),
        )
        for i in range(3)
    )  # fmt: skip
    process = FailureProcess(kinds, draw.uniform(0, 0.2), 10.0, draw.uniform(0, 2), DAY)
    spares = None if draw.random() < 0.3 else int(draw.integers(0, 3))
    recovery = Recovery(
        draw.uniform(0, 600), 1800.0, draw.uniform(0, 900), spares, draw.uniform(0, DAY), int(draw.integers(0, 5))
    )
    saves = Checkpointing(draw.uniform(60, 7200), draw.uniform(0, 300), draw.uniform(0, 900), draw.uniform(0, 300))
    failures = drawn_failures(process, 8, 30 * DAY, seed)
    run = long_run(process, failures, saves, recovery, until=30 * DAY)
    assert run.time == pytest.approx(30 * DAY)
    assert sum(run.seconds.values()) == pytest.approx(run.time, rel=1e-9)
    assert min(run.seconds.values()) >= -1e-6
    assert run.seconds["useful"] == pytest.approx(run.work, abs=1e-3)
    assert all(a.time <= b.time for a, b in pairwise(run.incidents))
    assert all(one.lost >= 0 and one.down >= 0 for one in run.incidents)
