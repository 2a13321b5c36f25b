"""`simulator plot`: which picture it leaves where, and that every fault is one line with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.records.setting_text import label
from tests.commands import SMALL, Command, commands_in

SWEPT = SMALL.replace(
    "plots: []", "compare: {collective.algorithm: [ring, tree]}\nsweep: {cluster.world_size: [2, 4]}\nplots: []"
)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    command = commands_in(tmp_path, monkeypatch, capsys)
    Path("swept.yaml").write_text(SWEPT, encoding="utf-8")
    assert command("run", "swept.yaml", "--out", "done").code == 0
    return command


def test_a_point_is_drawn_from_a_finished_run(cli: Command) -> None:
    told = cli("plot", "done", "--kind", "timeline", "--point", "cluster.world_size=2",
               "--point", "collective.algorithm=tree", "--svg")  # fmt: skip
    assert (told.code, told.out.strip()) == (0, f"picture: {Path('done', 'plots', 'timeline_tree.png')}")
    assert {path.name for path in Path("done/plots").iterdir()} == {"timeline_tree.png", "timeline_tree.svg"}
    assert cli("plot", "done", "--kind", "scaling", "--out", "all.png").out.strip() == "picture: all.png"
    assert Path("all.png").is_file()


def test_the_end_of_a_key_names_it(cli: Command) -> None:
    told = cli("plot", "done", "--kind", "timeline", "--point", "algorithm=tree", "--point", "world_size=2")
    assert (told.code, told.out.strip()) == (0, f"picture: {Path('done', 'plots', 'timeline_tree.png')}")
    unknown = cli("plot", "done", "--kind", "timeline", "--point", "algoritm=tree")
    assert unknown.err.rstrip().endswith("did you mean 'collective.algorithm'?")


@pytest.mark.long
def test_pictures_that_are_not_drawn_are_told(cli: Command) -> None:
    """Nine points have 4 GPUs, and eight are drawn at once; a ring of 400 has 319,200 transfers."""
    seeds = "sweep: {cluster.world_size: [4], seed: [1, 2, 3, 4, 5, 6, 7, 8, 9]}"
    Path("many.yaml").write_text(SMALL.replace("plots: []", f"plots: []\n{seeds}"), encoding="utf-8")
    assert cli("run", "many.yaml", "--out", "nine").code == 0
    told = cli("plot", "nine", "--kind", "timeline", "--point", "cluster.world_size=4")
    assert (told.code, told.out.count("picture: ")) == (0, 8)
    assert told.err == (
        "not drawn: timeline_9: one command draws at most 8 points; select other points with a further --point\n"
    )
    sizes = "plots: {kinds: [timeline], points: all}\nsweep: {cluster.world_size: [4, 400]}"
    Path("large.yaml").write_text(SMALL.replace("plots: []", sizes), encoding="utf-8")
    line = "not drawn: timeline_400: the point has more than 200,000 transfers, too many to be simulated again"
    assert line in cli("run", "large.yaml", "--out", "two").out.splitlines()
    told = cli("plot", "two", "--kind", "timeline", "--point", "cluster.world_size=400")
    assert told.code == 2
    assert (
        f"cluster.world_size=400 contain no data for this kind ({line.replace('timeline_400', 'timeline')})" in told.err
    )


def test_without_a_point_the_answers_points_are_drawn(cli: Command) -> None:
    told = cli("plot", "done", "--kind", "timeline")
    assert told.code == 0
    assert told.out.count("picture: ") in (1, 2)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--kind", "timelines"), "--kind: got 'timelines'; one of bandwidth_utilization, "),
        (("--kind", "scaling", "--point", "cluster.world_size=2"), "--point: scaling shows all points together; "),
        (("--kind", "timeline", "--point", "cluster.world_size=3"), "--point: got {cluster.world_size: 3}, which no"),
        (("--kind", "timeline", "--point", "cluster.world_size=x"), "--point cluster.world_size: got 'x'; must be"),
        (("--kind", "timeline", "--point", "cluster.worldsize=2"), "--point cluster.worldsize=2: unknown key; "),
        (("--kind", "timeline", "--point", "2"), "--point 2: must be KEY=VALUE, such as "),
        (("--kind", "scaling", "--out", "all.pdf"), "--out: got all.pdf; must end with .png "),
        (
            ("--kind", "timeline", "--point", "cluster.world_size=2", "--out", "a.png"),
            "--out: got one file for 2 pictures ",
        ),
    ],
)
def test_a_fault_is_one_line(cli: Command, arguments: tuple[str, ...], fault: str) -> None:
    told = cli("plot", "done", *arguments)
    assert told.code == 2
    assert told.err.startswith(fault)
    assert told.err.count("\n") == 1
    assert not Path("done/plots").exists()


def test_what_is_no_run_is_refused(cli: Command) -> None:
    told = cli("plot", "nowhere", "--kind", "timeline")
    assert told.code == 2
    assert told.err.startswith("nowhere: has no finished run")


def test_a_point_is_named_by_the_text_of_the_printed_table(cli: Command) -> None:
    axis = "compare: {collective.algorithm: [ring, tree], cluster.stragglers: [{}, {1: 2.0}]}"
    Path("slow.yaml").write_text(SMALL.replace("plots: []", f"{axis}\nplots: []"), encoding="utf-8")
    printed = " ".join(cli("run", "slow.yaml", "--out", "slow").out.split())
    text = label("cluster.stragglers", {1: 2.0})
    assert text in printed
    told = cli(
        "plot", "slow", "--kind", "timeline", "--point", f"cluster.stragglers={text}", "--point", "algorithm=tree"
    )
    assert (told.code, told.out.count("picture: ")) == (0, 1)
