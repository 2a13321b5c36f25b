"""A run's directory: whole or not there, enough to run again, equal bytes for equal scenarios, and interruptions."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import time
import warnings
from pathlib import Path

import pytest

import simulator
from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.cli.interruption import TerminatedError
from simulator.results import run_directory
from simulator.run.outcome import PointOutcome
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.artifacts import ArtifactWriter, links_text, transfers_text
from simulator.sweeps.journal import open_journal, read_journal
from simulator.sweeps.sweep import play_points
from tests.commands import RING, SMALL, Answer, Command, commands_in
from tests.interrupting import contents, ended, held, running, started, until, wait_for_points

ROOT = Path(__file__).parents[1]
# Of large arrays, so that a signal arrives in the middle of a play.
LONG = SMALL.replace("4 KiB", "8 MiB").replace("plots: []", "sweep: {seed: [0, 1, 2, 3, 4, 5, 6, 7]}\nplots: []")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_single_run_leaves_everything_in_one_directory(cli: Command, tmp_path: Path) -> None:
    assert cli("run", "small.yaml", "--out", "here").code == 0
    files = {"scenario.yaml", "report.json", "report.html", "spans.csv", "transfers.csv", "links.csv", "view.json.gz"}
    assert set(contents(tmp_path / "here")) == files
    run = json.loads((tmp_path / "here" / "run.json").read_text(encoding="utf-8"))
    assert (run["simulator"], run["seed"], run["base"]) == (simulator.__version__, 0, str(tmp_path))
    assert run["wall_time_s"] > 0
    assert set(run["packages"]) == {"simpy", "numpy", "networkx", "ml_dtypes"}
    answer = cli("run", "small.yaml", "--out", "traced", "--trace")
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"traces: {Path('traced/trace')}; each file opens in https://ui.perfetto.dev"
    traces = {f"trace/rank{rank}.json.gz" for rank in range(4)}
    assert set(contents(tmp_path / "traced")) == files | traces


def test_each_point_of_several_has_a_directory_and_a_trace_if_asked(cli: Command, tmp_path: Path) -> None:
    assert cli("run", "both.yaml", "--out", "plain").code == 0
    files = {
        f"points/000{i}/{name}" for i in (0, 1) for name in ("spans.csv", "transfers.csv", "links.csv", "view.json.gz")
    }
    files |= {"scenario.yaml", "report.json", "report.html", "table.csv"}
    assert set(contents(tmp_path / "plain")) == files
    answer = cli("run", "both.yaml", "--out", "traced", "--trace")
    assert answer.code == 0
    first, last = (Path("traced", "points", number, "trace") for number in ("0000", "0001"))
    assert f"traces: {first} to {last}; " in answer.out
    traces = {f"points/000{i}/trace/rank{rank}.json.gz" for i in (0, 1) for rank in range(4)}
    assert set(contents(tmp_path / "traced")) == files | traces


def test_operations_of_chosen_ranks_are_kept(cli: Command, tmp_path: Path) -> None:
    """Theirs, and those of the one that ends last; the file says whose. All ranks' are the same otherwise."""
    assert cli("run", "small.yaml", "--out", "all").code == 0
    assert cli("run", "small.yaml", "--out", "some", "--ranks", "1-2").code == 0
    first, *kept = (tmp_path / "some" / "spans.csv").read_text(encoding="utf-8").splitlines()
    header, *every = (tmp_path / "all" / "spans.csv").read_text(encoding="utf-8").splitlines()
    ranks = {int(line.split(",")[0]) for line in kept[1:]}
    told = ", ".join(map(str, sorted(ranks)))
    assert first == f"# operations of ranks {told} of 4; `simulator run --ranks` selects other ranks"
    assert {1, 2} <= ranks
    assert len(ranks) <= 3
    assert kept == [header, *(line for line in every if int(line.split(",")[0]) in ranks)]
    report = [(tmp_path / name / "report.json").read_bytes() for name in ("all", "some")]
    assert report[0] == report[1]


@pytest.mark.parametrize(
    ("ranks", "fault"),
    [
        ("1-x", "--ranks 1-x: must be ranks or ascending ranges of ranks, such as --ranks 0,8-15"),
        ("3-1", "--ranks 3-1: must be ranks or ascending ranges of ranks, such as --ranks 0,8-15"),
        ("0-99999999999", "--ranks 0-99999999999: must be ranks or ascending ranges of ranks, such as --ranks 0,8-15"),
        ("2,4", "small.yaml: operations of rank 4 cannot be kept; the ranks are 0 .. 3"),
    ],
)
def test_ranks_that_are_not_there_are_refused(cli: Command, tmp_path: Path, ranks: str, fault: str) -> None:
    answer = cli("run", "small.yaml", "--out", "here", "--ranks", ranks)
    assert (answer.code, answer.faults) == (2, [fault])
    assert not (tmp_path / "here").exists()


