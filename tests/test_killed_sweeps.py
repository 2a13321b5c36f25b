"""Sweeps whose processes are killed without a word, at any moment: nothing is lost, nothing is played twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.basics.errors import SimulationError
from simulator.results import run_directory
from simulator.run.outcome import PointOutcome
from simulator.run.simulate import SimulatedRun
from simulator.scenario.load import load_scenario, points
from simulator.sweeps import process_pool
from simulator.sweeps.journal import NAME, line, open_journal, read_journal
from simulator.sweeps.outcome import NumberedPoint, RunHandler
from simulator.sweeps.sweep import play_points
from tests.commands import SMALL, Command, commands_in
from tests.interrupting import contents, ended, running, started, until, wait_for_points


def many(count: int) -> str:
    """A scenario of so many tiny points."""
    return SMALL.replace("  size: 4 KiB\n", "  size: 4 KiB\n  payload: false\n").replace(
        "plots: []", f"sweep: {{seed: {list(range(count))}}}\nplots: []"
    )


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def lines_of(folder: Path) -> list[int]:
    """Indexes of whole lines, in order; every one once."""
    notes = folder / NAME
    whole = notes.read_bytes().split(b"\n")[:-1] if notes.is_file() else []
    found = [json.loads(text)["index"] for text in whole if text.endswith(b"}")]
    assert len(found) == len(set(found))
    return found


def killed_and_resumed(folder: Path, count: int, kills: int, jobs: str, *, seed: int) -> int:
    """Kill a sweep at random moments, go on each time, and let it end; how often it was killed in the middle."""
    luck, before, made = random.Random(seed), 0, 0
    command = ("sweep", "many.yaml", "--out", "torn", "--jobs", jobs, "--json")
    torn = folder / "torn"
    for _ in range(kills):
        resume = ("--resume",) if torn.is_dir() else ()
        with started(folder, *command, *resume) as process:
            if luck.random() < 0.2:  # at any moment from the first on
                time.sleep(luck.uniform(0, 1))
            else:
                wanted = min(count, before + luck.randint(1, 3 * count // (4 * kills)))
                wait_for_points(process, torn, wanted)
            process.send_signal(signal.SIGKILL)  # its workers are not told
            ended(process)
        now = len(lines_of(torn))
        if (torn / "run.json").is_file():
            break
        assert now >= before
        before, made = now, made + 1
    else:
        with started(folder, *command, *(("--resume",) if torn.is_dir() else ())) as process:
            _, err = ended(process)
        assert process.returncode == 0, err
    return made


def check_whole(folder: Path, count: int) -> None:
    report = json.loads((folder / "torn" / "report.json").read_bytes())
    assert [point["settings"]["seed"] for point in report["points"]] == list(range(count))
    assert len((folder / "torn" / "table.csv").read_text(encoding="utf-8").splitlines()) == 1 + count
    assert contents(folder / "torn") == contents(folder / "whole")


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.one_of(2)
def test_a_killed_sweep_that_is_resumed_leaves_the_bytes_of_one_that_was_not(
    cli: Command, tmp_path: Path, jobs: str
) -> None:
    (tmp_path / "many.yaml").write_text(many(60), encoding="utf-8")
    assert cli("sweep", "many.yaml", "--out", "whole", "--jobs", 1).code == 0
    killed_and_resumed(tmp_path, 60, 3, jobs, seed=int(jobs))
    check_whole(tmp_path, 60)


@pytest.mark.long
def test_a_thousand_points_outlive_twenty_kills(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(many(1000), encoding="utf-8")
    assert cli("sweep", "many.yaml", "--out", "whole", "--jobs", 2).code == 0
    assert killed_and_resumed(tmp_path, 1000, 20, "2", seed=20) == 20
    check_whole(tmp_path, 1000)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes as Linux shows them")
def test_processes_of_a_parent_that_was_killed_end_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(many(500), encoding="utf-8")
    with started(tmp_path, "sweep", "many.yaml", "--out", "torn", "--jobs", "2", "--json") as process:
        wait_for_points(process, tmp_path / "torn", 1)
        process.kill()
        ended(process)
    until(lambda: not running(process.pid))


def test_between_report_and_run_a_run_has_not_ended_but_nothing_is_played_again(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("sweep", "both.yaml", "--out", "whole", "--jobs", 1).code == 0

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_directory, "_circumstances", killed)
        assert cli("sweep", "both.yaml", "--out", "torn", "--jobs", 1).code == 130
    assert (tmp_path / "torn" / "report.json").is_file()
    monkeypatch.setattr("simulator.sweeps.sweep.play_point", killed)
    assert cli("sweep", "both.yaml", "--out", "torn", "--resume", "--jobs", 1).code == 0
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


def test_notes_that_outlived_their_run_are_removed(cli: Command, tmp_path: Path) -> None:
    assert cli("sweep", "both.yaml", "--out", "here", "--jobs", 1).code == 0
    (tmp_path / "here" / NAME).write_bytes(line(PointOutcome(0, {}, None, None)))
    ended = cli("sweep", "both.yaml", "--out", "here", "--resume")
    assert (ended.code, ended.err) == (2, "--resume: the run in here has ended; no point is missing\n")
    assert not (tmp_path / "here" / NAME).exists()


def test_a_run_that_was_killed_before_it_had_begun_begins(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".scenario.yaml.1.draft").write_text("name: ha", encoding="utf-8")
    assert cli("sweep", "both.yaml", "--out", "here", "--resume", "--jobs", 1).code == 0
    assert cli("sweep", "both.yaml", "--out", "whole", "--jobs", 1).code == 0
    assert contents(tmp_path / "here") == contents(tmp_path / "whole")


def begun(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Leave a sweep of which one point has ended."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_directory, "finish", interrupted)
        assert cli("sweep", "own.yaml", "--out", "torn", "--jobs", 1, *options).code == 130
    assert read_journal(tmp_path / "torn")


def test_going_on_with_something_else_is_refused(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    star = (Path(__file__).parents[1] / "topologies" / "star_100g.yaml").read_text(encoding="utf-8")
    own = (tmp_path / "both.yaml").read_text(encoding="utf-8").replace("star_100g", "./own_star.yaml")
    (tmp_path / "own_star.yaml").write_text(star, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    begun(cli, tmp_path, monkeypatch)
    again = ("sweep", "own.yaml", "--out", "torn", "--resume", "--jobs", 1)
    assert cli(*again, "--set", "seed=1").faults == [
        "--resume: torn/scenario.yaml is another scenario; repeat the options of the first call, or choose a new --out"
    ]
    refused = "--resume: torn was started with other inputs: "
    assert cli(*again, "--trace").faults == [f"{refused}trace was false and is now true; choose a new --out"]
    (tmp_path / "own_star.yaml").write_text(star + "# slower\n", encoding="utf-8")
    assert cli(*again).faults == [f"{refused}./own_star.yaml changed; choose a new --out"]
    (tmp_path / "own_star.yaml").write_text(star, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr("simulator.basics.edition.VERSION", "9.9")
        assert "simulator was 0.1.0" in cli(*again).faults[0]
    assert cli(*again).code == 0


def test_two_processes_do_not_play_for_one_directory(cli: Command, tmp_path: Path) -> None:
    scenario = load_scenario(tmp_path / "both.yaml")
    folder = run_directory.create("both", tmp_path / "here")
    run_directory.begin(folder, scenario)
    with open_journal(folder):
        refused = cli("sweep", "both.yaml", "--out", "here", "--resume")
    assert (refused.code, refused.faults) == (
        2,
        ["--out: another process writes to here; wait until the process ends, or stop the process"],
    )
    assert cli("sweep", "both.yaml", "--out", "here", "--resume", "--jobs", 1).code == 0


@given(cut=st.integers(0, 400), count=st.integers(1, 4))
def test_notes_cut_at_any_byte_hold_the_points_whose_lines_are_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, count: int
) -> None:
    outcomes = [PointOutcome(i, {"seed": i}, "events", {"time_s": 1 / 3, "told": "a\nb é"}) for i in range(count)]
    lines = [line(outcome) for outcome in outcomes]
    folder = tmp_path_factory.mktemp("cut")
    (folder / NAME).write_bytes(b"".join(lines)[:cut])
    # The last line is whole with its last brace; what is behind it is only its end.
    whole = [o for i, o in enumerate(outcomes) if sum(map(len, lines[: i + 1])) - 1 <= cut]
    assert list(read_journal(folder).values()) == whole
    later = PointOutcome(9, {}, None, None, "failed")
    with open_journal(folder) as note:
        note(later)
    assert list(read_journal(folder).values()) == [*whole, later]


def numbered(count: int) -> list[NumberedPoint]:
    return list(enumerate(points(load_scenario({**SCENARIO, "sweep": {"seed": list(range(count))}}))))


SCENARIO = {
    "name": "many",
    "cluster": {"topology": "star_100g", "world_size": 4},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB", "payload": False},
}


class DiesOnce:
    """Ends the process that plays a point, the first time."""

    def __init__(self, marks: Path, at: int) -> None:
        self.marks, self.at = marks, at

    def __call__(self, index: int, run: SimulatedRun) -> None:
        mark = self.marks / f"{index}"
        if index == self.at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_lost_process_loses_no_point(tmp_path: Path) -> None:
    dies: RunHandler = DiesOnce(tmp_path, 7)
    played = sorted(play_points(numbered(20), 2, dies), key=lambda o: o.index)
    assert (tmp_path / "7").exists()
    assert played == list(play_points(numbered(20), 1))


def dies_at_three_and_five(index: int, run: SimulatedRun) -> None:
    """End the process that simulates point 3 by a signal, and the one that simulates point 5 by an exit, always."""
    if index == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if index == 5:
        os._exit(9)


@pytest.mark.long
def test_points_that_end_every_process_fail_and_the_others_go_on() -> None:
    played = {o.index: o for o in play_points(numbered(8), 2, dies_at_three_and_five)}
    assert sorted(played) == list(range(8))
    told = "the process of this point was killed 3 times, perhaps because memory ran out; use fewer processes"
    assert {index: o.error for index, o in played.items() if o.error} == {3: told, 5: told}


@pytest.mark.long
def test_processes_that_cannot_start_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_worker_main", ends_at_once)
    with pytest.raises(SimulationError, match="3 processes ended before simulating a point; in a script"):
        list(play_points(numbered(4), 2))


def ends_at_once(*_: object) -> None:
    """In place of a process's work."""


def fails_otherwise(index: int, run: SimulatedRun) -> None:
    """Not a fault that is told in one line."""
    raise RuntimeError(f"point {index}")


@pytest.mark.long
def test_an_error_that_nobody_expects_comes_back_with_where_it_was() -> None:
    with pytest.raises(RuntimeError, match="point") as told:
        list(play_points(numbered(4), 2, fails_otherwise))
    assert "in fails_otherwise" in told.value.__notes__[0]
