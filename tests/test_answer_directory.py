"""`--out` of `simulator goodput` and `simulator jobs`: which files there are, and that they are whole or not there."""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from simulator import simulate_jobs
from simulator.cli import answer_output
from simulator.results import answer_directory
from tests.commands import Command, commands_in

STEP: dict[str, Any] = {
    "name": "days",
    "cluster": {"topology": "dgx_h100", "world_size": 16},
    "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "framework": "torchtitan"},
}
SPREAD = {"training": {"model": "gpt2", "seq_len": 256}, "world_size": 4, "placement": "spread"}
JOBS: dict[str, Any] = {"cluster": {"topology": "leaf_spine_100g"}, "jobs": {"a": SPREAD, "b": SPREAD}}
DAYS: dict[str, Any] = {"scenario": STEP, "days": "30 d", "failures": 500, "compare": {"spares": [0, 2]}}
DOCUMENTS = {"answer.json", "report.html"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    for name, data in (("step", STEP), ("jobs", JOBS), ("days", DAYS)):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    return commands_in(tmp_path, monkeypatch, capsys)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def pictures(*names: str) -> set[str]:
    return {f"plots/{name}.png" for name in names}


def test_an_answer_on_days_leaves_its_document_and_its_tables(cli: Command, tmp_path: Path) -> None:
    told = cli("goodput", "step.json", "--days", "30d", "--failures", "500", "--out", "out", "--json")
    out = tmp_path / "out"
    assert files(out) == DOCUMENTS | {"waterfall.csv", "incidents.csv", "intervals.csv"} | pictures(
        "waterfall", "incidents", "runs", "intervals"
    )
    assert (out / "answer.json").read_text() == told.out
    shares = {row["part"]: float(row["share"]) for row in rows(out / "waterfall.csv")}
    assert shares == told.data["shares"]
    # The shares of 30 days are 30 days.
    assert sum(float(row["days"]) for row in rows(out / "waterfall.csv")) == pytest.approx(30.0)
    # The best interval lies between intervals that were tried.
    tried = [float(row["interval_s"]) for row in rows(out / "intervals.csv")]
    assert min(tried) <= told.data["best_interval_s"] <= max(tried)
    # Half a failure of 2 nodes and day: about 30 in 30 days; each takes at least the restart of 300 s.
    incidents = rows(out / "incidents.csv")
    assert 10 < len(incidents) < 60
    assert {row["kind"] for row in incidents} <= {"error", "hang"}
    assert all(float(row["down_s"]) >= 300 for row in incidents[:-1])


def test_a_comparison_leaves_a_row_for_each_value(cli: Command, tmp_path: Path) -> None:
    told = cli("goodput", "days.json", "--out", "out", "--json").data
    assert files(tmp_path / "out") == DOCUMENTS | {"comparison.csv"} | pictures("values")
    found = {row["spares"]: float(row["useful_share"]) for row in rows(tmp_path / "out" / "comparison.csv")}
    assert found == {value: answer["goodput"] for value, answer in told["answers"].items()}


def test_an_answer_on_jobs_leaves_its_document_and_its_tables(cli: Command, tmp_path: Path) -> None:
    told = cli("jobs", "jobs.json", "--shifts", "1", "--out", "out", "--json")
    out = tmp_path / "out"
    assert files(out) == DOCUMENTS | {"jobs.csv", "steps.csv", "shared_links.csv", "shifts.csv"} | pictures(
        "jobs", "shared_link", "later_starts"
    )
    assert (out / "answer.json").read_text() == told.out
    ends = [float(row["end_s"]) for row in rows(out / "steps.csv") if row["job"] == "b"]
    assert ends == told.data["jobs"]["b"]["step_ends_s"]
    assert [row["link"] for row in rows(out / "shared_links.csv")] == [one["link"] for one in told.data["shared_links"]]
    (shift,) = rows(out / "shifts.csv")
    assert float(shift["a_slowdown"]) == told.data["shifts"][0]["slowdowns"]["a"]


def test_without_out_nothing_is_written(cli: Command, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    assert cli("jobs", "jobs.json").code == 0
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", [("goodput", "step.json", "--days", "30d"), ("jobs", "jobs.json")])
def test_a_folder_with_files_is_refused_and_kept(cli: Command, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    told = cli(*command, "--out", "out")
    assert (told.code, told.out) == (2, "")
    assert told.faults == ["--out: out exists and is not empty; choose a new directory"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_refused_question_leaves_no_folder(cli: Command, tmp_path: Path) -> None:
    told = cli("goodput", "step.json", "--days", "30d", "--storage", "0 GB/s", "--out", "out")
    assert told.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_answer_that_cannot_be_written_whole_leaves_no_folder(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    written = answer_directory.write_atomically

    def fails(path: Path, content: str | bytes) -> None:
        if path.name == "steps.csv":
            raise error
        written(path, content)

    monkeypatch.setattr(answer_directory, "write_atomically", fails)
    assert cli("jobs", "jobs.json", "--out", "out").code != 0
    assert not (tmp_path / "out").exists()


def test_the_frame_of_jobs_has_the_rows_of_the_file(cli: Command, tmp_path: Path) -> None:
    cli("jobs", "jobs.json", "--out", "out")
    (first, second), table = rows(tmp_path / "out" / "jobs.csv"), simulate_jobs(JOBS).frame()
    assert [float(first["alone_s"]), float(second["slowdown"])] == [table.alone_s["a"], table.slowdown["b"]]


def test_the_page_has_its_pictures_inside_and_names_every_file(cli: Command, tmp_path: Path) -> None:
    told = cli("jobs", "jobs.json", "--shifts", "1", "--out", "out")
    assert told.out.splitlines()[-1] == f"report: {Path('out/report.html')}, 3 pictures in {Path('out/plots')}"
    page = (tmp_path / "out" / "report.html").read_text()
    for name in files(tmp_path / "out") - {"report.html"}:
        assert f'<a href="{name}">' in page
    for name in pictures("jobs", "shared_link", "later_starts"):
        assert b64encode((tmp_path / "out" / name).read_bytes()).decode() in page
    assert "<script" not in page


def test_equal_questions_leave_equal_bytes(cli: Command, tmp_path: Path) -> None:
    for out in ("one", "two"):
        cli("goodput", "step.json", "--days", "30d", "--failures", "500", "--out", out)
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    "asked",
    [
        ("jobs", "jobs.json"),
        ("goodput", "step.json", "--days", "30d", "--failures", "500"),
    ],
    ids=lambda asked: str(asked[0]),
)
def test_an_answer_stays_if_nobody_reads_the_printed_lines(
    asked: tuple[str, ...], cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `simulator jobs FILE --out out | head -1`."""

    def closed(text: str) -> None:
        raise BrokenPipeError(text)

    monkeypatch.setattr(answer_output, "print_text", closed)
    cli(*asked, "--out", "out")
    assert files(tmp_path / "out") >= DOCUMENTS