def test_without_out_runs_are_numbered(cli: Command, tmp_path: Path) -> None:
    for _ in range(3):
        cli("run", "small.yaml")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["small-0001", "small-0002", "small-0003"]


def test_spans_and_transfers_read_back_exactly(cli: Command, tmp_path: Path) -> None:
    cli("run", "small.yaml", "--out", "here")
    run = simulate(load_scenario(tmp_path / "small.yaml"))
    with (tmp_path / "here" / "spans.csv").open(encoding="utf-8") as file:
        spans = list(csv.DictReader(file))
    assert [(int(s["rank"]), float(s["start_s"]), float(s["end_s"])) for s in spans] == [
        (span.rank, span.start, span.end) for span in run.timeline.spans
    ]
    with (tmp_path / "here" / "transfers.csv").open(encoding="utf-8") as file:
        transfers = list(csv.DictReader(file))
    (log,) = run.timeline.logs
    assert [float(t["enter_s"]) for t in transfers] == log.enter.tolist()
    assert [float(t["end_s"]) for t in transfers] == log.end.tolist()
    # 2 (n - 1) n transfers of a quarter of 4 KiB.
    assert [int(t["bytes"]) for t in transfers] == [1024] * 24
    assert {(t["src"], t["dst"]) for t in transfers} == {(f"gpu{r}", f"gpu{(r + 1) % 4}") for r in range(4)}


