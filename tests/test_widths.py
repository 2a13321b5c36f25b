"""Tables of commands in narrow windows: every word that a wide one has, none cut, and no line too wide."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest

from simulator.calibration.table import Table
from simulator.cli.console import console, width
from simulator.report.tables.layout import Column, laid_out
from tests.commands import Command, commands_in

LISTS = (
    "algorithms",
    "builders",
    "dtypes",
    "gpus",
    "models",
    "operations",
    "plots",
    "scenarios",
    "strategies",
    "topologies",
)
COMMANDS = [
    *(f"list {kind}" for kind in LISTS),
    "memory llama3_8b --dp 64",
    "memory llama3_8b --dp 8 --sharding zero3 --checkpointing full",
    "memory llama3_405b --tp 8 --pp 16 --micro-batches 16 --sharding zero3 --checkpointing full",
    "kernels llama3_8b --framework torchtitan",
    "kernels deepseek_v3 --tp 8",
    "collective all_reduce --end 1K",
    "collective all_gather --topology dgx_h100 --world-size 16 --begin 1G --end 2G --dtype bfloat16",
    "check zero_stages",
    "check star.yaml",
    "show dgx_h100 --out x.png",
    "diff one two",
]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def words(text: str) -> Counter[str]:
    """How often each word is there; estimated run times differ from call to call, signs of comments by lines."""
    told = (line for line in text.splitlines() if not line.startswith("run time"))
    return Counter(word for line in told for word in line.replace("#", " ").split())


@pytest.mark.parametrize("windows", [(80,), pytest.param((100, 120), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.one_of(3)
def test_a_narrow_window_loses_no_word(
    cli: Command, monkeypatch: pytest.MonkeyPatch, command: str, windows: tuple[int, ...]
) -> None:
    if command.startswith("diff"):
        cli("run", "both.yaml", "--out", "one")
        cli("run", "both.yaml", "--out", "two", "--set", "cluster.link_factors={'gpu0->switch0': 0.5}")
    Path("star.yaml").write_text(
        "builder: star\noptions: {bandwidth: 100 Gb/s, latency: 5 us}\ngpu: h100_sxm\n", encoding="utf-8"
    )
    wide = cli(*command.split())
    assert wide.code == 0
    assert wide.out
    for columns in windows:
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = cli(*command.split())
        assert max(map(len, narrow.out.splitlines())) <= columns
        assert "…" not in narrow.out
        # A table that is split repeats the columns that name its rows, so there may be more words.
        assert not words(wide.out) - words(narrow.out)


def test_without_columns_a_row_in_a_pipe_is_one_line(cli: Command) -> None:
    rows = cli("list", "strategies").out.splitlines()
    assert [row.split()[0] for row in rows] == ["strategy", "ddp", "parameter_server", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize(
    ("columns", "found"), [("80", 80), (" 100 ", 100), ("1", 20), ("0", None), ("wide", None), ("1234567", None)]
)
def test_columns_say_how_wide_a_line_may_be(monkeypatch: pytest.MonkeyPatch, columns: str, found: int | None) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert width(io.StringIO()) == found
    assert console().width == (found or 150)


def test_a_table_of_the_validation_folds_its_texts() -> None:
    reason = "communication between nodes; the measured network differs from the simulated network"
    table = Table("the worst rows", ("row", "error", "likely reason"), (("mpt_70b a100 x32", "+6.0%", reason),))
    assert table.text().splitlines()[2] == f"  mpt_70b a100 x32  +6.0%  {reason}"
    assert table.text(60).splitlines()[2:] == [
        "  mpt_70b a100 x32  +6.0%  communication between nodes; the",
        "                           measured network differs from the",
        "                           simulated network",
    ]


def test_a_word_that_is_wider_than_the_window_stays_whole() -> None:
    columns = [Column("name", left=True, folds=True), Column("figure")]
    assert laid_out(columns, [("a" * 40, "1")], 20) == [f"{'name':40}  figure", f"{'a' * 40}       1"]


def test_a_lack_of_memory_is_told_in_lines_within_the_window(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the largest holders and changes that help: several lines of a window, a single line in a pipe."""
    job = "name: job\ncluster: {topology: dgx_a100, world_size: 8}\ntraining: {model: gpt2_xl, seq_len: 1k, "
    Path("job.yaml").write_text(f"{job}micro_batch_size: 64, sharding: ddp}}\n", encoding="utf-8")
    (line,) = cli("run", "job.yaml").faults
    monkeypatch.setenv("COLUMNS", "100")
    folded = cli("run", "job.yaml").faults
    assert len(folded) > 3
    assert all(len(part) <= 100 for part in folded)
    assert " ".join(part.strip() for part in folded) == line
