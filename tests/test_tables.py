"""Tables that a run leaves: the rows of `simulator.sweep`, as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from importlib import util
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulator import plots, training_scenario
from simulator.basics.csv_text import csv_text
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import load_scenario
from simulator.sweeps.outcome_table import efficiency_note, frame, table_text, write_parquet
from simulator.sweeps.sweep import sweep
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


@pytest.mark.long
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
    assert read["b"].tolist()[:2] == ["b 3 0.5", "b none"]
    assert read["a"].isna().tolist() == [False, False, True]
    assert read["time_s"].tolist() == [0.0, 0.1, 0.2]
    assert table_text(outcomes).splitlines()[1] == "auto,b 3 0.5,0.0,[1.0],events,"


def test_numbers_read_back_exactly() -> None:
    value = math.pi / 1e7
    text = table_text([PointOutcome(0, {}, "events", {"time_s": value})])
    assert float(text.splitlines()[1].split(",")[0]) == value
    assert frame([]).empty


FORMULAS = ("=1+1", "@SUM(A1)", "+1+1", "-1+1", "\t=1+1", "\r=1+1", "\n=1+1", "\uff1d1+1")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_a_spreadsheet_would_run_has_a_quote_in_front(text: str) -> None:
    """OWASP, "CSV Injection"; also in a field that CSV quotes, and no matter how a line within the text ends."""
    safe = "'" + text.replace("\r", "\n")
    read = csv.reader(io.StringIO(csv_text([[text, f"{text},x", f"a{text}"]]), newline=""))
    assert list(read) == [[safe, f"{safe},x", f"a{safe[1:]}"]]


@pytest.mark.parametrize("number", [-0.5, 1e5, -3, True, None, "-0.5", "+1e+5", "-1e-05", "-.5", "-inf", "ring", "a=1"])
def test_numbers_and_plain_words_stay_as_they_are(number: Any) -> None:
    assert csv_text([["x", number]]) == f"x,{'' if number is None else number}\n"


def test_names_of_a_users_graph_are_no_formulas_in_any_table(cli: Command, tmp_path: Path) -> None:
    """Two GPUs and a switch with names that a spreadsheet would run; every table names them."""
    names = ["=1+1", "@SUM(A1)", "-2+3"]
    nodes = [{"id": names[0], "kind": "gpu"}, {"id": names[1], "kind": "gpu"}, {"id": names[2], "kind": "switch"}]
    links = [
        {"source": gpu, "target": names[2], "bandwidth": "12.5 GB/s", "latency": "5 us", "kind": "ethernet"}
        for gpu in names[:2]
    ]
    graph = {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "edges": links}
    (tmp_path / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
    (tmp_path / "=machine.yaml").write_text("graph: graph.json\ngpu: l4\n", encoding="utf-8")
    topology = ("--set", "cluster.topology='=machine.yaml','./=machine.yaml'", "--set", "cluster.world_size=2")
    assert cli("run", "small.yaml", *topology, "--out", "here").code == 0
    tables = [*(tmp_path / "here").glob("**/*.csv")]
    assert {path.name for path in tables} == {"table.csv", "spans.csv", "transfers.csv", "links.csv"}
    texts = [path.read_text(encoding="utf-8") for path in tables]
    cells = [cell for text in texts for row in csv.reader(text.splitlines()) for cell in row]
    assert {"'=1+1", "'@SUM(A1)", "'=machine.yaml"} <= set(cells)
    assert [cell for cell in cells if cell.startswith(("=", "@", "-", "+"))] == []


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


def _steps(*points: tuple[int, float, float, float]) -> list[PointOutcome]:
    """Outcomes of points (GPUs, tokens per second, step time [s], recompute time [s])."""
    return [
        PointOutcome(
            number, {"cluster.world_size": gpus}, "compiled",
            {"tokens_per_s": speed, "step_time_s": time, "recompute_time_s": recompute, "optimizer_time_s": 0.01},
        )
        for number, (gpus, speed, time, recompute) in enumerate(points)
    ]  # fmt: skip


def test_an_efficiency_above_one_says_what_it_is_relative_to_and_names_the_part_that_shrank() -> None:
    # 8 GPUs: 8 / 800 = 0.01 GPU-s per token. 16 GPUs: 16 / 2000 = 0.008, with 1000 tokens per step instead of 800.
    # Recomputation falls from 0.25 s x 8 / 800 = 0.0025 to 0.05 s x 16 / 1000 = 0.0008: more than half of 0.002.
    told = efficiency_note(_steps((8, 800.0, 1.0, 0.25), (16, 2000.0, 0.5, 0.05)))
    assert told == (
        "Efficiency is relative to the fewest GPUs with equal settings. With 16 GPUs it is 1.25: each GPU is faster "
        "than with 8 GPUs, mainly because of less recomputation per token."
    )
    # Recomputation falls by 0.0005 of 0.002 only: no cause is named.
    told = efficiency_note(_steps((8, 800.0, 1.0, 0.05), (16, 2000.0, 0.5, 0.0)))
    assert told.endswith("With 16 GPUs it is 1.25: each GPU is faster than with 8 GPUs.")
    assert efficiency_note(_steps((8, 800.0, 1.0, 0.05), (16, 1600.0, 0.5, 0.0))) == ""
    assert efficiency_note(_steps((8, 800.0, 1.0, 0.05))) == ""


def test_speedup_and_efficiency_are_relative_to_the_fewest_gpus_of_equal_settings() -> None:
    scenario = training_scenario(
        topology="leaf_spine_100g", world_size=2, model="gpt2", seq_len=256,
        compare={"training.sharding": ["ddp", "zero3"]}, sweep={"cluster.world_size": [4, 2]},
    )  # fmt: skip
    table = sweep(scenario)
    for _, lines in table.groupby("training.sharding"):
        four, two = lines.sort_values("cluster.world_size", ascending=False).to_dict("records")
        assert (two["speedup"], two["efficiency"]) == (1.0, 1.0)
        assert four["speedup"] == four["tokens_per_s"] / two["tokens_per_s"]
        assert four["efficiency"] == four["tokens_per_s_per_gpu"] / two["tokens_per_s_per_gpu"]
    figure = plots.speedup(table, "training.sharding")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["ddp", "zero3", "ideal"]
    # A single number of GPUs has no speedup.
    alone = sweep(scenario, {"cluster.world_size": [2]})
    assert "speedup" not in alone
    with pytest.raises(ValueError, match="several values"):
        plots.speedup(alone)
    with pytest.raises(ValueError, match=r"label: got 'training\.model'; must be a column of the table: "):
        plots.speedup(table, "training.model")


def test_settings_in_a_frame_are_the_texts_of_the_printed_table() -> None:
    server = {"strategy": "parameter_server", "servers": 1}
    scenario = training_scenario(topology="leaf_spine_100g", world_size=2, model="gpt2", seq_len=128)
    table = sweep(scenario, axes={"training.sharding": ["ddp", server], "cluster.world_size": [2, 4]})
    assert table["training.sharding"].tolist() == ["ddp"] * 2 + ["parameter_server (1 server)"] * 2
    lines = plots.speedup(table, "training.sharding").axes[0].get_lines()
    assert [str(line.get_label()) for line in lines] == ["ddp", "parameter_server (1 server)", "ideal"]
    # Two settings in a single line would be a zigzag.
    with pytest.raises(ValueError, match=r"same number of GPUs; write label='training\.sharding'"):
        plots.speedup(table)