def test_use_of_links_over_time_adds_up_to_the_bytes_of_each_link(cli: Command, tmp_path: Path) -> None:
    cli("run", "small.yaml", "--out", "here")
    run = simulate(load_scenario(tmp_path / "small.yaml"))
    with (tmp_path / "here" / "links.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for link in run.timeline.links:
        carried = [
            float(row["share"]) * link.bandwidth * (float(row["end_s"]) - float(row["start_s"]))
            for row in rows
            if row["link"] == link.name
        ]
        assert len(carried) == 100
        assert sum(carried) == pytest.approx(link.nbytes, rel=1e-5)
    table = simulator.simulate(load_scenario(tmp_path / "small.yaml")).link_usage(bins=50)
    assert table.shape == (50, len(run.timeline.links))
    assert table.index[0] == 0.0
    assert table.to_numpy().max() <= 1 + 1e-9


def test_collectives_that_fill_no_link_are_told_beside_the_use_of_links() -> None:
    """ZeRO-3's gathers and reduce-scatters are closed forms; the rest are the few bytes of the loss and the norm."""
    training = {"model": "gpt2", "seq_len": 128, "sharding": "zero3"}
    scenario = {"name": "a", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": training}
    run = simulator.simulate(scenario)
    closed, played = run.report.closed_form_collectives, run.report.played_collectives
    said = f"{closed:,} of {closed + played:,} collectives are computed by closed forms and fill no link; "
    assert links_text(run).splitlines()[:2] == [
        f"# {said}training.collectives: played simulates their transfers",
        "link,start_s,end_s,share",
    ]
    with pytest.warns(ScenarioWarning, match=re.escape(said)):
        run.link_usage()
    assert run.report.bottleneck is None
    simulated = simulator.simulate(scenario | {"training": training | {"collectives": "played"}})
    assert simulated.report.bottleneck is not None
    assert simulated.report.bottleneck.bytes > 1e6
    assert links_text(simulated).startswith("link,")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulated.link_usage()


def test_more_transfers_than_are_kept_are_left_out_and_the_file_says_so() -> None:
    run = simulate(load_scenario({**_small(), "plots": []}))
    assert transfers_text(run, most=23).startswith("# 24 transfers omitted; ")
    assert len(transfers_text(run, most=24).splitlines()) == 1 + 24
    assert transfers_text(run, most=None) == transfers_text(run, most=24)


def _small() -> dict[str, object]:
    cluster = {"topology": "star_100g", "world_size": 4}
    collective = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB"}
    return {"name": "small", "cluster": cluster, "collective": collective}


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    there = tmp_path / "report.json"
    write_atomically(there, "first")
    write_atomically(there, "second")
    assert there.read_text(encoding="utf-8") == "second"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(there, "third \ud800")
    assert there.read_text(encoding="utf-8") == "second"
    with pytest.raises(OSError, match="gone"):
        write_atomically(tmp_path / "gone" / "x", "text")


def test_a_line_cut_short_is_a_point_that_was_not_finished(tmp_path: Path) -> None:
    first, last = (PointOutcome(index, {"seed": index}, "events", {"time_s": 1.0}) for index in (3, 9))
    with open_journal(tmp_path) as note:
        note(first)
    for torn in ('\n{"index": 4, "settings": {}, "eng', '\n{"index": 5}', "\n7", "\n"):
        with (tmp_path / "points.jsonl").open("a", encoding="utf-8") as file:
            file.write(torn)
        with open_journal(tmp_path) as note:
            note(last)
        last_line = (tmp_path / "points.jsonl").read_bytes().splitlines()[-1]
        assert json.loads(last_line)["index"] == 9
    assert read_journal(tmp_path) == {3: first, 9: last}
    assert read_journal(tmp_path / "elsewhere") == {}


def test_rerun_gives_the_report_to_the_byte_from_anywhere(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    star = Path(ROOT / "topologies" / "star_100g.yaml").read_text(encoding="utf-8")
    (tmp_path / "own" / "mine.yaml").write_text(star, encoding="utf-8")
    scenario = RING.replace("star_100g", "./own/mine.yaml") + "seed: 7\n"
    (tmp_path / "relative.yaml").write_text(scenario, encoding="utf-8")
    assert cli("run", "relative.yaml", "--out", "first").code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = cli("rerun", tmp_path / "first", "--out", "second")
    assert (again.code, again.out.splitlines()[-1].endswith("the report is identical")) == (0, True)
    first, second = contents(tmp_path / "first"), contents(elsewhere / "second")
    assert first == second


def test_rerun_leaves_traces_if_asked(cli: Command, tmp_path: Path) -> None:
    cli("run", "small.yaml", "--out", "plain")
    cli("run", "small.yaml", "--out", "traced", "--trace")
    assert cli("rerun", "plain", "--trace", "--out", "again").code == 0
    assert contents(tmp_path / "again") == contents(tmp_path / "traced")
    answer = cli("rerun", "plain", "--trace")
    assert answer == Answer(2, "", "--trace: needs --out DIR, because results are discarded without --out\n")


def test_rerun_says_when_a_figure_differs(cli: Command, tmp_path: Path) -> None:
    cli("run", "small.yaml", "--out", "here")
    report = tmp_path / "here" / "report.json"
    report.write_text(report.read_text(encoding="utf-8").replace('"wrong": 0', '"wrong": 1'), encoding="utf-8")
    answer = cli("rerun", "here")
    assert (answer.code, answer.out) == (1, "")
    assert "the report differs; `rerun --out DIR` and `diff` show the differences" in answer.err


def test_a_directory_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="has no finished run"):
        run_directory.load(tmp_path)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_resume_plays_what_is_missing_and_leaves_the_same_bytes(cli: Command, tmp_path: Path, jobs: str) -> None:
    assert cli("sweep", "both.yaml", "--out", "whole", "--jobs", "1").code == 0
    scenario = load_scenario("both.yaml")
    folder = run_directory.create("both", tmp_path / "torn")
    run_directory.begin(folder, scenario)
    keeper = ArtifactWriter(folder, single=False, view=True)
    with open_journal(folder) as note:
        for outcome in play_points(list(enumerate(points(scenario)))[1:], 1, keeper):
            note(outcome)
    resumed = cli("sweep", "both.yaml", "--out", "torn", "--resume", "--jobs", jobs)
    assert resumed.code == 0
    assert "2/2" in resumed.err
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")
    ended = cli("sweep", "both.yaml", "--out", "torn", "--resume")
    assert (ended.code, ended.err) == (2, "--resume: the run in torn has ended; no point is missing\n")
    other = cli("sweep", "both.yaml", "--out", "torn", "--resume", "--set", "seed=1")
    assert other.code == 2
    assert "torn/scenario.yaml is another scenario; " in other.err


def interrupt(process: subprocess.Popen[str], folder: Path, *, after: int) -> tuple[str, str]:
    """Press Ctrl-C, which reaches every process of the terminal, once so many points have ended."""
    wait_for_points(process, folder, after)
    os.killpg(process.pid, signal.SIGINT)
    return ended(process)


def wait_until_nobody_is_left(session: int) -> None:
    """Wait until every process of a session has ended: nobody is left whom a signal would reach."""
    until(lambda: not running(session))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes as Linux shows them")
@pytest.mark.parametrize(
    "command",
    [("run",), pytest.param(("sweep", "--jobs", "1"), marks=pytest.mark.long), ("sweep", "--jobs", "2")],
    ids=" ".join,
)
@pytest.mark.one_of(2)
def test_what_had_ended_before_ctrl_c_is_kept_and_gone_on_with(
    cli: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "long.yaml").write_text(LONG, encoding="utf-8")
    name, *options = command
    with started(tmp_path, name, "long.yaml", *options, "--out", "torn", "--json", program=held(2)) as process:
        out, err = interrupt(process, tmp_path / "torn", after=2)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    told = [line for line in err.splitlines() if "interrupted" in line]
    done = len(read_journal(tmp_path / "torn"))
    assert done == 2
    assert told == [
        f"interrupted: {done} of 8 points are in torn; to continue, use `"
        f"{' '.join(('simulator sweep long.yaml', *options, '--json --resume --out torn'))}`"
    ]
    assert not (tmp_path / "torn" / "report.json").exists()
    wait_until_nobody_is_left(process.pid)
    assert cli("sweep", "long.yaml", "--out", "torn", "--resume", "--jobs", 1).code == 0
    assert cli("run", "long.yaml", "--out", "whole").code == 0
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes as Linux shows them")
@pytest.mark.parametrize(
    ("command", "everybody"),
    [
        (("run",), False),
        pytest.param(("sweep", "--jobs", "2"), False, marks=pytest.mark.long),
        (("sweep", "--jobs", "2"), True),
    ],
)
@pytest.mark.one_of(2)
def test_sigterm_keeps_what_had_ended_as_ctrl_c_does(tmp_path: Path, command: tuple[str, ...], everybody: bool) -> None:
    """As `kill` sends it to one process, and `timeout` or a scheduler to all; 143 is 128 and its number."""
    (tmp_path / "long.yaml").write_text(LONG, encoding="utf-8")
    name, *options = command
    with started(tmp_path, name, "long.yaml", *options, "--out", "torn", "--json", program=held(2)) as process:
        wait_for_points(process, tmp_path / "torn", 2)
        (os.killpg if everybody else os.kill)(process.pid, signal.SIGTERM)
        out, err = ended(process)
    done = len(read_journal(tmp_path / "torn"))
    assert (process.returncode, out, done) == (143, "", 2)
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if "terminated" in line] == [
        f"terminated: {done} of 8 points are in torn; to continue, use `"
        f"{' '.join(('simulator sweep long.yaml', *options, '--json --resume --out torn'))}`"
    ]
    wait_until_nobody_is_left(process.pid)


@pytest.mark.parametrize("error", [TerminatedError, MemoryError, OSError, ZeroDivisionError, ScenarioError])
def test_what_fails_before_its_first_point_leaves_no_directory(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    for where in ("simulator.sweeps.sweep.play_alone", "simulator.results.run_directory.write_atomically"):
        with monkeypatch.context() as patched:
            patched.setattr(where, failing)
            try:
                assert cli("run", "small.yaml", "--out", "here").code in (1, 2, 143)
            except (MemoryError, ZeroDivisionError):
                assert error in (MemoryError, ZeroDivisionError)
        assert not (tmp_path / "here").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes as Linux shows them")
@pytest.mark.parametrize("wait", [0.0, 0.1, 0.2])
@pytest.mark.one_of(3)
def test_ctrl_c_while_processes_start_says_nothing(tmp_path: Path, wait: float) -> None:
    """The command, who tracks its resources, and the process that the others will be copies of are there by then."""
    (tmp_path / "long.yaml").write_text(LONG, encoding="utf-8")
    with started(tmp_path, "sweep", "long.yaml", "--out", "torn", "--jobs", "2", program=held(0)) as process:
        until(lambda: process.poll() is not None or len(running(process.pid)) >= 3, 0.002)
        time.sleep(wait)
        out, err = interrupt(process, tmp_path / "torn", after=0)
    assert process.returncode in (130, -signal.SIGINT), err
    assert out == ""
    assert "Traceback" not in err
    wait_until_nobody_is_left(process.pid)


def test_ctrl_c_before_any_point_leaves_nothing(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> PointOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.sweeps.sweep.play_point", interrupted)
    answer = cli("run", "both.yaml", "--out", "here")
    assert answer.code == 130
    assert answer.faults[-1] == "interrupted: no point had ended, therefore no results are kept"
    assert not (tmp_path / "here").exists()


@pytest.mark.long
def test_two_hash_seeds_leave_equal_bytes_pictures_included(tmp_path: Path) -> None:
    scenario = RING.replace("plots: []", "plots: [bandwidth_utilization, timeline, steps]")
    (tmp_path / "drawn.yaml").write_text(scenario, encoding="utf-8")
    for hash_seed in ("1", "4711"):
        with started(
            tmp_path, "run", "drawn.yaml", "--out", hash_seed, "--trace", "--svg", hash_seed=hash_seed
        ) as process:
            ended(process)
        assert process.returncode == 0
    one, other = contents(tmp_path / "1"), contents(tmp_path / "4711")
    assert len([name for name in one if name.endswith((".png", ".svg"))]) == 12
    assert one == other
