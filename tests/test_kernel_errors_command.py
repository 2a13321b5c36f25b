"""`simulator validate --kernels`: errors of measured kernels by GPU and group, as a table, as JSON and in a file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.calibration.kernel_rows import kernel_rows
from simulator.calibration.measured_kernels import gpu_named
from tests.commands import Command, commands_in

LINES = (
    "gpu,dtype,m,n,k,time_us",
    "h200,bfloat16,4096,4096,4096,200",
    "h200,bfloat16,8192,8192,8192,1600",
    "b200,fp8,4096,4096,4096,60",
    "h200,bfloat16,1024,1024,1024,9",
)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "mine.csv").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_line_for_each_gpu_and_group(cli: Command) -> None:
    errors = sorted(
        row.simulated(gpu_named("h200")) / row.seconds - 1 for row in kernel_rows("mine.csv") if row.gpu == "h200"
    )
    sizes = sorted(map(abs, errors))
    answer = cli("validate", "--kernels", "mine.csv")
    assert answer.code == 0
    head, *lines = answer.out.splitlines()[3:]
    assert head.split("  ")[1:3] == ["GPU", " group"]
    assert len(lines) == 2
    assert lines[0].split() == ["h200", "bfloat16", "3", f"{sizes[1]:.1%}", f"{sizes[2]:.1%}", f"{errors[1]:+.1%}"]
    assert lines[1].split()[:3] == ["b200", "fp8", "1"]
    assert answer.out.startswith("4 kernels simulated, median error ")


def test_json_has_groups_and_rows(cli: Command) -> None:
    answer = cli("validate", "--kernels", "mine.csv", "--json", "--every", "2")
    assert answer.data["table"] == "matmul"
    assert [(group["gpu"], group["rows"]) for group in answer.data["groups"]] == [("h200", 1), ("b200", 1)]
    row = answer.data["rows"][1]
    assert (row["gpu"], row["m"], row["group"], row["measured_us"]) == ("b200", 4096, "fp8", pytest.approx(60.0))
    assert row["error"] == pytest.approx(row["simulated_us"] / 60 - 1)
    assert answer.data["groups"][1]["bias"] == row["error"]


def test_a_file_has_each_kernel_beside_its_prediction_and_can_be_read_again(cli: Command) -> None:
    answer = cli("validate", "--kernels", "mine.csv", "--out", "predicted.csv")
    assert answer.out.splitlines()[-1] == "predicted.csv: written, each measured kernel beside its prediction"
    rows = list(csv.DictReader(Path("predicted.csv").read_text().splitlines()))
    assert [row["time_us"] for row in rows] == ["200.0", "1600.0", "60.0", "9.0"]
    assert float(rows[0]["simulated_us"]) == pytest.approx(200 * (1 + float(rows[0]["error"])))
    # Empty columns are omitted.
    assert list(rows[0]) == [
        "gpu", "dtype", "batch", "m", "n", "k", "time_us", "group", "measured_us", "simulated_us", "error",
    ]  # fmt: skip
    assert kernel_rows("predicted.csv") == kernel_rows("mine.csv")
    before = cli("validate", "--kernels", "mine.csv").out
    assert cli("validate", "--kernels", "predicted.csv").out == before


@pytest.mark.parametrize("family", ["matmul", "experts", "attention", "norms"])
def test_each_table_of_the_catalog_is_simulated(cli: Command, family: str) -> None:
    answer = cli("validate", "--kernels", family, "--every", "40", "--json")
    assert answer.data["table"] == family
    assert answer.data["groups"]
    assert all(-1 < row["error"] < 20 for row in answer.data["rows"])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            ("--kernels", "mine.csv", "--csv", "runs.csv"),
            "--csv: excludes --kernels, which simulates kernels and no steps; omit one option",
        ),
        (
            ("--kernels", "mine.csv", "--source", "vtrain"),
            "--source: excludes --kernels, which simulates kernels and no steps; omit one option",
        ),
        (
            ("--kernels", "mine.csv", "--kept", "k.jsonl"),
            "--kept: excludes --kernels, which simulates kernels and no steps; omit one option",
        ),
        (("--out", "o.csv"), "--out: needs --kernels, whose predictions it writes"),
        (("--kernels", "mine.csv", "--out", "o.txt"), "--out: got o.txt; must end in .csv"),
        (
            ("--kernels", "mine.csv", "--out", "mine.csv"),
            "--out: got mine.csv, the file of measurements; choose another name",
        ),
        (
            ("--kernels", "mine.csv", "--out", "no/o.csv"),
            "--out: no/o.csv cannot be written: No such file or directory",
        ),
        (
            ("--kernels", "no.csv"),
            "no.csv: no such file; give a CSV file, or a table: one of attention, experts, matmul, norms",
        ),
    ],
)
def test_a_fault_of_an_option_is_a_line(cli: Command, options: tuple[str, ...], fault: str) -> None:
    answer = cli("validate", *options)
    assert (answer.code, answer.out, answer.faults) == (2, "", [fault])


def test_every_faulty_line_of_a_file_is_told(cli: Command) -> None:
    Path("mine.csv").write_text("\n".join([*LINES, "h20O,bfloat16,8,8,8,1", "h200,bfloat16,8,8,-8,1"]))
    answer = cli("validate", "--kernels", "mine.csv")
    assert answer.code == 2
    assert [fault.partition(";")[0] for fault in answer.faults] == [
        "mine.csv line 6: gpu: got 'h20O'",
        "mine.csv line 7: k: got '-8'",
    ]
