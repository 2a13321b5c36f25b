"""Tables that a run leaves: the rows of `simulator.sweep`, as CSV and as Parquet."""

from __future__ import annotations

import math
from importlib import util
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulator.scenario.load import load_scenario
from simulator.sweeps.outcome import PointOutcome
from simulator.sweeps.sweep import sweep
from simulator.sweeps.table import csv_text, frame, write_parquet
from tests.commands import Command, commands_in

AXES = ("--set", "cluster.world_size=2,4", "--set", "seed=0,1")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_both_tables_are_the_frame_that_sweep_gives(cli: Command, tmp_path: Path) -> None:
    assert cli("sweep", "both.yaml", *AXES, "--parquet", "--out", "here", "--jobs", 1).code == 0
    wanted = sweep(load_scenario("both.yaml"), {"cluster.world_size": [2, 4], "seed": [0, 1]})
    assert len(wanted) == 8
    of_csv = pd.read_csv(tmp_path / "here" / "table.csv")
    pd.testing.assert_frame_equal(of_csv, wanted, check_dtype=False, check_exact=True)
    of_parquet = pd.read_parquet(tmp_path / "here" / "table.parquet")
    pd.testing.assert_frame_equal(of_parquet, wanted, check_dtype=False, check_exact=True)


def test_a_long_table_is_printed_in_part_and_left_whole(cli: Command, tmp_path: Path) -> None:
    many = ("--set", f"seed={','.join(map(str, range(205)))}", "--set", "collective.payload=false")
    answer = cli("sweep", "small.yaml", *many, "--out", "here", "--jobs", 1)
    assert answer.code == 0
    assert "165 more rows: here/table.csv\n" in answer.out
    assert len(pd.read_csv(tmp_path / "here" / "table.csv")) == 205
    full = cli("sweep", "small.yaml", *many, "--out", "there", "--jobs", 1, "--table", "full")
    assert "5 more points: there/table.csv\n" in full.out


def test_a_failed_point_has_its_row_with_its_error(cli: Command, tmp_path: Path) -> None:
    broken = ("--set", "cluster.link_factors={'gpu3->switch0': 0.5}")
    assert cli("sweep", "small.yaml", *AXES, *broken, "--parquet", "--out", "here", "--jobs", 1).code == 1
    for table in (pd.read_csv(tmp_path / "here" / "table.csv"), pd.read_parquet(tmp_path / "here" / "table.parquet")):
        assert list(table["error"].notna()) == [True, True, False, False]
        assert list(table["time_s"].isna()) == [True, True, False, False]
        assert table["error"][0].startswith("link: got 'gpu3->switch0'")


def test_a_single_point_leaves_parquet_if_asked(cli: Command, tmp_path: Path) -> None:
    assert cli("run", "small.yaml", "--parquet", "--out", "here").code == 0
    assert len(pd.read_parquet(tmp_path / "here" / "table.parquet")) == 1
    assert not (tmp_path / "here" / "table.csv").exists()


def test_columns_of_no_plain_kind_are_text(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"a": "auto", "b": {3: 0.5}}, {"a": 4, "b": {}}, {"a": None, "b": None}]
    outcomes = [
        PointOutcome(i, axes, "events", {"time_s": 0.1 * i, "losses": [1.0]}) for i, axes in enumerate(settings)
    ]
    write_parquet(outcomes, tmp_path / "t.parquet")
    read = pd.read_parquet(tmp_path / "t.parquet")
    assert read["a"].tolist()[:2] == ["auto", "4"]
    assert read["b"].tolist()[:2] == ["{3: 0.5}", "{}"]
    assert read["a"].isna().tolist() == [False, False, True]
    assert read["time_s"].tolist() == [0.0, 0.1, 0.2]
    assert csv_text(outcomes).splitlines()[1] == "auto,{3: 0.5},0.0,[1.0],events,"


def test_numbers_read_back_exactly() -> None:
    value = math.pi / 1e7
    text = csv_text([PointOutcome(0, {}, "events", {"time_s": value})])
    assert float(text.splitlines()[1].split(",")[0]) == value
    assert frame([]).empty


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [
        (("--parquet",), "pyarrow", "parquet"),
        (("--scheduler", "tcp://127.0.0.1:1"), "distributed", "distributed"),
    ],
)
def test_an_extra_that_is_missing_is_told_before_anything_is_played(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], package: str, extra: str
) -> None:
    found = util.find_spec
    monkeypatch.setattr(
        "simulator.basics.optional_packages.find_spec", lambda name: None if name == package else found(name)
    )
    answer = cli("sweep", "both.yaml", "--out", "here", *option)
    told = f"{option[0]}: needs the package {package}; pip install 'cluster-training-simulator[{extra}]'\n"
    assert (answer.code, answer.err) == (2, told)
    assert not (tmp_path / "here").exists()
