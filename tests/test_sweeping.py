"""Many points: their order, their errors, their processes, and the table that comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.run.outcome import PointOutcome
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.sweeps.outcome import play_alone, play_point
from simulator.sweeps.outcome_table import row
from simulator.sweeps.sweep import play_points, sweep, with_axes
from tests.commands import Command, commands_in

ALPHA, BETA = 10e-6, 12.5e9


def scenario(**further: Any) -> Scenario:
    cluster = {"topology": "star_100g", "world_size": 4}
    collective = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB"}
    return load_scenario({"name": "small", "cluster": cluster, "collective": collective, **further})


def ring_time(nbytes: int, n: int) -> float:
    return 2 * (n - 1) * (ALPHA + nbytes / n / BETA)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_table_has_a_row_a_point_in_order_and_a_column_a_figure() -> None:
    table = sweep(scenario(), {"cluster.world_size": [2, 4, 8], "collective.size": ["1 KiB", "1 MiB"]})
    assert list(table["cluster.world_size"]) == [2, 2, 4, 4, 8, 8]
    assert list(table["collective.size"]) == ["1 KiB", "1 MiB"] * 3
    expected = [ring_time(size, n) for n in (2, 4, 8) for size in (2**10, 2**20)]
    assert list(table["time_s"]) == pytest.approx(expected, rel=1e-9)
    assert set(table["engine"]) == {"events"}
    assert table["error"].isna().all()
    assert {"busbw", "wrong", "bottleneck.link", "bottleneck.busy_fraction", "because"} <= set(table.columns)


def test_one_axis_may_replace_another() -> None:
    before = scenario(compare={"collective.algorithm": ["ring", "tree"]}, sweep={"seed": [0, 1]})
    after = with_axes(before, {"collective.algorithm": ["direct"], "cluster.world_size": [2, 3]})
    assert (dict(after.compare), list(after.sweep)) == ({}, ["seed", "collective.algorithm", "cluster.world_size"])
    assert with_axes(before, {}) is before


def test_an_axis_that_cannot_be_is_told_with_the_scenarios_name() -> None:
    shipped = load_scenario("straggler")
    with pytest.raises(ScenarioError, match=r"straggler.*got 'x'; must be a whole number") as told:
        with_axes(shipped, {"cluster.world_size": [2, "x"]})
    assert "<dict>" not in str(told.value)


def test_a_point_that_fails_is_a_row_with_its_error_and_the_others_go_on() -> None:
    slow = scenario(
        sweep={"cluster.world_size": [2, 4]},
        cluster={
            "topology": "star_100g",
            "world_size": 4,
            "link_factors": {"gpu3->switch0": 0.5},
        },
    )
    failed, done = play_points(list(enumerate(points(slow))))
    assert (failed.engine, failed.report) == (None, None)
    assert str(failed.error).startswith("link: got 'gpu3->switch0'; one of gpu0->switch0, gpu1->switch0")
    assert failed.to_dict()["error"] == failed.error
    assert done.error is None
    assert "error" not in done.to_dict()
    assert row(failed) == {"cluster.world_size": 2, "engine": None, "error": failed.error}


def test_the_error_of_a_point_that_is_alone_is_raised() -> None:
    broken = scenario(cluster={"topology": "star_100g", "world_size": 2, "link_factors": {"gpu5->switch0": 0.5}})
    (point,) = points(broken)
    with pytest.raises(ScenarioError, match="gpu5->switch0"):
        play_alone(0, point)
    assert play_point(0, point).error is not None


def test_failures_are_told_once_each_with_exit_code_1(cli: Command) -> None:
    axes = ("--set", "cluster.world_size=2,3,4", "--set", "cluster.link_factors={'gpu3->switch0': 0.5}")
    answer = cli("sweep", "small.yaml", *axes, "--jobs", 1, "--json")
    assert answer.code == 1
    assert [point["report"] is None for point in answer.data["points"]] == [True, True, False]
    told = [line for line in answer.faults if "failed" in line]
    assert told[0].startswith("1 of 3 points failed, the first with cluster.world_size=2: link: got 'gpu3->switch0'")
    # With three ranks another link may have been meant: another error.
    assert told[1].startswith("1 of 3 points failed, the first with cluster.world_size=3: link: got 'gpu3->switch0'")


def test_a_link_that_no_machine_of_a_sweep_has_is_refused_before_the_run(cli: Command, tmp_path: Path) -> None:
    """A straggler's rank is checked in the same way; `gpu3->switch0` exists in the larger machine, and may stay."""
    axes = ("--set", "cluster.world_size=2,4", "--set")
    slow = "sweep.cluster.link_factors=[{}, {'gpu3->switch0': 0.5}, {'gpu3->swich0': 0.5, 'gpu9->switch0': 0.5}]"
    answer = cli("sweep", "small.yaml", *axes, slow, "--jobs", 1, "--out", "never")
    assert (answer.code, answer.out, len(answer.faults)) == (2, "", 2)
    assert answer.faults[0].startswith("small.yaml: link: got 'gpu3->swich0'; one of gpu0->switch0")
    assert answer.faults[1].startswith("small.yaml: link: got 'gpu9->switch0'; one of gpu0->switch0")
    assert not (tmp_path / "never").exists()


@pytest.mark.long
def test_points_come_on_two_processes_as_they_do_on_one() -> None:
    numbered = list(enumerate(points(scenario(sweep={"collective.size": ["4 KiB", "8 KiB", "1 MiB"]}))))
    alone = list(play_points(numbered, 1))
    together = sorted(play_points(numbered, 2), key=lambda outcome: outcome.index)
    assert alone == together


def test_no_process_is_no_number_of_processes() -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        list(play_points([], 0))


@pytest.mark.long
def test_a_listener_that_has_had_enough_ends_the_processes() -> None:
    numbered = list(enumerate(points(scenario(sweep={"seed": list(range(200))}))))
    outcomes = play_points(numbered, 2)
    first = next(outcomes)
    outcomes.close()
    assert isinstance(first, PointOutcome)
    assert list(outcomes) == []


@pytest.mark.parametrize("command", [("run",), ("sweep", "--jobs", "1")], ids=" ".join)
@pytest.mark.parametrize("values", ["2,4", "[2, 4]"])
def test_several_values_on_the_command_line_are_an_axis(cli: Command, command: tuple[str, ...], values: str) -> None:
    answer = cli(*command, "small.yaml", "--set", f"cluster.world_size={values}", "--set", "seed=3", "--json")
    assert [point["settings"] for point in answer.data["points"]] == [{"cluster.world_size": n} for n in (2, 4)]
    times = [point["report"]["time_s"] for point in answer.data["points"]]
    assert times == pytest.approx([ring_time(4096, 2), ring_time(4096, 4)], rel=1e-9)


def test_a_scenario_of_many_points_is_not_simulated_as_one() -> None:
    with pytest.raises(ScenarioError, match="has sweep, and therefore several points"):
        simulate(scenario(sweep={"seed": [0, 1]}))
