"""`simulator check` and `simulator diff`: estimates before a run, differences after two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import load_scenario
from simulator.cli.diff import differences
from simulator.engine.compiled.library import is_there
from simulator.engine.play import BYTES_A_TRANSFER
from simulator.playing.effort import effort
from tests.commands import Command, commands_in


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def point(time: float, **settings: Any) -> dict[str, Any]:
    return {"settings": settings, "engine": "events", "report": {"time_s": time, "bottleneck": {"link": "a->b"}}}


def test_check_counts_points_and_transfers_and_plays_nothing(cli: Command, tmp_path: Path) -> None:
    answer = cli("check", "both.yaml", "--set", "sweep.cluster.world_size=[2, 4]")
    assert answer.code == 0
    told = dict(line.split(":", 1) for line in answer.out.splitlines())
    # A ring sends 2 (n - 1) n parts, a tree 2 (n - 1) arrays.
    expected = sum(2 * (n - 1) * n + 2 * (n - 1) for n in (2, 4))
    assert (told["points"].strip(), told["transfers"].strip()) == ("4", str(expected))
    assert told["question"].strip() == "How fast is a small ring?"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.yaml", "small.yaml"]


@pytest.mark.parametrize("command", ["check", "run"])
def test_what_is_too_large_is_one_line_from_check_and_from_run(
    command: str, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.basics.this_machine.memory", lambda: 2.0**20)
    settings = ("cluster.world_size=64", "collective.algorithm=direct")
    answer = cli(command, "small.yaml", *(word for setting in settings for word in ("--set", setting)))
    assert answer.code == 1
    assert len(answer.faults) == 1
    assert "direct over 64 ranks: 8.06e+03 transfers" in answer.err


def test_check_counts_the_payload_of_the_largest_point(cli: Command) -> None:
    size = "collective.size=16 MiB"
    with_arrays = cli("check", "small.yaml", "--set", size).out
    without = cli("check", "small.yaml", "--set", size, "--set", "collective.payload=false").out
    assert "memory:    about 128 MiB for the largest point" in with_arrays
    # Without arrays: four operations, and the ring's three rounds of four rows.
    operations, rows = (4 * 40, 12 * 400) if is_there() else (4 * 1000, 0)
    transfers = 0 if is_there() else 24 * BYTES_A_TRANSFER
    assert f"memory:    about {operations + rows + transfers} B for the largest point" in without


def test_check_finds_what_only_the_cluster_shows(cli: Command) -> None:
    answer = cli("check", "small.yaml", "--set", "cluster.link_factors={'gpu0->gpu1': 0.5}")
    assert (answer.code, answer.out, len(answer.faults)) == (2, "", 1)
    assert "link: got 'gpu0->gpu1'" in answer.err


def test_check_tells_of_all_points_that_cannot_be_built(cli: Command) -> None:
    """Each different fault is one line, with how many points have it and the first of them."""
    links = "cluster.link_factors={'gpu3->switch0': 0.5, 'gpu0->hub': 0.5}"
    answer = cli("check", "both.yaml", "--set", "cluster.world_size=2,3,4", "--set", links)
    assert (answer.code, answer.out) == (2, "")
    for line, ranks in zip(answer.faults, (2, 3, 4), strict=True):
        settings = f"collective.algorithm=ring, cluster.world_size={ranks}"
        assert line.startswith(f"both.yaml: 2 of 6 points cannot be built, the first with {settings}: ")
        assert ("link: got 'gpu3->switch0'" in line) == (ranks < 4)
        assert "link: got 'gpu0->hub'; one of gpu0->switch0" in line


def test_a_run_does_not_differ_from_itself(cli: Command) -> None:
    cli("run", "both.yaml", "--out", "one")
    answer = cli("diff", "one", "one/report.json")
    assert (answer.code, answer.out) == (0, "no difference: every figure of every point is the same\n")
    assert cli("diff", "one", "one", "--json").data == {"differences": []}


def test_two_runs_differ_in_what_was_changed(cli: Command) -> None:
    cli("run", "both.yaml", "--out", "one")
    cli("run", "both.yaml", "--out", "two", "--set", "cluster.link_factors={'gpu0->switch0': 0.5}")
    answer = cli("diff", "one", "two")
    assert answer.code == 0
    (slower,) = (line for line in answer.out.splitlines() if line.startswith("collective.algorithm=ring: time_s:"))
    # A part makes six hops round a ring of four, so it crosses the slow link twice, with 1 KiB at half the bandwidth.
    before, late = 6 * (10e-6 + 1024 / 12.5e9), 2 * 1024 / 12.5e9
    assert f"({late / before:+.3%})" in slower
    changes = cli("diff", "one", "two", "--json").data["differences"]
    assert {change["key"] for change in changes} >= {"time_s", "algbw", "busbw"}


def test_points_are_matched_by_their_settings_not_by_their_place() -> None:
    one = {"a": point(1.0, seed=0), "b": point(2.0, seed=1)}
    assert differences(one, dict(reversed(one.items()))) == []


def test_a_point_that_only_one_run_has_is_one_difference() -> None:
    found = differences({"a": point(1.0, seed=0)}, {"b": point(2.0, seed=1)})
    assert found == [
        {"settings": {"seed": 0}, "key": "point", "first": "there", "second": "missing"},
        {"settings": {"seed": 1}, "key": "point", "first": "missing", "second": "there"},
    ]


def test_figures_within_figures_are_told_by_their_path() -> None:
    other = point(1.0)
    other["report"] = {**other["report"], "bottleneck": {"link": "b->a"}}
    (found,) = differences({"a": point(1.0)}, {"a": other})
    assert (found["key"], found["first"], found["second"]) == ("bottleneck.link", "a->b", "b->a")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"points": [1]}', '{"points": 3}', '{"points": [{}]}', "\x00"])
def test_what_is_no_report_is_refused_in_one_line(cli: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text, encoding="utf-8")
    answer = cli("diff", ".", "report.json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.faults == ["report.json: is no report of a run; give the directory that `simulator run` printed"]


def test_a_point_that_failed_differs_by_its_error(cli: Command, tmp_path: Path) -> None:
    failed: dict[str, Any] = {"settings": {}, "engine": None, "report": None, "error": "no route"}
    for name, told in (("one", point(1.0)), ("two", failed)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"points": [told]}), encoding="utf-8")
    lines = cli("diff", "one.json", "two.json").out.splitlines()
    assert "the point: error: None -> no route" in lines
    assert "the point: time_s: 1.0 -> None" in lines


def test_check_says_which_engine_plays_and_why(cli: Command) -> None:
    def engines(*settings: str) -> str:
        told = cli("check", "both.yaml", *(word for setting in settings for word in ("--set", setting))).out
        return dict(line.split(":", 1) for line in told.splitlines())["engine"].strip()

    without = "compiled, only times are asked for" if is_there() else "events, there is no compiled core"
    assert engines("collective.payload=true") == "events, it carries arrays"
    assert engines("collective.payload=false") == without
    assert engines("engine=events", "collective.payload=false") == "events, as asked"


def test_a_played_point_takes_longer_with_noise_and_with_arrays() -> None:
    def seconds(**facts: Any) -> float:
        cluster = {"topology": "dgx_h100", "world_size": 64} | facts.pop("cluster", {})
        collective = {"operation": "all_reduce", "algorithm": "ring", "size": "64 MiB", "payload": False} | facts
        scenario = load_scenario({"name": "x", "cluster": cluster, "collective": collective})
        return min(effort(scenario).seconds for _ in range(3))

    # 64 arrays of 64 MiB at 8 ns a byte are half a minute.
    assert seconds(payload=True) > 30 > 1 > seconds()


def test_a_group_without_rank_0_is_counted_too() -> None:
    def memory(*group: int) -> int:
        collective = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB", "payload": False}
        cluster = {"topology": "star_100g", "world_size": 4}
        return effort(
            load_scenario({"name": "x", "cluster": cluster, "collective": collective | {"group": group}})
        ).memory

    assert memory(1, 2, 3) == memory(0, 1, 2)
