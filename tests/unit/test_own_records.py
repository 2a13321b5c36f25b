"""Python users simulate an algorithm's record, or a schedule, without a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator.basics.errors import ScenarioError, ScheduleError
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest

RING = ALGORITHMS.find("ring")
CLUSTER = {"topology": "star_100g", "world_size": 4}
COLLECTIVE = {"name": "own", "cluster": CLUSTER, "collective": {"operation": "all_reduce", "size": "1 MiB"}}


def named(data: dict[str, Any], section: str, algorithm: str) -> dict[str, Any]:
    return {**data, section: {**data[section], "algorithm": algorithm}}


@pytest.mark.parametrize("engine", ["events", "compiled"])
def test_a_record_is_simulated_like_the_algorithm_of_its_name(engine: str) -> None:
    data = {**COLLECTIVE, "engine": engine}
    own = simulator.simulate(data, algorithm=replace(RING, summary="my ring"))
    assert own.report.time_s == simulator.simulate(named(data, "collective", "ring")).report.time_s
    # 6 steps of a quarter of the array at 12.5 GB/s, and 10 us from port to port for each.
    assert own.report.time_s == pytest.approx(6 * (2**20 / 4 / 12.5e9 + 10e-6), rel=1e-9)


def test_a_training_takes_the_record_for_every_operation_that_it_has() -> None:
    step = {"model": "gpt2_small", "seq_len": 128, "sharding": "zero1", "collectives": "played"}
    data = {"name": "own", "cluster": CLUSTER, "training": step}
    own = simulator.simulate(data, algorithm=RING).report.step_time_s
    assert own == simulator.simulate(named(data, "training", "ring")).report.step_time_s
    assert own != simulator.simulate(named(data, "training", "direct")).report.step_time_s


def test_a_record_without_the_operation_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"^algorithm: has no all_reduce; its operations are all_gather$"):
        simulator.simulate(COLLECTIVE, algorithm=replace(RING, plans={"all_gather": RING.plans["all_gather"]}))


def test_a_picture_of_a_record_is_refused() -> None:
    """Pictures simulate the scenario again, which does not have the record."""
    with pytest.raises(ScenarioError, match="does not name the algorithm's record"):
        simulator.simulate(COLLECTIVE, algorithm=RING).plot("timeline")


def test_a_schedule_is_simulated() -> None:
    schedule = ALGORITHMS.find("tree").plans["broadcast"](CollectiveRequest("broadcast", 8, 2**18, root=3))
    run = simulator.collective(schedule, topology="star_100g", size="1 MiB")
    asked = {**CLUSTER, "world_size": 8}
    data = {"operation": "broadcast", "size": "1 MiB", "root": 3, "algorithm": "tree"}
    named_run = simulator.simulate({"name": "own", "cluster": asked, "collective": data})
    assert run.report.time_s == named_run.report.time_s
    assert run.report.wrong == 0


def test_a_schedule_that_sends_nothing_is_refused() -> None:
    """Every rank of an all-gather must receive the parts of all others; a schedule is proved before its simulation."""
    whole = RING.plans["all_gather"](CollectiveRequest("all_gather", 4, 2**18))
    with pytest.raises(ScheduleError):
        simulator.collective(replace(whole, parts=lambda: iter(()), rows=0), topology="star_100g", size="1 MiB")
